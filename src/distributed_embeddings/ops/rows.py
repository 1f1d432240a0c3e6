"""Reading, writing and summing rows of a table: cost follows the ids, never the table's rows."""

from __future__ import annotations

import tensorflow as tf

from distributed_embeddings.ops import kernels, reference
from distributed_embeddings.ops.block import Block, as_block

_UNIQUE = "_distributed_embeddings_unique"


def gather_rows(variable: Block | tf.Variable, rows: tf.Tensor) -> tf.Tensor:
    """Read rows of a table.

    variable: [vocabulary_size, dim]. rows: int32 or int64 [n]; every one must lie in [0, vocabulary_size)
    (CPU: an error, GPU: not checked). Returns [n, dim] in the table's dtype. Its gradient with respect to
    `variable` is an IndexedSlices.
    """
    return as_block(variable).gather(_row_ids(rows))


def scatter_rows(variable: Block | tf.Variable, rows: tf.Tensor, values: tf.Tensor) -> None:
    """Overwrite rows of a table in place.

    variable: [vocabulary_size, dim]. rows: int32 or int64 [n], no row twice. values: [n, dim], cast to the
    table's dtype.
    """
    as_block(variable).scatter(_row_ids(rows), values)


def sum_duplicates(slices: tf.IndexedSlices, num_rows: int | None = None) -> tf.IndexedSlices:
    """Sum all occurrences of a row, so that a rule that is not linear sees the row's whole gradient once.

    slices: indices int32 or int64 [n], values [n, …] of any float dtype. num_rows: of the table; with it the kernel can
    run, which raises InvalidArgumentError for a row outside. Returns unique int64 rows and their float32 sums; float16
    and bfloat16 sums would stall as soon as an addend is less than half a unit in the last place. Occurrences are added
    in their order, so that the same slices give the same bits (on GPUs only under
    `tf.config.experimental.enable_op_determinism`). Slices whose rows are unique already are returned as they are.
    """
    if is_unique(slices):
        return slices
    indices = tf.convert_to_tensor(slices.indices)
    values = tf.cast(slices.values, tf.float32)
    dim = values.shape[1:].num_elements()
    if num_rows is not None and dim and values.shape.rank == 2 and kernels.enabled_for(values):
        _row_ids(indices)
        rows, sums = kernels.library().demb_sum_slices(indices, values, num_rows=[num_rows], dims=[dim])
    else:
        rows, sums = reference.sum_slices(_row_ids(indices), values)
    mark_unique(sums, rows)
    return tf.IndexedSlices(sums, rows, dense_shape=slices.dense_shape)


def mark_unique(values: tf.Tensor, rows: tf.Tensor) -> None:
    """Say of an IndexedSlices' values that no row of theirs occurs twice. (The slices themselves are rebuilt by
    TensorFlow's nest operations, their values and rows are not.)"""
    setattr(values, _UNIQUE, rows)


def is_unique(slices: tf.IndexedSlices) -> bool:
    """Whether `mark_unique` was said of these values with these very rows."""
    return getattr(slices.values, _UNIQUE, None) is slices.indices


def _row_ids(rows: tf.Tensor) -> tf.Tensor:
    """int64, because row ids above 2^31 must survive."""
    rows = tf.convert_to_tensor(rows)
    if rows.dtype not in (tf.int32, tf.int64):
        raise ValueError(f"`rows` must be int32 or int64. Received: rows={rows} (of dtype {rows.dtype.name})")
    return tf.cast(rows, tf.int64)
