"""Python inside a traced graph, in program order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from .communicator import Tensor


class HostOps:
    """Runs functions of NumPy arrays: at once when eager, as one stateful host op inside `tf.function`."""

    def __init__(self, device: str = "CPU:0", lane: str = "") -> None:
        self.device = device
        self._name = f"distributed_embeddings_order_{lane}".rstrip("_").replace(" ", "_")
        self._handle: Tensor = None

    def call(
        self, function: Callable[..., Sequence[Any]], inputs: Sequence[Tensor], dtypes: Sequence[Any]
    ) -> list[Tensor]:
        """Return `function(*inputs)` as tensors of `dtypes`."""
        if tf.executing_eagerly():
            # `.numpy()` copies, `__array__` aliases a host tensor.
            results = function(*[tensor.__array__() for tensor in inputs])
            return [tf.convert_to_tensor(r, dtype=d) for r, d in zip(results, dtypes, strict=True)]

        def in_order(_: Any, *arrays: Any) -> Any:
            return list(function(*arrays))

        with tf.device(self.device):
            return list(tf.numpy_function(in_order, [self.order(), *inputs], list(dtypes), stateful=True))

    def order(self) -> Tensor:
        """A resource that every operation takes as an input.

        TF's automatic control dependencies keep stateful ops on one resource in program order, also across
        `tf.while_loop` and `tf.cond` (they capture it). The variable behind the handle is never created.
        """
        if self._handle is None:
            with tf.init_scope(), tf.device(self.device):
                self._handle = tf.raw_ops.VarHandleOp(
                    dtype=tf.int64, shape=[], shared_name=self._name, container=""
                )
        return self._handle


def with_shape(tensor: Tensor, shape: Any) -> Tensor:
    """Give a traced tensor the static shape its host op cannot tell."""
    if not tf.executing_eagerly():
        tensor.set_shape(shape)
    return tensor


def rows_like(values: Tensor) -> Any:
    """The static shape of any number of rows of `values`."""
    return tf.TensorShape([None]).concatenate(values.shape[1:])


def require_eager(phase: str) -> None:
    """Raise RuntimeError inside a tf.function."""
    if not tf.executing_eagerly():
        raise RuntimeError(f"`barrier` is eager only. Received: phase={phase!r} inside a tf.function.")
