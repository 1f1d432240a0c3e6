"""Pairwise dot products of a sample's vectors as a Keras layer."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from distributed_embeddings.ops import kernels
from distributed_embeddings.ops.interaction import dot_interaction


@keras.saving.register_keras_serializable("distributed_embeddings")
class DotInteraction(keras.layers.Layer):
    """F vectors [B, dim] in a list, or [B, F, dim] → the F (F - 1) / 2 products of vectors i > j, by rows.

    That is the lower triangle of the matrix of products without its diagonal. keep_first: the first vector stands
    before them, [B, dim + F (F - 1) / 2]. Naumov et al., 2019 (DLRM). Gradients of gradients are not defined.
    """

    def __init__(self, keep_first: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.keep_first = keep_first
        # Keras compiles a model with XLA on its own where all layers allow it. Then this would be the twin, and slower
        # on a CPU than the kernel; `jit_compile=True` is obeyed all the same.
        self.supports_jit = not kernels.enabled_for("")

    def call(self, vectors: Any) -> Any:
        if not isinstance(vectors, list | tuple):
            vectors = tf.unstack(vectors, axis=-2)
        return dot_interaction(vectors, self.keep_first)

    def compute_output_shape(self, vectors_shape: Any) -> tuple[Any, int]:
        if isinstance(vectors_shape[0], list | tuple):
            count, (batch, dim) = len(vectors_shape), vectors_shape[0]
        else:
            batch, count, dim = vectors_shape
        return batch, count * (count - 1) // 2 + (dim if self.keep_first else 0)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "keep_first": self.keep_first}
