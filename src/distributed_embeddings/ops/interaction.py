"""Dot products of all pairs of a sample's vectors: the kernel, and its twin in plain TensorFlow.

Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems", 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from distributed_embeddings.ops import kernels

_FORWARD = "DembDotInteraction"


def dot_interaction(vectors: Sequence[tf.Tensor], keep_first: bool = False) -> tf.Tensor:
    """F vectors [B, dim] → [B, F (F - 1) / 2], the products of vectors i > j by rows: (1,0) (2,0) (2,1) (3,0) ….

    keep_first: the first vector itself stands before them: [B, dim + F (F - 1) / 2]. Differentiable once. float32
    on a CPU goes through the kernel, which reads the vectors where they lie; the rest, and what XLA compiles, through
    the twin.
    Raises ValueError for no vector or vectors of different dtypes; InvalidArgumentError or ValueError for shapes
    that differ.
    """
    vectors = [tf.convert_to_tensor(v) for v in vectors]
    dtypes = {v.dtype.name for v in vectors}
    if len(dtypes) != 1:
        raise ValueError(
            "`vectors` must be a non-empty list of tensors of one dtype. "
            f"Received: {len(vectors)} tensors of dtypes {sorted(dtypes)}"
        )
    if uses_kernel(vectors[0]):
        return kernels.library().demb_dot_interaction(vectors, keep_first=keep_first)
    return plain_dot_interaction(vectors, keep_first)


def uses_kernel(vector: tf.Tensor) -> bool:
    """Whether `dot_interaction` of vectors such as this one is the compiled kernel."""
    return bool(vector.dtype == tf.float32 and kernels.enabled_for(vector) and not _compiled_by_xla())


def _compiled_by_xla() -> bool:
    """Whether a `tf.function(jit_compile=True)` is being traced: XLA knows no op of ours.

    tf.function enters such a context around the traced Python; TensorFlow has no public way to ask.
    """
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        context = graph._get_control_flow_context()
        if context is not None and context.IsXLAContext():
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


@tf.RegisterGradient(_FORWARD)
def _gradient(op: tf.Operation, upstream: tf.Tensor) -> list[tf.Tensor]:
    keep_first = op.get_attr("keep_first")
    gradients = kernels.library().demb_dot_interaction_grad(upstream, list(op.inputs), keep_first=keep_first)
    return list(gradients)


tf.no_gradient(f"{_FORWARD}Grad")


def plain_dot_interaction(vectors: Sequence[tf.Tensor], keep_first: bool = False) -> tf.Tensor:
    """`dot_interaction` in plain TensorFlow, for any floating dtype and any device."""
    products = _pairwise_dots(len(vectors))(tf.stack(vectors, 1))
    return tf.concat([vectors[0], products], -1) if keep_first else products


def _pairwise_dots(count: int) -> Callable[[Any], Any]:
    """[B, F, dim] → the products of vectors i > j."""
    rows, columns = np.tril_indices(count, -1)
    triangle = (rows * count + columns).astype(np.int32)
    # Where entry (i, j) of the symmetric gradient comes from; the diagonal from a row of zeros put behind the others.
    sources = np.full((count, count), len(triangle), np.int32)
    sources[rows, columns] = sources[columns, rows] = np.arange(len(triangle))

    # Pairs are picked as whole rows of the transposed matrix: on CPU a gather of single numbers along the last axis
    # costs more than both transposes (28 ms against 22 ms forward and back at [2048, 27, 16], one thread; the kernel
    # takes 2). The gradient by hand is one product instead of two, and a gather instead of a scatter.
    @tf.custom_gradient
    def dots(vectors: Any) -> Any:
        products = tf.matmul(vectors, vectors, transpose_b=True)
        by_pair = tf.transpose(tf.reshape(products, [-1, count * count]))
        picked = tf.transpose(tf.gather(by_pair, triangle))

        def gradient(upstream: Any) -> Any:
            padded = tf.pad(tf.transpose(upstream), [[0, 1], [0, 0]])
            symmetric = tf.transpose(tf.gather(padded, sources.ravel()))
            return tf.matmul(tf.reshape(symmetric, [-1, count, count]), vectors)

        return picked, gradient

    return dots
