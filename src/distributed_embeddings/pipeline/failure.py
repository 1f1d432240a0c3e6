"""What happens when a graph fails: one latch for both, and tables that nobody may trust."""

from __future__ import annotations

import threading
from collections.abc import Callable


class DirtyTablesError(RuntimeError):
    """Tables may hold half an update."""


class AbortLatch:
    """The first failure of either graph; it is told to whoever asked to know, once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closers: list[Callable[[], None]] = []
        self.error: BaseException | None = None
        self.graph = ""

    def on_abort(self, close: Callable[[], None]) -> None:
        """Call `close` when something fails."""
        with self._lock:
            self._closers.append(close)

    def trip(self, graph: str, error: BaseException) -> None:
        """Note a graph's failure and wake the other one; only the first counts."""
        with self._lock:
            if self.error is not None:
                return
            self.error, self.graph = error, graph
            closers = list(self._closers)
        for close in closers:
            close()

    def describe(self, rank: int) -> str:
        """The failure in one line for other ranks."""
        return f"rank {rank}, {self.graph} graph: {type(self.error).__name__}: {self.error}"

    @property
    def tripped(self) -> bool:
        return self.error is not None

    def check(self) -> None:
        """Raise the failure again."""
        if self.error is not None:
            raise self.error


def refuse_dirty(latch: AbortLatch, what: str) -> None:
    """Raise DirtyTablesError when a failure may have left half an update behind."""
    if latch.tripped:
        raise DirtyTablesError(
            f"{what} must not be read: the pipeline stopped in the {latch.graph} graph with "
            f"{type(latch.error).__name__}, and some workers may have applied a step's update that others have not. "
            "Restore tables and optimizer slots on every rank (set_weights, load_weights or a checkpoint), then make a "
            f"new pipeline. Received: {latch.error}"
        )
