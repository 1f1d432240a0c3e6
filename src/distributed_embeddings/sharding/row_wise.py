"""Row-wise: every shard has some rows and all columns; each id goes to the one rank that holds its row.

Pooled at the destination, each id of the table travels once and rows come back. Pooled at the owner, a feature's
bags are cut over the owners and partial sums come back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from distributed_embeddings.ops.bags import Bags, combiner_scale, unpooled
from distributed_embeddings.ops.take import permute
from distributed_embeddings.planner import Lane, Shard, TableSpec
from distributed_embeddings.sharding.column_wise import pool_features, unique_rows
from distributed_embeddings.sharding.exchange import Request


class RowWise:
    """Owner pooling (or no combiner): one lane a feature and shard."""

    def __init__(self, table: TableSpec, lanes: Sequence[Lane]) -> None:
        self._table = table
        self._lanes = tuple(lanes)
        self._positions: dict[int, list[tf.Tensor]] = {}

    def route(self, bags: Mapping[int, Bags]) -> dict[Lane, Request]:
        requests = {}
        for feature, own in bags.items():
            lanes = self._of(feature)
            parts, positions = partition(own.ids, [lane.shard for lane in lanes])
            self._positions[feature] = positions
            for lane, rows, where in zip(lanes, parts, positions, strict=True):
                requests[lane] = self._request(lane, own, rows, where)
        return requests

    def _request(self, lane: Lane, bags: Bags, rows: tf.Tensor, where: tf.Tensor) -> Request:
        if not lane.pooled:
            return Request(rows, tf.size(rows, tf.int64))
        segments = tf.gather(bags.segment_ids(), where)
        lengths = tf.math.unsorted_segment_sum(tf.ones_like(segments), segments, bags.batch_size)
        weights = None if bags.weights is None else tf.gather(bags.weights, where)
        return Request(rows, bags.batch_size, None, lengths, weights)

    def assemble(self, bags: Mapping[int, Bags], replies: Mapping[Lane, tf.Tensor]) -> dict[int, Any]:
        outputs = {}
        for feature, own in bags.items():
            parts = [replies[lane] for lane in self._of(feature)]
            if self._table.combiner is None:
                outputs[feature] = unpooled(stitch(self._positions[feature], parts), own)
            else:
                outputs[feature] = tf.add_n(parts) * combiner_scale(own, self._table.combiner)
        return outputs

    def _of(self, feature: int) -> list[Lane]:
        return [lane for lane in self._lanes if lane.features == (feature,)]


class RowWiseShared:
    """Destination pooling: one stream of unique ids a shard for all features of the table."""

    def __init__(self, table: TableSpec, lanes: Sequence[Lane]) -> None:
        self._table = table
        self._lanes = tuple(lanes)
        self._inverse: tf.Tensor | None = None
        self._positions: list[tf.Tensor] = []

    def route(self, bags: Mapping[int, Bags]) -> dict[Lane, Request]:
        ids, self._inverse = unique_rows(bags)
        parts, self._positions = partition(ids, [lane.shard for lane in self._lanes])
        return {
            lane: Request(rows, tf.size(rows, tf.int64))
            for lane, rows in zip(self._lanes, parts, strict=True)
        }

    def assemble(self, bags: Mapping[int, Bags], replies: Mapping[Lane, tf.Tensor]) -> dict[int, Any]:
        rows = stitch(self._positions, [replies[lane] for lane in self._lanes])
        return pool_features(rows, self._inverse, bags, self._table.combiner)


def partition(ids: tf.Tensor, shards: Sequence[Shard]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Deal ids to the shards of a row-wise table, in order.

    ids: int64 [n], valid. Returns for each shard its local rows and their positions among `ids`, int64.
    """
    owner = tf.cast(_owner(ids, shards), tf.int32)
    count = len(shards)
    parts = tf.dynamic_partition(ids, owner, count)
    positions = tf.dynamic_partition(tf.range(tf.size(ids, tf.int64)), owner, count)
    return [local_rows(part, shard) for part, shard in zip(parts, shards, strict=True)], positions


def local_rows(ids: tf.Tensor, shard: Shard) -> tf.Tensor:
    """Rows of the shard's own block that hold the given rows of the table."""
    return (ids - shard.rows.start) // shard.rows.step


def stitch(positions: Sequence[tf.Tensor], parts: Sequence[tf.Tensor]) -> tf.Tensor:
    """Put the parts' rows back where the ids were: the inverse of `partition`."""
    if len(parts) == 1:
        return parts[0]
    return permute(tf.concat(parts, 0), tf.concat(positions, 0))


def _owner(ids: tf.Tensor, shards: Sequence[Shard]) -> tf.Tensor:
    if len(shards) == 1:
        return tf.zeros_like(ids)
    if shards[0].rows.step > 1:
        return tf.math.floormod(ids, len(shards))
    ends = tf.constant([s.rows.stop for s in shards[:-1]], tf.int64)
    return tf.searchsorted(ends, ids, side="right", out_type=tf.int64)
