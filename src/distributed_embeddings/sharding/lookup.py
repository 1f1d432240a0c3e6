"""The owner's side of a lane: rows out of the shard, summed by bag where the owner pools."""

from __future__ import annotations

import tensorflow as tf

from distributed_embeddings.ops.bags import sum_segments
from distributed_embeddings.ops.block import Block
from distributed_embeddings.ops.rows import gather_rows
from distributed_embeddings.sharding.exchange import Received


def look_up_lane(table: Block, received: Received, pooled: bool) -> tf.Tensor:
    """Vectors that answer a lane, float32 [Σ num_replies, width], in the order of the sources."""
    vectors = tf.cast(gather_rows(table, received.rows), tf.float32)
    if not pooled:
        return vectors
    if received.weights is not None:
        vectors = vectors * received.weights[:, None]
    num_bags = tf.reduce_sum(received.num_replies)
    return sum_segments(vectors, received.hotness, received.lengths, num_bags)
