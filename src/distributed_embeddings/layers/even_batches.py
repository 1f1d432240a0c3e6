"""As many batches on every rank: a rank without data joins the exchange with empty batches of weight 0."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from distributed_embeddings import comm


def even_batches(dataset: tf.data.Dataset, steps: int | None = None) -> tf.data.Dataset:
    """The dataset with empty batches added behind, so that it is as long as the longest rank's.

    dataset: batched, of known cardinality, or `steps` says how many batches this rank has. Every rank calls it. In
    training an empty batch contributes nothing; the local loss of one is NaN, as the mean of nothing is.
    Raises ValueError on every rank when a rank's length is not known.
    """
    communicator = comm.current()
    count = int(dataset.cardinality()) if steps is None else steps
    lengths, _ = communicator.all_gather(tf.constant([count], tf.int64), phase="batches a rank")
    lengths = lengths.numpy().tolist()
    if min(lengths) < 0:
        raise ValueError(
            "`dataset` must have a known, finite cardinality on every rank. "
            f"Received: cardinalities by rank {lengths} (-1 infinite, -2 unknown). "
            "Pass steps=, or dataset.apply(tf.data.experimental.assert_cardinality(n))."
        )
    missing = max(lengths) - count
    if not missing:
        return dataset
    empty = tf.nest.map_structure(empty_batch, dataset.element_spec)
    filler = tf.data.Dataset.from_tensors(empty).repeat(missing)
    return dataset.take(count).concatenate(filler)


def empty_batch(spec: Any) -> Any:
    """A batch of 0 samples of the given spec."""
    shape = [0, *(0 if d is None else d for d in spec.shape[1:])]
    if isinstance(spec, tf.RaggedTensorSpec):
        values = tf.zeros([0, *shape[1 + spec.ragged_rank :]], spec.dtype)
        splits = tf.zeros([1], spec.row_splits_dtype)
        ragged = values
        for _ in range(spec.ragged_rank):
            ragged = tf.RaggedTensor.from_row_splits(ragged, splits)
        return ragged
    if isinstance(spec, tf.SparseTensorSpec):
        return tf.SparseTensor(tf.zeros([0, len(shape)], tf.int64), tf.zeros([0], spec.dtype), shape)
    return tf.zeros(shape, spec.dtype)
