"""From a source to this rank's data set."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from distributed_embeddings.data import Batches


def batches_of(
    source: Any, batch_size: int, communicator: Any, *, seed: int = 0, shuffle: bool = False
) -> Batches:
    """This rank's part of every global batch."""
    return Batches(
        source,
        batch_size,
        shuffle=shuffle,
        seed=seed,
        shard_index=communicator.rank,
        num_shards=communicator.size,
    )


def dataset_of(batches: Batches, epoch: int = 0) -> Any:
    """One epoch as a `tf.data.Dataset`."""
    options = tf.data.Options()
    # tf.data's autotuner sleeps for up to a minute between looks, the longer the longer it has run, and the end of an
    # epoch waits until it wakes. There is nothing to tune: one generator, one prefetch of two.
    options.autotune.enabled = False
    return batches.to_tf_dataset(first_epoch=epoch).with_options(options)
