"""Invalid ids: found in one pass over all features, then dropped, clipped, or named in one error text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import tensorflow as tf

from distributed_embeddings.ops.bags import Bags
from distributed_embeddings.ops.segments import run_of_each

POLICIES = ("raise", "zero", "clip")


@dataclass(frozen=True)
class CheckedFeature:
    """What an error must name: the feature, its table, and the table's rows."""

    feature: str
    table: str
    vocabulary_size: int


def invalid_mask(ids: tf.Tensor, vocabulary_size: int) -> tf.Tensor:
    """True where an id is outside [0, vocabulary_size): int64 [n] → bool [n]."""
    return tf.logical_or(ids < 0, ids >= vocabulary_size)


def check_and_clip(bags: Sequence[Bags], features: Sequence[CheckedFeature]) -> tuple[tf.Tensor, list[Bags]]:
    """Whether any id is outside its table or the features disagree on the batch size (bool scalar), and the bags with
    every id moved inside, so that routing is defined until the error is raised. One pass over all features."""
    sizes = tf.stack([tf.size(b.ids, tf.int64) for b in bags])
    ids = tf.concat([b.ids for b in bags], 0)
    limits = _limits(sizes, features)
    clipped = tf.clip_by_value(ids, 0, limits - 1)
    batch_sizes = tf.stack([b.batch_size for b in bags])
    bad = tf.logical_or(tf.reduce_any(ids != clipped), tf.reduce_any(batch_sizes != batch_sizes[0]))
    parts = tf.split(clipped, sizes, num=len(bags))
    return bad, [replace(b, ids=part, given=None, splits=None) for b, part in zip(bags, parts, strict=True)]


def zero_or_clip(
    bags: Sequence[Bags], features: Sequence[CheckedFeature], policy: str
) -> tuple[list[Bags], tf.Tensor]:
    """Bags whose ids are all valid, and how many were not, int64 [features].

    "zero" drops an invalid id; "clip" moves it to the nearest end.
    """
    masks = [invalid_mask(b.ids, f.vocabulary_size) for b, f in zip(bags, features, strict=True)]
    counts = tf.stack([tf.math.count_nonzero(m) for m in masks])
    if policy == "zero":
        return [b.keep(tf.logical_not(m)) for b, m in zip(bags, masks, strict=True)], counts
    return check_and_clip(bags, features)[1], counts


def describe(bags: Sequence[Bags], features: Sequence[CheckedFeature], rank: int) -> tf.Tensor:
    """One text naming the first invalid id, or the batch sizes that differ; "" when all is well. A scalar string."""
    sizes = tf.stack([b.batch_size for b in bags])
    return tf.cond(
        tf.reduce_any(sizes != sizes[0]),
        lambda: _batch_sizes_text(sizes, features, rank),
        lambda: _invalid_text(bags, features, sizes, rank),
    )


def _limits(sizes: tf.Tensor, features: Sequence[CheckedFeature]) -> tf.Tensor:
    rows = tf.constant([f.vocabulary_size for f in features], tf.int64)
    return tf.gather(rows, run_of_each(sizes, tf.reduce_sum(sizes)))


def _invalid_text(
    bags: Sequence[Bags], features: Sequence[CheckedFeature], batch_sizes: tf.Tensor, rank: int
) -> tf.Tensor:
    sizes = tf.stack([tf.size(b.ids, tf.int64) for b in bags])
    ids = tf.concat([b.ids for b in bags], 0)
    positions = tf.where(tf.logical_or(ids < 0, ids >= _limits(sizes, features)))[:, 0]

    def text() -> tf.Tensor:
        first = positions[0]
        feature = tf.searchsorted(tf.cumsum(sizes), [first], side="right")[0]
        lengths = tf.concat([b.row_lengths() for b in bags], 0)
        bag = tf.searchsorted(tf.cumsum(lengths), [first], side="right", out_type=tf.int64)[0]
        row = bag - tf.cumsum(batch_sizes, exclusive=True)[feature]
        # No quotes: TensorFlow's Assert escapes them.
        names = [f"feature {f.feature} (table {f.table}): id " for f in features]
        ranges = [f" is outside [0, {f.vocabulary_size}) at row " for f in features]
        return tf.strings.join(
            [
                tf.constant(names)[feature],
                tf.strings.as_string(ids[first]),
                tf.constant(ranges)[feature],
                tf.strings.as_string(row),
                f" of the batch on rank {rank} (invalid ids there in all: ",
                tf.strings.as_string(tf.size(positions)),
                "). ",
            ]
        )

    return tf.cond(tf.size(positions) > 0, text, lambda: tf.constant(""))


def _batch_sizes_text(sizes: tf.Tensor, features: Sequence[CheckedFeature], rank: int) -> tf.Tensor:
    names = tf.constant([f"{f.feature}: " for f in features])
    listed = tf.strings.reduce_join(tf.strings.join([names, tf.strings.as_string(sizes)]), separator=", ")
    text = f"all features of a call must have one batch size. Received on rank {rank}: "
    return tf.strings.join([text, listed, ". "])
