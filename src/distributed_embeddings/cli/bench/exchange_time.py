"""How long this process was inside exchanges, waits for the others included."""

from __future__ import annotations

import functools
import threading
import time
from typing import Any

_OPERATIONS = ("all_to_all", "all_gather", "reduce_scatter", "all_reduce", "broadcast")


class ExchangeTime:
    """Seconds of all operations of the mpi backend from now on, of all threads. To be made before the first of them."""

    def __init__(self) -> None:
        from distributed_embeddings.comm.mpi_engine import MpiEngine

        self._seconds, self._lock = 0.0, threading.Lock()
        self._engines: list[Any] = []
        init = MpiEngine.__init__

        def noted(engine: Any, *args: Any, **kwargs: Any) -> None:
            init(engine, *args, **kwargs)
            self._engines.append(engine)

        MpiEngine.__init__ = noted  # type: ignore[method-assign]
        for name in _OPERATIONS:
            setattr(MpiEngine, name, self._timed(getattr(MpiEngine, name)))

    def seconds(self) -> float:
        return self._seconds

    def share_core(self, shared: bool) -> None:
        """Whether the process runs two graphs now: waits of one alone may keep the core."""
        for engine in self._engines:
            engine.share_core(shared)

    def _timed(self, operation: Any) -> Any:
        @functools.wraps(operation)
        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            try:
                return operation(*args, **kwargs)
            finally:
                with self._lock:
                    self._seconds += time.perf_counter() - begin

        return timed
