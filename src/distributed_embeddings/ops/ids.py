"""Invalid ids: found in one pass over all features, then dropped, clipped, or named in one error text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import tensorflow as tf

from distributed_embeddings.ops.bags import Bags

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


def any_invalid(bags: Sequence[Bags], features: Sequence[CheckedFeature]) -> tf.Tensor:
    """True when any id of any feature is outside its table, or the features disagree on the batch size."""
    ids = tf.concat([b.ids for b in bags], 0)
    limits = tf.repeat(
        tf.constant([f.vocabulary_size for f in features], tf.int64),
        tf.stack([tf.size(b.ids, tf.int64) for b in bags]),
    )
    sizes = tf.stack([b.batch_size for b in bags])
    outside = tf.logical_or(ids < 0, ids >= limits)
    return tf.logical_or(tf.reduce_any(outside), tf.reduce_any(sizes != sizes[0]))


def apply_policy(
    bags: Sequence[Bags], features: Sequence[CheckedFeature], policy: str
) -> tuple[list[Bags], tf.Tensor]:
    """Bags whose ids are all valid, and how many were not, int64 [features].

    "zero" drops an invalid id; "clip" moves it to the nearest end; "raise" clips too, so that routing is defined until
    the error is raised.
    """
    masks = [invalid_mask(b.ids, f.vocabulary_size) for b, f in zip(bags, features, strict=True)]
    counts = tf.stack([tf.math.count_nonzero(m) for m in masks])
    if policy == "zero":
        return [b.keep(tf.logical_not(m)) for b, m in zip(bags, masks, strict=True)], counts
    return clip(bags, features), counts


def clip(bags: Sequence[Bags], features: Sequence[CheckedFeature]) -> list[Bags]:
    """Move every id into [0, vocabulary_size)."""
    return [
        replace(b, ids=tf.clip_by_value(b.ids, 0, f.vocabulary_size - 1))
        for b, f in zip(bags, features, strict=True)
    ]


def describe(bags: Sequence[Bags], features: Sequence[CheckedFeature], rank: int) -> tf.Tensor:
    """One text naming the first invalid id of each feature that has one; "" when there is none. A scalar string."""
    lines = [_describe_one(b, f, rank) for b, f in zip(bags, features, strict=True)]
    lines.append(_describe_batch_sizes(bags, features, rank))
    return tf.strings.join(lines)


def _describe_one(bags: Bags, feature: CheckedFeature, rank: int) -> tf.Tensor:
    positions = tf.where(invalid_mask(bags.ids, feature.vocabulary_size))[:, 0]

    def text() -> tf.Tensor:
        first = positions[0]
        row = tf.gather(bags.segment_ids(), first)
        return tf.strings.join(
            [
                f"feature '{feature.feature}' (table '{feature.table}'): id ",
                tf.strings.as_string(tf.gather(bags.ids, first)),
                f" is outside [0, {feature.vocabulary_size}) at row ",
                tf.strings.as_string(row),
                f" of the batch on rank {rank} (",
                tf.strings.as_string(tf.size(positions)),
                " such ids of this feature there). ",
            ]
        )

    return tf.cond(tf.size(positions) > 0, text, lambda: tf.constant(""))


def _describe_batch_sizes(bags: Sequence[Bags], features: Sequence[CheckedFeature], rank: int) -> tf.Tensor:
    sizes = tf.stack([b.batch_size for b in bags])

    def text() -> tf.Tensor:
        parts = [
            tf.strings.join([f"'{f.feature}': ", tf.strings.as_string(b.batch_size)])
            for b, f in zip(bags, features, strict=True)
        ]
        return tf.strings.join(
            [
                f"all features of a call must have one batch size. Received on rank {rank}: ",
                *_commas(parts),
                ". ",
            ]
        )

    return tf.cond(tf.reduce_any(sizes != sizes[0]), text, lambda: tf.constant(""))


def _commas(parts: list[tf.Tensor]) -> list[tf.Tensor]:
    return [piece for i, part in enumerate(parts) for piece in ((", ", part) if i else (part,))]
