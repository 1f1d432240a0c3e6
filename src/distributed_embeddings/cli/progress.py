"""What rank 0 says while it trains: a bar on a terminal, else a line every few seconds; other ranks are silent."""

from __future__ import annotations

import os
import time
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from .workers import TERMINAL_VARIABLE

_LINE_SECONDS = 5.0


class Reporter:
    """Prints for one rank. console: where; None = silent."""

    def __init__(self, console: Console | None) -> None:
        self.console = console

    @classmethod
    def of_rank(cls, rank: int, size: int) -> Reporter:
        """The reporter of a worker: rank 0 speaks."""
        if rank:
            return cls(None)
        # mpirun gives a worker a pseudo-terminal whatever its own output is: who started it knows better.
        terminal = os.environ.get(TERMINAL_VARIABLE) == "1" if size > 1 else None
        return cls(Console(force_terminal=terminal, highlight=False, soft_wrap=True))

    def say(self, text: str) -> None:
        if self.console is not None:
            self.console.print(text, markup=False)

    def epoch(self, title: str, total_steps: int | None) -> EpochProgress:
        """Progress of one epoch, a context manager; total_steps None when nobody has counted them."""
        return EpochProgress(self.console, title, total_steps)


class EpochProgress:
    """`update` as often as wished; it prints when it is time to."""

    def __init__(self, console: Console | None, title: str, total_steps: int | None) -> None:
        self._console, self._title, self._total = console, title, total_steps
        self._start = self._printed = time.monotonic()
        self._bar: Progress | None = None
        if console is not None and console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
            self._bar = Progress(*columns, console=console, transient=True, refresh_per_second=2)
            self._task = self._bar.add_task(title, total=total_steps, text="")

    def __enter__(self) -> EpochProgress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, step: int, samples: int, loss: float) -> None:
        """step, samples: done in this epoch, of all workers; loss: mean since the last update."""
        if self._console is None:
            return
        text = self._text(step, samples, loss)
        if self._bar is not None:
            self._bar.update(self._task, completed=step, text=text)
        elif time.monotonic() - self._printed >= _LINE_SECONDS:
            self._printed = time.monotonic()
            self._console.print(f"{self._title}  {text}", markup=False)

    def _text(self, step: int, samples: int, loss: float) -> str:
        seconds = max(time.monotonic() - self._start, 1e-9)
        of_total = f"/{self._total}" if self._total else ""
        text = f"step {step}{of_total}  loss {loss:.4f}  {samples / seconds:,.0f} samples/s"
        if self._total:
            text += f"  {_clock(seconds / max(step, 1) * (self._total - step))} left"
        return text


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"


def table_line(values: dict[str, Any]) -> str:
    """'auc 0.7071  log_loss 0.4932': floats with four digits."""
    return "  ".join(f"{k} {v:.4f}" if isinstance(v, float) else f"{k} {v}" for k, v in values.items())
