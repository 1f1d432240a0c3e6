"""Bags: the ids of one feature for a batch, in one form whatever the input's kind, and how bags become vectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from distributed_embeddings.ops import kernels
from distributed_embeddings.ops.segments import run_of_each

COMBINERS = (None, "sum", "mean", "sqrtn")
_ID_DTYPES = (tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32)


@dataclass(frozen=True)
class Bags:
    """Ids of one feature, flattened.

    ids: int64 [n]. batch_size: int64 scalar B. hotness: ids a bag when every bag has the same static number, else None.
    lengths: int64 [B] when hotness is None. weights: float32 [n] or None.
    unpooled: shapes the vectors [n, dim] of an input without combiner like its ids.
    present: int64 [n] positions that kept ids had before others were dropped; None when none was dropped.
    given: the ids as the kernels take them, int32 or int64: [B, …] dense, or the flat values that splits cut.
    splits: int64 [B + 1] of a ragged input, else None.
    """

    ids: tf.Tensor
    batch_size: tf.Tensor
    hotness: int | None
    lengths: tf.Tensor | None
    weights: tf.Tensor | None
    unpooled: Callable[[tf.Tensor], Any]
    ragged: bool = False
    present: tf.Tensor | None = None
    original_count: tf.Tensor | None = None
    given: tf.Tensor | None = None
    splits: tf.Tensor | None = None

    def row_lengths(self) -> tf.Tensor:
        """Ids in each bag, int64 [B]."""
        if self.lengths is not None:
            return self.lengths
        return tf.fill([self.batch_size], tf.constant(self.hotness, tf.int64))

    def segment_ids(self) -> tf.Tensor:
        """The bag of each id, int64 [n]."""
        return run_of_each(self.row_lengths(), tf.size(self.ids, tf.int64))

    def keep(self, mask: tf.Tensor) -> Bags:
        """Drop the ids where `mask` is False: they contribute nothing and are not counted in a mean."""
        segments = tf.boolean_mask(self.segment_ids(), mask)
        first = self.present is None
        return replace(
            self,
            ids=tf.boolean_mask(self.ids, mask),
            hotness=None,
            lengths=tf.math.unsorted_segment_sum(tf.ones_like(segments), segments, self.batch_size),
            weights=None if self.weights is None else tf.boolean_mask(self.weights, mask),
            present=tf.where(mask)[:, 0] if first else tf.boolean_mask(self.present, mask),
            given=None,
            splits=None,
            original_count=tf.size(self.ids, tf.int64) if first else self.original_count,
        )

    def regiven(self) -> Bags:
        """These bags, with their ids as the kernels take them."""
        if self.hotness is not None:
            shape = tf.stack([self.batch_size, tf.constant(self.hotness, tf.int64)])
            return replace(self, given=tf.reshape(self.ids, shape), splits=None)
        splits = tf.concat([tf.zeros([1], tf.int64), tf.cumsum(self.lengths)], 0)
        return replace(self, given=self.ids, splits=splits)


def make_bags(ids: Any, weights: Any = None, *, feature: str, pooled: bool = False) -> Bags:
    """Bring an input to `Bags`.

    ids: [B], [B, h], RaggedTensor [B, None], SparseTensor [B, h] or NumPy, of an integer dtype. weights: same kind and
    shape, or None. pooled: the table has a combiner, so dense ids have one axis of bags at most.
    Raises ValueError naming the feature.
    """
    ids = _as_tensor(ids, feature)
    if ids.dtype not in _ID_DTYPES:
        raise ValueError(
            f"ids of feature '{feature}' must be integers of 8 to 64 bits, unsigned ones of 8 to 32. "
            f"Received: dtype={ids.dtype.name}. Cast them where they are read."
        )
    if weights is not None:
        weights = _as_tensor(weights, feature)
        _check_same_kind(ids, weights, feature)
    if isinstance(ids, tf.SparseTensor):
        ids, weights = _sparse_to_ragged(ids, weights, feature)
    if isinstance(ids, tf.RaggedTensor):
        return _ragged_bags(ids, weights, feature)
    if pooled and ids.shape.rank is not None and ids.shape.rank > 2:
        raise ValueError(
            f"dense ids of feature '{feature}', whose table has a combiner, must have shape [B] or [B, h]. "
            f"Received: shape={ids.shape}"
        )
    return _dense_bags(ids, weights, feature)


def pool(vectors: tf.Tensor, bags: Bags, combiner: str | None) -> Any:
    """Vectors [n, dim] of every id → the feature's output: [B, dim] pooled, or the shape of the ids + [dim].

    Sums in float32. Empty bags and bags whose weights sum to 0 are zeros.
    """
    if combiner is None:
        return unpooled(vectors, bags)
    return sum_bags(vectors, bags) * combiner_scale(bags, combiner)


def unpooled(vectors: tf.Tensor, bags: Bags) -> Any:
    """The output without combiner; an id that was dropped reads a zero vector."""
    if bags.weights is not None:
        vectors = vectors * bags.weights[:, None]
    if bags.present is not None:
        shape = tf.stack([bags.original_count, tf.shape(vectors, tf.int64)[1]])
        vectors = tf.scatter_nd(bags.present[:, None], vectors, shape)
    return bags.unpooled(vectors)


def sum_bags(vectors: tf.Tensor, bags: Bags) -> tf.Tensor:
    """Weighted sum of each bag: [n, dim] → float32 [B, dim]."""
    vectors = tf.cast(vectors, tf.float32)
    if bags.weights is not None:
        vectors = vectors * bags.weights[:, None]
    return sum_segments(vectors, bags.hotness, bags.lengths, bags.batch_size)


def sum_segments(
    vectors: tf.Tensor, hotness: int | None, lengths: tf.Tensor | None, num_bags: tf.Tensor
) -> tf.Tensor:
    """Sum consecutive runs of rows: `hotness` rows each, or `lengths` [num_bags] rows each."""
    if hotness == 1:
        return vectors
    if hotness == 0:
        return tf.zeros(tf.stack([num_bags, tf.constant(vectors.shape[1], tf.int64)]), vectors.dtype)
    if hotness is not None:
        return tf.reduce_sum(tf.reshape(vectors, [-1, hotness, vectors.shape[1]]), axis=1)
    # unsorted_segment_sum keeps leading, middle and trailing empty bags as zeros; segment_sum drops trailing ones.
    segments = run_of_each(lengths, tf.shape(vectors, tf.int64)[0])
    return tf.math.unsorted_segment_sum(vectors, segments, num_bags)


def combiner_scale(bags: Bags, combiner: str) -> tf.Tensor:
    """What a bag's sum is multiplied by, float32 [B, 1] or a scalar: 1, 1/Σw (mean) or 1/√Σw² (sqrtn); 0 where that
    is 1/0."""
    if combiner == "sum":
        return tf.constant(1.0)
    if bags.weights is None:
        if bags.hotness is not None:
            size = float(bags.hotness)
            return tf.constant(0.0 if size == 0 else 1.0 / (size if combiner == "mean" else size**0.5))
        total = tf.cast(bags.row_lengths(), tf.float32)[:, None]
    else:
        weights = bags.weights if combiner == "mean" else tf.square(bags.weights)
        total = sum_segments(weights[:, None], bags.hotness, bags.lengths, bags.batch_size)
    return tf.math.divide_no_nan(1.0, _safe_sqrt(total) if combiner == "sqrtn" else total)


def _safe_sqrt(x: tf.Tensor) -> tf.Tensor:
    """Square root whose gradient at 0 is 0, not NaN: weights that are all 0 must not poison a step."""
    positive = x > 0
    return tf.where(positive, tf.sqrt(tf.where(positive, x, tf.ones_like(x))), tf.zeros_like(x))


def _as_tensor(value: Any, feature: str) -> Any:
    if isinstance(value, tf.RaggedTensor | tf.SparseTensor) or tf.is_tensor(value):
        return value
    try:
        return tf.convert_to_tensor(value)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"input of feature '{feature}' must be a tensor, RaggedTensor, SparseTensor or array. "
            f"Received: {type(value).__name__}. {error}"
        ) from error


def _check_same_kind(ids: Any, weights: Any, feature: str) -> None:
    kinds = (tf.RaggedTensor, tf.SparseTensor)
    if any(isinstance(ids, k) != isinstance(weights, k) for k in kinds):
        raise ValueError(
            f"weights of feature '{feature}' must be of the same kind as its ids. "
            f"Received: ids {type(ids).__name__}, weights {type(weights).__name__}."
        )
    if not weights.dtype.is_floating:
        raise ValueError(
            f"weights of feature '{feature}' must be floats. Received: dtype={weights.dtype.name}."
        )
    if not ids.shape.is_compatible_with(weights.shape):
        raise ValueError(
            f"weights of feature '{feature}' must have the shape of its ids. "
            f"Received: ids {ids.shape}, weights {weights.shape}."
        )


def _sparse_to_ragged(ids: tf.SparseTensor, weights: tf.SparseTensor | None, feature: str) -> tuple[Any, Any]:
    """Rows in order, whatever the order of the entries; trailing empty rows kept (embedding_lookup_sparse drops
    them)."""
    ids = tf.sparse.reorder(ids)
    splits = _row_splits(ids)
    ragged = tf.RaggedTensor.from_row_splits(ids.values, splits, validate=False)
    if weights is None:
        return ragged, None
    weights = tf.sparse.reorder(weights)
    check = tf.debugging.assert_equal(
        ids.indices, weights.indices, f"weights of feature '{feature}' must be where its ids are"
    )
    with tf.control_dependencies([check] if check is not None else []):
        weights = tf.SparseTensor(weights.indices, tf.identity(weights.values), weights.dense_shape)
    return ragged, tf.RaggedTensor.from_row_splits(weights.values, _row_splits(weights), validate=False)


def _row_splits(sparse: tf.SparseTensor) -> tf.Tensor:
    rows = sparse.dense_shape[0]
    return tf.searchsorted(sparse.indices[:, 0], tf.range(rows + 1), side="left", out_type=tf.int64)


def _ragged_bags(ids: tf.RaggedTensor, weights: tf.RaggedTensor | None, feature: str) -> Bags:
    if ids.ragged_rank != 1 or ids.flat_values.shape.rank != 1:
        raise ValueError(
            f"ragged input of feature '{feature}' must have shape [B, None]. Received: shape={ids.shape}, "
            f"ragged_rank={ids.ragged_rank}."
        )
    splits = tf.cast(ids.row_splits, tf.int64)
    if not kernels.enabled_for(splits):
        splits = _checked_splits(splits, tf.size(ids.flat_values, tf.int64), feature)
    lengths = splits[1:] - splits[:-1]
    flat_weights = None
    if weights is not None:
        weight_lengths = tf.cast(weights.row_lengths(), tf.int64)
        message = f"weights of feature '{feature}' must have the row lengths of its ids"
        check = tf.debugging.assert_equal(lengths, weight_lengths, message)
        with tf.control_dependencies([check] if check is not None else []):
            flat_weights = tf.cast(tf.identity(weights.flat_values), tf.float32)

    def like_ids(vectors: tf.Tensor) -> tf.RaggedTensor:
        return tf.RaggedTensor.from_row_splits(vectors, ids.row_splits, validate=False)

    batch_size = tf.cast(ids.nrows(), tf.int64)
    return Bags(
        tf.cast(ids.flat_values, tf.int64),
        batch_size,
        None,
        lengths,
        flat_weights,
        like_ids,
        ragged=True,
        given=_kernel_ids(ids.flat_values),
        splits=splits,
    )


def _checked_splits(splits: tf.Tensor, num_ids: tf.Tensor, feature: str) -> tf.Tensor:
    """The splits, once they are right. Kernels look for themselves; plain ops would make wrong bags of wrong splits."""
    right = tf.reduce_all(splits[1:] >= splits[:-1]) & (splits[0] == 0) & (splits[-1] == num_ids)
    # No quotes: TensorFlow's Assert escapes them.
    text = tf.strings.join(
        [
            f"feature {feature}: row splits must begin at 0, never fall, and end at the number of ids, ",
            tf.strings.as_string(num_ids),
            " (of a SparseTensor: its row indices must lie inside its dense shape). Received: ",
            tf.strings.as_string(tf.size(splits)),
            " splits from ",
            tf.strings.as_string(splits[0]),
            " to ",
            tf.strings.as_string(splits[-1]),
        ]
    )
    check = tf.debugging.Assert(right, [text])
    with tf.control_dependencies([check] if check is not None else []):
        return tf.identity(splits)


def _dense_bags(ids: tf.Tensor, weights: tf.Tensor | None, feature: str) -> Bags:
    rank = ids.shape.rank
    if not rank:
        raise ValueError(f"input of feature '{feature}' must have a batch axis. Received: shape={ids.shape}.")
    shape = tf.shape(ids, tf.int64)
    inner = ids.shape[1:]
    hotness = inner.num_elements() if inner.is_fully_defined() else None
    lengths = None
    if hotness is None:
        lengths = tf.fill([shape[0]], tf.reduce_prod(shape[1:]))
    static = ids.shape.as_list()

    def like_ids(vectors: tf.Tensor) -> tf.Tensor:
        output = tf.reshape(vectors, tf.concat([shape, [vectors.shape[1]]], 0))
        output.set_shape([*static, vectors.shape[1]])
        return output

    flat_weights = None if weights is None else tf.cast(tf.reshape(weights, [-1]), tf.float32)
    flat_ids = tf.cast(tf.reshape(ids, [-1]), tf.int64)
    return Bags(flat_ids, shape[0], hotness, lengths, flat_weights, like_ids, given=_kernel_ids(ids))


def _kernel_ids(ids: tf.Tensor) -> tf.Tensor:
    return ids if ids.dtype in (tf.int32, tf.int64) else tf.cast(ids, tf.int64)
