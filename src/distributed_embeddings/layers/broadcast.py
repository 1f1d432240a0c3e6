"""One start for all workers: the root's dense variables everywhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from distributed_embeddings import comm
from distributed_embeddings.layers.gradients import is_sharded


@tf.autograph.experimental.do_not_convert
def broadcast_variables(variables: Iterable[Any], root_rank: int = 0) -> None:
    """Overwrite variables by those of `root_rank`: keras.Variable or tf.Variable, in one order on all ranks.
    Collective.

    Shards of tables and their slots are skipped: each exists on one rank only. Works eagerly and inside `tf.function`.
    """
    communicator = comm.current()
    if communicator.size == 1:
        return
    chosen = [v for v in variables if not is_sharded(v) and 0 not in tuple(v.shape)]
    for dtype in sorted({tf.as_dtype(v.dtype) for v in chosen}, key=lambda d: d.name):
        if dtype == tf.string or dtype == tf.resource:
            continue
        group = [v for v in chosen if tf.as_dtype(v.dtype) == dtype]
        values = [v.read_value() if isinstance(v, tf.Variable) else tf.convert_to_tensor(v) for v in group]
        flat = tf.concat([tf.reshape(v, [-1]) for v in values], 0)
        got = communicator.broadcast(flat, root_rank, phase=f"broadcast of {dtype.name} variables")
        pieces = tf.split(got, [int(tf.TensorShape(v.shape).num_elements()) for v in values])
        for variable, piece in zip(group, pieces, strict=True):
            variable.assign(tf.reshape(piece, tuple(variable.shape)))


def allreduce(value: Any, op: str = "mean") -> tf.Tensor:
    """A tensor reduced over the workers: op "mean", "sum", "max" or "min"; for metrics. Collective."""
    return comm.current().all_reduce(tf.convert_to_tensor(value), op, phase="allreduce")


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Broadcasts the model's and the optimizer's variables from `root_rank` once, before the first batch of `fit` where
    they exist by then, else after it."""

    def __init__(self, root_rank: int = 0) -> None:
        super().__init__()
        self.root_rank = root_rank
        self._done = False

    def on_train_begin(self, logs: Any = None) -> None:
        if self.model.built and not self._done:
            self._broadcast()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if not self._done:
            self._broadcast()

    def _broadcast(self) -> None:
        self._done = True
        broadcast_variables(self.model.variables, self.root_rank)
        optimizer = self.model.optimizer
        if optimizer is not None and optimizer.built:
            dense = getattr(optimizer, "dense_variables", optimizer.variables)
            broadcast_variables(dense, self.root_rank)


class MetricAverageCallback(keras.callbacks.Callback):
    """Averages the logs of `fit` over the workers at an epoch's end, before the callbacks behind it read them."""

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        names = sorted(logs or {})
        if names and logs is not None:
            mean = allreduce(tf.stack([tf.cast(logs[n], tf.float64) for n in names])).numpy()
            logs.update({n: float(v) for n, v in zip(names, mean, strict=True)})
