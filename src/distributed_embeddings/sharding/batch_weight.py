"""The weight of this worker's batch in the global batch: what makes uneven batches mean one global mean.

With B_r samples on rank r of N and B = ΣB_r, the gradient of the global mean is Σ (B_r / B) · g_r = mean over ranks of
w_r · g_r with w_r = B_r · N / B. It is 1 exactly when the batches are even.
"""

from __future__ import annotations

import tensorflow as tf

_weight: tf.Variable | None = None


def variable() -> tf.Variable:
    """The weight w_r of the last batch that a DistributedEmbedding looked up, a float32 scalar variable.

    A variable and not a tensor: the forward pass and the gradient may be traced in different functions, and TensorFlow
    keeps the order of a variable's reads and writes across them.
    """
    global _weight
    if _weight is None:
        with tf.init_scope():
            _weight = tf.Variable(1.0, trainable=False, name="batch_weight", dtype=tf.float32)
    return _weight


def record(batch_sizes: tf.Tensor, rank: int) -> tf.Tensor:
    """Note the batch sizes of all ranks, int64 [N]; returns w_rank (0 when every batch is empty)."""
    weight = of_rank(batch_sizes, rank)
    variable().assign(weight)
    return weight


def of_rank(batch_sizes: tf.Tensor, rank: int) -> tf.Tensor:
    """w_rank of the batch sizes of all ranks, int64 [N] → float32 scalar."""
    sizes = tf.cast(batch_sizes, tf.float64)
    total = tf.reduce_sum(sizes)
    weight = tf.math.divide_no_nan(sizes[rank] * tf.cast(tf.size(sizes), tf.float64), total)
    return tf.cast(weight, tf.float32)
