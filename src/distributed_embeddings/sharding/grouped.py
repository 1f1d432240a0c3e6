"""One lookup of all features over all ranks where every lane is shared: each row of a table travels once.

The whole way is grouped ops: route, exchange, look up, exchange, assemble; vectors and gradients are where the next
step wants them, and nothing is cut or joined in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from distributed_embeddings.comm import Communicator
from distributed_embeddings.ops.bags import Bags
from distributed_embeddings.ops.block import Block
from distributed_embeddings.ops.features import Feature
from distributed_embeddings.ops.lanes import look_up_lanes
from distributed_embeddings.ops.routing import ReplyLane, RoutedTable, assemble, route
from distributed_embeddings.planner import Lane, Layout, Placement, Shard, ShardingType, TableSpec
from distributed_embeddings.sharding.exchange import (
    Announced,
    Request,
    differentiable_all_to_all,
    exchange_rows,
)


def is_grouped(layout: Layout) -> bool:
    """Whether rows travel for all tables, and none is pooled at its owner."""
    return bool(layout.lanes) and all(lane.shared for lane in layout.lanes)


class GroupedLookup:
    """The steps of one call, in their order: `route`, then `answer`, then `assemble`."""

    def __init__(self, comm: Communicator, layout: Layout, bags: Sequence[Bags]) -> None:
        self._comm = comm
        self._layout = layout
        self._wire = Wire(layout)
        self._features = self._wire.features(dict(enumerate(bags)))

    def route(self, invalid_ids: str) -> tuple[dict[Lane, Request], tf.Tensor, tf.Tensor]:
        """This rank's requests, its invalid ids by feature (int64), and whether the call must fail (bool scalar)."""
        routed = route(self._wire.routed_tables(), self._features, invalid_ids)
        requests = {}
        for lane in self._layout.lanes:
            rows = routed.rows[self._wire.table(lane)]
            # Every column slice has all rows; a slice of rows has its own.
            mine = rows[self._wire.shard_number(lane)] if len(rows) > 1 else rows[0]
            requests[lane] = Request(mine, tf.size(mine, tf.int64))
        self.inverse, self._requests = routed.inverse, requests
        return requests, routed.invalid, routed.wrong

    def answer(
        self,
        shards: Mapping[Shard, Block],
        announced: Announced,
        anchor: tf.Variable | None,
        wire_dtype: tf.DType,
        gradient_scale: tf.Tensor,
    ) -> tf.Tensor:
        """Exchange rows and vectors; returns the vectors this rank asked for, flat float32, by lane."""
        rows = exchange_rows(self._comm, self._layout, self._requests)
        lanes = self._layout.lanes_of(self._comm.rank)
        if lanes:
            blocks = [shards[lane.shard] for lane in lanes]
            vectors, splits = look_up_lanes(blocks, range(len(lanes)), rows, announced.counts)
        else:
            vectors, splits = tf.zeros([0]), tf.zeros([self._comm.size], tf.int64)
        return differentiable_all_to_all(
            self._comm, vectors, splits, wire_dtype, gradient_scale, "vectors", anchor
        )

    def assemble(self, replies: tf.Tensor) -> dict[int, Any]:
        """Outputs by feature index, for the features that were routed."""
        counts = tf.stack([self._requests[lane].num_replies for lane in self._layout.lanes])
        routed = self._wire.routed_features()
        outputs = assemble(
            replies,
            counts,
            self._wire.reply_lanes(),
            self._wire.dims(),
            [self._features[i] for i in routed],
            [self.inverse[i] for i in routed],
        )
        return dict(zip(routed, outputs, strict=True))


class Wire:
    """What a layout whose lanes are all shared says of the grouped ops' arguments."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        plan = layout.plan
        used = {f.table for f in plan.features}
        self._tables = [t for t in plan.tables if t.name in used]
        self._placements = [plan.placement(t.name) for t in self._tables]
        self._index = {t.name: k for k, t in enumerate(self._tables)}

    def features(self, bags: Mapping[int, Bags]) -> list[Feature]:
        """The features given, by feature index, as the grouped ops take them."""
        tables = {i: self._index[self._layout.plan.features[i].table] for i in bags}
        return [
            Feature(self._layout.plan.features[i].name, t, self._tables[t].combiner, bags[i])
            for i, t in tables.items()
        ]

    def routed_tables(self) -> list[RoutedTable]:
        return [_routed(t, p) for t, p in zip(self._tables, self._placements, strict=True)]

    def routed_features(self) -> list[int]:
        """The features whose tables are not on every rank."""
        return [i for i in range(len(self._layout.plan.features)) if self._layout.sources(i)]

    def reply_lanes(self) -> list[ReplyLane]:
        return [
            ReplyLane(self.table(lane), self.shard_number(lane), lane.shard.columns)
            for lane in self._layout.lanes
        ]

    def dims(self) -> list[int]:
        """Columns of every table."""
        return [t.embedding_dim for t in self._tables]

    def table(self, lane: Lane) -> int:
        """The lane's table, as the ops count."""
        return self._index[lane.shard.table]

    def shard_number(self, lane: Lane) -> int:
        """Which of its table's shards the lane reads."""
        return self._placements[self.table(lane)].shards.index(lane.shard)


def _routed(table: TableSpec, placement: Placement) -> RoutedTable:
    rows = table.vocabulary_size
    if placement.sharding is ShardingType.DATA_PARALLEL:
        return RoutedTable(rows, None)
    if placement.sharding is not ShardingType.ROW_WISE or len(placement.shards) == 1:
        return RoutedTable(rows, (rows,))
    if placement.shards[0].rows.step > 1:
        return RoutedTable(rows, (rows,) * len(placement.shards), cyclic=True)
    return RoutedTable(rows, tuple(s.rows.stop for s in placement.shards))
