"""What ran when: spans of both graphs, numbers a step, a report, a Chrome trace."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

KEPT_SPANS = 200_000


@dataclass(frozen=True)
class Span:
    """One stage. graph: "embedding" or "main". start, end: nanoseconds since the epoch."""

    graph: str
    stage: str
    batch: int
    start: int
    end: int


Observer = Callable[[str, str, int], None]


class Meter:
    """Spans and counts of one rank. observer(graph, stage, batch): called before each stage; for tests and progress."""

    def __init__(self, observer: Observer | None = None) -> None:
        self._observer = observer
        self._spans: deque[Span] = deque(maxlen=KEPT_SPANS)
        self._numbers: dict[str, deque[float]] = {}
        self._lock = threading.Lock()
        # One clock for all ranks of a machine that never jumps: where the epoch lies is asked once.
        self._epoch = time.time_ns() - time.perf_counter_ns()

    def now(self) -> int:
        """Nanoseconds since the epoch."""
        return self._epoch + time.perf_counter_ns()

    @contextmanager
    def span(self, graph: str, stage: str, batch: int) -> Iterator[None]:
        """Time a stage."""
        if self._observer is not None:
            self._observer(graph, stage, batch)
        start = self.now()
        try:
            yield
        finally:
            self._spans.append(Span(graph, stage, batch, start, self.now()))

    def mark(self, graph: str, name: str, batch: int) -> None:
        """Note a moment."""
        now = self.now()
        self._spans.append(Span(graph, name, batch, now, now))

    def count(self, name: str, value: float) -> None:
        """Add one step's number."""
        with self._lock:
            self._numbers.setdefault(name, deque(maxlen=10_000)).append(value)

    def numbers(self, name: str) -> list[float]:
        with self._lock:
            return list(self._numbers.get(name, ()))

    def spans(self) -> list[Span]:
        return list(self._spans)

    def write_trace(self, path: Path, rank: int, others: list[list[Span]] | None = None) -> None:
        """A Chrome trace (chrome://tracing, Perfetto): a process a rank, a thread a graph. others: spans by rank,
        instead of this rank's alone."""
        by_rank = {rank: self.spans()} if others is None else dict(enumerate(others))
        path.write_text(json.dumps({"traceEvents": [e for r, s in by_rank.items() for e in events(r, s)]}))


def events(rank: int, spans: list[Span]) -> list[dict[str, Any]]:
    """Trace events of one rank."""
    threads = {"embedding": 1, "main": 2}
    named: list[dict[str, Any]] = [
        {"ph": "M", "pid": rank, "name": "process_name", "args": {"name": f"rank {rank}"}},
        *(
            {"ph": "M", "pid": rank, "tid": tid, "name": "thread_name", "args": {"name": f"{graph} graph"}}
            for graph, tid in threads.items()
        ),
    ]
    return named + [
        {
            "ph": "X",
            "pid": rank,
            "tid": threads[s.graph],
            "name": s.stage,
            "ts": s.start / 1e3,
            "dur": (s.end - s.start) / 1e3,
            "args": {"batch": s.batch},
        }
        for s in spans
    ]


def median_ms(values: list[float]) -> float:
    """Median of nanoseconds, in milliseconds; NaN of none."""
    return median(values) / 1e6 if values else float("nan")
