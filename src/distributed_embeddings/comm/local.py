"""The `local` backend: one worker, identities in plain TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from .communicator import Tensor
from .host_ops import require_eager
from .reductions import check_op


class LocalCommunicator:
    """Collectives over one rank: no copy, no host op, no wait."""

    backend = "local"
    rank = 0
    size = 1
    local_rank = 0
    local_size = 1

    def all_to_all(self, values: Tensor, splits: Tensor, *, phase: str) -> tuple[Tensor, Tensor]:
        """See Communicator."""
        values, splits = tf.convert_to_tensor(values), tf.cast(splits, tf.int64)
        _check_splits(values, splits, phase)
        return values, splits

    def all_to_all_parts(
        self, parts: Sequence[tuple[Tensor, Tensor]], *, phase: str
    ) -> list[tuple[Tensor, Tensor]]:
        """See Communicator."""
        return [self.all_to_all(values, splits, phase=phase) for values, splits in parts]

    def all_gather(self, values: Tensor, *, phase: str) -> tuple[Tensor, Tensor]:
        """See Communicator."""
        values = tf.convert_to_tensor(values)
        return values, tf.shape(values, out_type=tf.int64)[:1]

    def reduce_scatter(self, values: Tensor, splits: Tensor, *, phase: str) -> Tensor:
        """See Communicator."""
        values = tf.convert_to_tensor(values)
        check_op("sum", values.dtype.as_numpy_dtype)
        _check_splits(values, tf.cast(splits, tf.int64), phase)
        return values

    def all_reduce(self, values: Tensor, op: str = "sum", *, phase: str) -> Tensor:
        """See Communicator."""
        values = tf.convert_to_tensor(values)
        check_op(op, values.dtype.as_numpy_dtype)
        return values

    def broadcast(self, values: Tensor, root: int = 0, *, phase: str) -> Tensor:
        """See Communicator."""
        if root != 0:
            raise ValueError(f"`root` must be a rank below 1. Received: root={root} in {phase!r}")
        return tf.convert_to_tensor(values)

    def barrier(self, *, phase: str) -> None:
        """See Communicator."""
        require_eager(phase)

    def duplicate(self, name: str) -> LocalCommunicator:
        """See Communicator: without state, it serves any number of threads."""
        return self

    def when_waiting(self, call: Callable[[], None] | None) -> bool:
        """See Communicator."""
        return False

    def tell_failure(self, text: str) -> None:
        """See Communicator: there is nobody to tell."""

    def raised(self, error: BaseException) -> bool:
        """See Communicator."""
        return False

    def explain(self, error: BaseException) -> BaseException:
        """See Communicator."""
        return error

    def shutdown(self) -> None:
        """See Communicator."""

    def abort(self) -> None:
        """Nobody else is there to end."""


def _check_splits(values: Tensor, splits: Tensor, phase: str) -> None:
    """Eagerly and where shapes are static; a graph's op for it would cost more than the exchange itself."""
    known, rows = tf.get_static_value(splits), values.shape[:1].num_elements()
    if values.shape.rank == 0 or not splits.shape.is_compatible_with([1]):
        wrong = True
    else:
        wrong = known is not None and rows is not None and int(known.sum()) != rows
    if wrong:
        raise ValueError(
            "`splits` must be 1 row count equal to the rows of `values`. "
            f"Received: splits={splits} for values of shape {values.shape} in {phase!r}"
        )
