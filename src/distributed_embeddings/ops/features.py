"""Features of a grouped op: bags, and the table that their ids name rows of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from distributed_embeddings.ops.bags import Bags


@dataclass(frozen=True)
class Feature:
    """One input of a grouped op. table: its table's index among the op's tables. combiner: None, "sum", "mean" or
    "sqrtn"."""

    name: str
    table: int
    combiner: str | None
    bags: Bags


@dataclass(frozen=True)
class GroupedTable:
    """A table of a grouped op as error texts name it. vocabulary_size: rows; dim: columns."""

    name: str
    vocabulary_size: int
    dim: int


def feature_arguments(features: Sequence[Feature], invalid_ids: str) -> dict[str, Any]:
    """What all grouped kernels take of their features: csrc/tf/features.h."""
    ragged = [f.bags.splits for f in features if f.bags.splits is not None]
    weights = [f.bags.weights for f in features if f.bags.weights is not None]
    return {
        "ids": [_given(f) for f in features],
        "splits": ragged,
        "weights": weights,
        "table_of": [f.table for f in features],
        "splits_of": _numbered([f.bags.splits is not None for f in features]),
        "weights_of": _numbered([f.bags.weights is not None for f in features]),
        "combiners": [f.combiner or "none" for f in features],
        "invalid_ids": invalid_ids,
    }


def features_of(op: Any, first: int) -> dict[str, Any]:
    """`feature_arguments` again, of an op that has them as inputs from `first` on (in eager mode: of the tape's record
    of it)."""
    inputs, start = list(op.inputs), first
    tensors = {}
    for name, count in (("ids", "num_features"), ("splits", "num_ragged"), ("weights", "num_weighted")):
        tensors[name] = inputs[start : start + op.get_attr(count)]
        start += op.get_attr(count)
    return {
        **tensors,
        **{name: list(op.get_attr(name)) for name in ("table_of", "splits_of", "weights_of")},
        "combiners": [tf.compat.as_str(c) for c in op.get_attr("combiners")],
        "invalid_ids": tf.compat.as_str(op.get_attr("invalid_ids")),
    }


def shaped(features: Sequence[Feature], vectors: Sequence[tf.Tensor]) -> list[Any]:
    """A kernel's outputs as users get them: ragged for ragged ids without combiner."""
    return [
        f.bags.unpooled(out) if f.combiner is None and f.bags.ragged else out
        for f, out in zip(features, vectors, strict=True)
    ]


def _given(feature: Feature) -> tf.Tensor:
    if feature.bags.given is None:
        raise ValueError(
            f"bags of feature '{feature.name}' were changed: kernels take ids as they were given"
        )
    return feature.bags.given


def _numbered(present: Sequence[bool]) -> list[int]:
    """Positions among those present; -1 for the others."""
    numbers, count = [], 0
    for here in present:
        numbers.append(count if here else -1)
        count += here
    return numbers
