"""What happens when a graph fails: one latch for both, and tables that nobody may trust."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable


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

    def forget(self, close: Callable[[], None]) -> None:
        """Do not call `close` any more."""
        with self._lock:
            self._closers.remove(close)

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


class PipelineGuard:
    """Stands before the tables of one layer, or the slots of an optimizer, while a pipeline may be changing them.

    names: what `before_write` will be told when all of it is written. drain: waits until all updates are in. in_flight:
    whether batches are under way.
    """

    def __init__(
        self,
        latch: AbortLatch,
        names: Iterable[str],
        drain: Callable[[], None],
        in_flight: Callable[[], bool],
    ) -> None:
        self._latch, self._drain, self._in_flight = latch, drain, in_flight
        self._to_restore = set(names)

    @property
    def dirty(self) -> bool:
        """Whether half an update may be there: from a failure on, until everything has been written anew."""
        return self._latch.tripped and bool(self._to_restore)

    def before_read(self, what: str) -> None:
        """Wait for all updates. Raises DirtyTablesError."""
        if self.dirty:
            raise DirtyTablesError(
                f"{what} must not be read: the pipeline stopped in the {self._latch.graph} graph with "
                f"{type(self._latch.error).__name__}, and some workers may have applied a step's update that others "
                "have not. Restore tables and optimizer slots on every rank (set_weights, load_weights; or compile "
                f"with a new optimizer), then make a new pipeline. Received: {self._latch.error}"
            )
        if not self._latch.tripped:
            self._drain()

    def before_write(self, what: str) -> None:
        """Writing is the way out after a failure. Raises RuntimeError while batches are under way."""
        if self._latch.tripped:
            self._to_restore.discard(what)
        elif self._in_flight():
            raise RuntimeError(
                f"{what} must not be written while batches are under way, because vectors of the next ones were looked "
                "up before. End the stream first: close(), or let fit end."
            )
