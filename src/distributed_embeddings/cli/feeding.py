"""From a source to this rank's data set."""

from __future__ import annotations

from typing import Any

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
    return batches.to_tf_dataset(first_epoch=epoch)
