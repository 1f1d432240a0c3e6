"""Unique and route, and its inverse: the sample's side of an exchange, by kernel or by its twin.

`route` finds each row once and which shard holds it; `assemble` makes the features' outputs of the rows that came back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from distributed_embeddings.ops import kernels, reference
from distributed_embeddings.ops.features import Feature, feature_arguments, features_of, shaped


@dataclass(frozen=True)
class RoutedTable:
    """A table and how its rows lie on shards.

    shard_ends: rows of a shard end there, the last at num_rows; cyclic: row r is on shard r % shards instead. None: the
    table is here, its ids are only checked.
    """

    num_rows: int
    shard_ends: tuple[int, ...] | None
    cyclic: bool = False

    @property
    def num_shards(self) -> int:
        """Shards that the rows lie on; 0 for a table that is not routed."""
        return 0 if self.shard_ends is None else len(self.shard_ends)


@dataclass(frozen=True)
class Routed:
    """rows: for every table its shards' rows, unique, as the shard counts them, int64 [u]. inverse: for every feature
    where its ids' rows are in the concatenation of its table's shards, int64 like the ids; -1: left out. invalid: int64
    [features]. wrong: bool scalar, the call must fail."""

    rows: list[list[tf.Tensor]]
    inverse: list[tf.Tensor]
    invalid: tf.Tensor
    wrong: tf.Tensor


def route(tables: Sequence[RoutedTable], features: Sequence[Feature], invalid_ids: str) -> Routed:
    """Each row that the features name, once, by the shard that holds it.

    A call is wrong when an id is invalid under "raise", or features differ in batch size.
    """
    if not kernels.enabled_for(""):
        return Routed(*reference.route(tables, features, invalid_ids))
    counts = [t.num_shards for t in tables]
    rows, inverse, invalid, wrong = kernels.library().demb_route(
        **feature_arguments(features, invalid_ids),
        num_shards=sum(counts),
        num_features=len(features),
        num_rows=[t.num_rows for t in tables],
        shard_counts=counts,
        cyclic=[t.cyclic for t in tables],
        shard_ends=[end for t in tables for end in t.shard_ends or ()],
    )
    by_table, start = [], 0
    for count in counts:
        by_table.append(rows[start : start + count])
        start += count
    return Routed(by_table, inverse, invalid, wrong)


@dataclass(frozen=True)
class ReplyLane:
    """Where replies of one shard are. table, shard: whose. columns: of the table's columns."""

    table: int
    shard: int
    columns: range


def assemble(
    replies: tf.Tensor,
    lane_rows: tf.Tensor,
    lanes: Sequence[ReplyLane],
    dims: Sequence[int],
    features: Sequence[Feature],
    inverse: Sequence[tf.Tensor],
) -> list[Any]:
    """Outputs of the features out of the rows that came back: as `ops.lookup.look_up` gives them.

    replies: flat float32, lane after lane. lane_rows: int64 [lanes], rows in each. dims: by table. inverse: `Routed`'s.
    """
    own = [replace(f, bags=replace(f.bags, given=i)) for f, i in zip(features, inverse, strict=True)]
    if not kernels.enabled_for(replies):
        return reference.assemble(replies, lane_rows, lanes, dims, own)
    outputs = kernels.library().demb_assemble(
        replies,
        lane_rows,
        **feature_arguments(own, "zero"),
        num_features=len(own),
        lane_tables=[lane.table for lane in lanes],
        lane_widths=[len(lane.columns) for lane in lanes],
        lane_columns=[lane.columns.start for lane in lanes],
        lane_shards=[lane.shard for lane in lanes],
        dims=list(dims),
    )
    return shaped(own, outputs)


@tf.RegisterGradient("DembAssemble")
def _assemble_gradient(op: Any, *upstream: Any) -> list[Any]:
    features = features_of(op, 2)
    lanes = {
        k: list(op.get_attr(k)) for k in ("lane_tables", "lane_widths", "lane_columns", "lane_shards", "dims")
    }
    replies, weights = kernels.library().demb_assemble_gradient(
        *op.inputs[:2], **features, grads=upstream, **lanes
    )
    return [replies, None, *[None] * (len(features["ids"]) + len(features["splits"])), *weights]
