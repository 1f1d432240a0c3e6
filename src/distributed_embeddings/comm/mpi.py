"""The `mpi` backend: TensorFlow on the outside, NumPy and mpi4py inside (`mpi_engine.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from .communicator import Tensor
from .host_ops import HostOps, require_eager, rows_like, with_shape
from .mpi_engine import MpiEngine, require_threads
from .tokens import MOST_PARTS


class MpiCommunicator:
    """Collectives through MPI, eager or as one stateful host op a call inside `tf.function`."""

    backend = "mpi"

    def __init__(self, local_rank: int, local_size: int, lane: str = "") -> None:
        self._engine = MpiEngine(lane)
        self.rank = self._engine.rank
        self.size = self._engine.size
        self.local_rank = local_rank
        self.local_size = local_size
        self._host = HostOps(lane=lane)

    def all_to_all(self, values: Tensor, splits: Tensor, *, phase: str) -> tuple[Tensor, Tensor]:
        """See Communicator."""
        return self.all_to_all_parts([(values, splits)], phase=phase)[0]

    def all_to_all_parts(
        self, parts: Sequence[tuple[Tensor, Tensor]], *, phase: str
    ) -> list[tuple[Tensor, Tensor]]:
        """See Communicator."""
        done: list[tuple[Tensor, Tensor]] = []
        for start in range(0, len(parts), MOST_PARTS):
            done += self._at_once(parts[start : start + MOST_PARTS], phase)
        return done

    def _at_once(self, parts: Sequence[tuple[Tensor, Tensor]], phase: str) -> list[tuple[Tensor, Tensor]]:
        values = [tf.convert_to_tensor(v) for v, _ in parts]
        splits = [tf.cast(s, tf.int64) for _, s in parts]
        count = len(parts)

        def run(*arrays: Any) -> Any:
            return self._engine.all_to_all(arrays[:count], arrays[count:], phase)

        dtypes = [*(v.dtype for v in values), *[tf.int64] * count]
        got = self._host.call(run, [*values, *splits], dtypes)
        return [
            (with_shape(received, rows_like(v)), with_shape(counts, [self.size]))
            for v, received, counts in zip(values, got[:count], got[count:], strict=True)
        ]

    def all_gather(self, values: Tensor, *, phase: str) -> tuple[Tensor, Tensor]:
        """See Communicator."""
        values = tf.convert_to_tensor(values)

        def run(v: Any) -> Any:
            return self._engine.all_gather(v, phase)

        received, counts = self._host.call(run, [values], [values.dtype, tf.int64])
        return with_shape(received, rows_like(values)), with_shape(counts, [self.size])

    def reduce_scatter(self, values: Tensor, splits: Tensor, *, phase: str) -> Tensor:
        """See Communicator."""
        values, splits = tf.convert_to_tensor(values), tf.cast(splits, tf.int64)

        def run(v: Any, s: Any) -> Any:
            return [self._engine.reduce_scatter(v, s, phase)]

        return with_shape(self._host.call(run, [values, splits], [values.dtype])[0], rows_like(values))

    def all_reduce(self, values: Tensor, op: str = "sum", *, phase: str) -> Tensor:
        """See Communicator."""
        values = tf.convert_to_tensor(values)

        def run(v: Any) -> Any:
            return [self._engine.all_reduce(v, op, phase)]

        return with_shape(self._host.call(run, [values], [values.dtype])[0], values.shape)

    def broadcast(self, values: Tensor, root: int = 0, *, phase: str) -> Tensor:
        """See Communicator."""
        values = tf.convert_to_tensor(values)

        def run(v: Any) -> Any:
            return [self._engine.broadcast(v, root, phase)]

        return with_shape(self._host.call(run, [values], [values.dtype])[0], values.shape)

    def barrier(self, *, phase: str) -> None:
        """See Communicator."""
        require_eager(phase)
        self._engine.barrier(phase)

    def duplicate(self, name: str) -> MpiCommunicator:
        """See Communicator. Raises RuntimeError where MPI was started for one thread only."""
        require_threads()
        other = MpiCommunicator(self.local_rank, self.local_size, name)
        for engine in (self._engine, other._engine):
            engine.share_core()
        return other

    def when_waiting(self, call: Callable[[], None] | None) -> bool:
        """See Communicator."""
        self._engine.when_waiting(call)
        return True

    def tell_failure(self, text: str) -> None:
        """See Communicator."""
        self._engine.tell_failure(text)

    def shutdown(self) -> None:
        """See Communicator."""
        self._engine.shutdown()

    def raised(self, error: BaseException) -> bool:
        """See Communicator."""
        return self.explain(error) is self._engine.last_error

    def explain(self, error: BaseException) -> BaseException:
        """Return the communication error inside `error`: TensorFlow wraps it in a page of its own."""
        inner = self._engine.last_error
        return inner if inner is not None and str(inner) in str(error) else error

    def abort(self, status: int = 1) -> None:
        """End every process of the job now, with a non-zero status."""
        self._engine.abort(status)
