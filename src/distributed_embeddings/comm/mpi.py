"""The `mpi` backend: TensorFlow on the outside, NumPy and mpi4py inside (`mpi_engine.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from .communicator import Tensor
from .mpi_engine import MpiEngine


class MpiCommunicator:
    """Collectives through MPI, eager or as one stateful host op a call inside `tf.function`."""

    backend = "mpi"

    def __init__(self, local_rank: int, local_size: int) -> None:
        self._engine = MpiEngine()
        self.rank = self._engine.rank
        self.size = self._engine.size
        self.local_rank = local_rank
        self.local_size = local_size
        self._order_handle: Tensor = None

    def all_to_all(self, values: Tensor, splits: Tensor, *, phase: str) -> tuple[Tensor, Tensor]:
        """See Communicator."""
        values, splits = tf.convert_to_tensor(values), tf.cast(splits, tf.int64)

        def run(v: Any, s: Any) -> Any:
            return self._engine.all_to_all(v, s, phase)

        received, counts = self._call(run, [values, splits], [values.dtype, tf.int64])
        return self._shaped(received, values), _with_shape(counts, [self.size])

    def all_gather(self, values: Tensor, *, phase: str) -> tuple[Tensor, Tensor]:
        """See Communicator."""
        values = tf.convert_to_tensor(values)

        def run(v: Any) -> Any:
            return self._engine.all_gather(v, phase)

        received, counts = self._call(run, [values], [values.dtype, tf.int64])
        return self._shaped(received, values), _with_shape(counts, [self.size])

    def reduce_scatter(self, values: Tensor, splits: Tensor, *, phase: str) -> Tensor:
        """See Communicator."""
        values, splits = tf.convert_to_tensor(values), tf.cast(splits, tf.int64)

        def run(v: Any, s: Any) -> Any:
            return [self._engine.reduce_scatter(v, s, phase)]

        return self._shaped(self._call(run, [values, splits], [values.dtype])[0], values)

    def all_reduce(self, values: Tensor, op: str = "sum", *, phase: str) -> Tensor:
        """See Communicator."""
        values = tf.convert_to_tensor(values)

        def run(v: Any) -> Any:
            return [self._engine.all_reduce(v, op, phase)]

        return _with_shape(self._call(run, [values], [values.dtype])[0], values.shape)

    def broadcast(self, values: Tensor, root: int = 0, *, phase: str) -> Tensor:
        """See Communicator."""
        values = tf.convert_to_tensor(values)

        def run(v: Any) -> Any:
            return [self._engine.broadcast(v, root, phase)]

        return _with_shape(self._call(run, [values], [values.dtype])[0], values.shape)

    def barrier(self, *, phase: str) -> None:
        """See Communicator."""
        if not tf.executing_eagerly():
            raise RuntimeError(f"`barrier` is eager only. Received: phase={phase!r} inside a tf.function.")
        self._engine.barrier(phase)

    def shutdown(self) -> None:
        """See Communicator."""
        self._engine.shutdown()

    def abort(self) -> None:
        """End every process of the job now, with a non-zero status."""
        self._engine.abort()

    def _call(
        self, run: Callable[..., Sequence[Any]], inputs: list[Tensor], dtypes: list[Any]
    ) -> list[Tensor]:
        if tf.executing_eagerly():
            # `.numpy()` copies, `__array__` aliases a host tensor.
            results = run(*[tensor.__array__() for tensor in inputs])
            return [tf.convert_to_tensor(r, dtype=d) for r, d in zip(results, dtypes, strict=True)]

        def run_in_order(_: Any, *arrays: Any) -> Any:
            return list(run(*arrays))

        return list(tf.numpy_function(run_in_order, [self._order(), *inputs], dtypes, stateful=True))

    def _order(self) -> Tensor:
        """A resource that every operation takes as its first input.

        TF's automatic control dependencies keep stateful ops on one resource in program order, also across
        `tf.while_loop` and `tf.cond` (they capture it). The variable behind the handle is never created.
        """
        if self._order_handle is None:
            with tf.init_scope(), tf.device("CPU:0"):
                self._order_handle = tf.raw_ops.VarHandleOp(
                    dtype=tf.int64, shape=[], shared_name="distributed_embeddings_mpi_order", container=""
                )
        return self._order_handle

    @staticmethod
    def _shaped(received: Tensor, values: Tensor) -> Tensor:
        return _with_shape(received, tf.TensorShape([None]).concatenate(values.shape[1:]))


def _with_shape(tensor: Tensor, shape: Any) -> Tensor:
    if not tf.executing_eagerly():
        tensor.set_shape(shape)
    return tensor
