"""Table-wise and column-wise: every shard has all rows, so every shard gets all ids; its columns come back.

Table-wise is the case of one shard. Pooled at the owner, a feature's bags travel and sums come back. Pooled at the
destination, each id of the table travels once and rows come back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from distributed_embeddings.ops.bags import Bags, combiner_scale, pool, unpooled
from distributed_embeddings.ops.take import take
from distributed_embeddings.planner import Lane, TableSpec
from distributed_embeddings.sharding.exchange import Request


class ColumnWise:
    """Routes the features of one table. lanes: in column order (owner pooling: for each shard every feature)."""

    def __init__(self, table: TableSpec, lanes: Sequence[Lane]) -> None:
        self._table = table
        self._lanes = tuple(lanes)

    def route(self, bags: Mapping[int, Bags]) -> dict[Lane, Request]:
        """Requests for the table's lanes; bags: feature index → its bags."""
        requests = {}
        for lane in self._lanes:
            (feature,) = lane.features
            requests[lane] = owner_request(bags[feature], lane)
        return requests

    def assemble(self, bags: Mapping[int, Bags], replies: Mapping[Lane, tf.Tensor]) -> dict[int, Any]:
        """Outputs by feature index: the column slices side by side."""
        outputs = {}
        for feature, own in bags.items():
            slices = [replies[lane] for lane in self._lanes if lane.features == (feature,)]
            joined = slices[0] if len(slices) == 1 else tf.concat(slices, 1)
            if self._table.combiner is None:
                outputs[feature] = unpooled(joined, own)
            else:
                outputs[feature] = joined * combiner_scale(own, self._table.combiner)
        return outputs


class ColumnWiseShared:
    """Destination pooling: one stream of unique ids for all features of the table."""

    def __init__(self, table: TableSpec, lanes: Sequence[Lane]) -> None:
        self._table = table
        self._lanes = tuple(lanes)
        self._inverse: tf.Tensor | None = None

    def route(self, bags: Mapping[int, Bags]) -> dict[Lane, Request]:
        rows, self._inverse = unique_rows(bags)
        request = Request(rows, tf.size(rows, tf.int64))
        return dict.fromkeys(self._lanes, request)

    def assemble(self, bags: Mapping[int, Bags], replies: Mapping[Lane, tf.Tensor]) -> dict[int, Any]:
        slices = [replies[lane] for lane in self._lanes]
        rows = slices[0] if len(slices) == 1 else tf.concat(slices, 1)
        return pool_features(rows, self._inverse, bags, self._table.combiner)


def owner_request(bags: Bags, lane: Lane) -> Request:
    """All ids of a feature to one owner, with what the owner needs to pool them."""
    if not lane.pooled:
        return Request(bags.ids, tf.size(bags.ids, tf.int64))
    return Request(bags.ids, bags.batch_size, bags.hotness, bags.lengths, bags.weights)


def unique_rows(bags: Mapping[int, Bags]) -> tuple[tf.Tensor, tf.Tensor]:
    """Unique ids over all features of a table, and where each id of their concatenation is among them (int64)."""
    ids = tf.concat([b.ids for b in bags.values()], 0)
    rows, inverse = tf.unique(ids, out_idx=tf.int64)
    return rows, inverse


def pool_features(
    rows: tf.Tensor, inverse: tf.Tensor, bags: Mapping[int, Bags], combiner: str | None
) -> dict[int, Any]:
    """Unique rows [u, dim] → every feature's output."""
    sizes = tf.stack([tf.size(b.ids, tf.int64) for b in bags.values()])
    indices = tf.split(inverse, sizes, num=len(bags))
    return {
        feature: pool(take(rows, index), own, combiner)
        for (feature, own), index in zip(bags.items(), indices, strict=True)
    }
