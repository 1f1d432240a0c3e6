"""Pairwise dot products of a sample's vectors, in plain TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf


@keras.saving.register_keras_serializable("distributed_embeddings")
class DotInteraction(keras.layers.Layer):
    """[B, F, dim] → the F (F - 1) / 2 products of vectors i > j: the lower triangle without the diagonal, by rows.

    Naumov et al., 2019 (DLRM). Gradients of gradients are not defined.
    """

    def call(self, vectors: Any) -> Any:
        return _pairwise_dots(int(vectors.shape[-2]))(vectors)

    def compute_output_shape(self, vectors_shape: Any) -> tuple[Any, int]:
        count = vectors_shape[-2]
        return vectors_shape[0], count * (count - 1) // 2


def _pairwise_dots(count: int) -> Callable[[Any], Any]:
    rows, columns = np.tril_indices(count, -1)
    triangle = (rows * count + columns).astype(np.int32)
    # Where entry (i, j) of the symmetric gradient comes from; the diagonal from a row of zeros put behind the others.
    sources = np.full((count, count), len(triangle), np.int32)
    sources[rows, columns] = sources[columns, rows] = np.arange(len(triangle))

    # Pairs are picked as whole rows of the transposed matrix: on CPU a gather of single numbers along the last axis
    # costs more than both transposes (28 ms against 22 ms forward and back at [2048, 27, 16], one thread). The
    # gradient by hand is one product instead of two, and a gather instead of a scatter.
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
