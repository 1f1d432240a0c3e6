"""Rows of a dense tensor by index, with dense gradients.

`tf.gather`'s own gradient is an IndexedSlices that TensorFlow makes dense later, with a warning about unknown shapes.
"""

from __future__ import annotations

import tensorflow as tf


@tf.custom_gradient
def take(values: tf.Tensor, indices: tf.Tensor):
    """values [u, d], indices int64 [n] → [n, d]; rows taken several times sum their gradients."""
    rows = tf.shape(values, tf.int64)[0]

    def gradient(upstream: tf.Tensor):
        return tf.math.unsorted_segment_sum(upstream, indices, rows), None

    return tf.gather(values, indices), gradient


@tf.custom_gradient
def permute(values: tf.Tensor, inverse: tf.Tensor):
    """values [n, d] moved so that row i goes to inverse[i] (int64 [n], a permutation)."""

    def gradient(upstream: tf.Tensor):
        return tf.gather(upstream, inverse), None

    return tf.gather(values, tf.math.invert_permutation(inverse)), gradient
