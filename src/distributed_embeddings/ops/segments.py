"""Runs of different lengths in one flat tensor."""

from __future__ import annotations

import tensorflow as tf


def run_of_each(lengths: tf.Tensor, total: tf.Tensor) -> tf.Tensor:
    """The run that each of `total` consecutive entries belongs to, int64 [total]; empty runs own no entry.

    lengths: int64 [runs], summing to total. Costs total + runs: `tf.repeat` builds a [runs, longest] mask instead.
    """
    starts = tf.cumsum(lengths, exclusive=True)
    # One entry more: an empty last run starts behind the end.
    marks = tf.scatter_nd(starts[:, None], tf.ones_like(starts), tf.reshape(total + 1, [1]))
    return tf.cumsum(marks)[:-1] - 1
