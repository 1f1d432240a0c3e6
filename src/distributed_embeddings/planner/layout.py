"""What a plan means for the wire: the lanes of ids to shards and of vectors back, equal on every rank."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from distributed_embeddings.planner.placement import Placement, Pooling, Shard, ShardingType
from distributed_embeddings.planner.plan import ShardingPlan
from distributed_embeddings.planner.specs import TableSpec, check_int


@dataclass(frozen=True)
class Lane:
    """A stream of ids from every rank to one shard and of vectors back.

    rank: the owner, `shard.rank`. slot: position among the lanes of that rank. features: indices into
    `plan.features` answered by it. pooled: the owner sums each bag (owner pooling of a table with a
    combiner). shared: one id stream for all features of the table (destination pooling), so that unique ids
    travel once.
    """

    rank: int
    slot: int
    shard: Shard
    features: tuple[int, ...]
    pooled: bool
    shared: bool


@dataclass(frozen=True)
class Layout:
    """The lanes of a plan, by rank, then slot; none for data-parallel tables and those no feature reads."""

    plan: ShardingPlan
    lanes: tuple[Lane, ...]

    @cached_property
    def _by_rank(self) -> tuple[tuple[Lane, ...], ...]:
        lanes: list[list[Lane]] = [[] for _ in range(self.plan.world_size)]
        for lane in self.lanes:
            lanes[lane.rank].append(lane)
        return tuple(map(tuple, lanes))

    @cached_property
    def _by_feature(self) -> tuple[tuple[Lane, ...], ...]:
        lanes: list[list[Lane]] = [[] for _ in self.plan.features]
        for lane in self.lanes:
            for feature in lane.features:
                lanes[feature].append(lane)
        # Column order for column slices, order of range starts for rows: both are the plan's shard order.
        return tuple(tuple(sorted(each, key=_shard_order)) for each in lanes)

    def lanes_of(self, rank: int) -> tuple[Lane, ...]:
        """Return the lanes that end at `rank`, in slot order."""
        return self._by_rank[check_int("this layout", "rank", rank, 0, self.plan.world_size - 1)]

    def sources(self, feature_index: int) -> tuple[Lane, ...]:
        """Return the lanes that answer a feature, in shard order; none when its table is data-parallel."""
        last = len(self.plan.features) - 1
        return self._by_feature[check_int("this layout", "feature_index", feature_index, 0, last)]


def _shard_order(lane: Lane) -> tuple[int, int]:
    return lane.shard.rows.start, lane.shard.columns.start


def make_layout(plan: ShardingPlan) -> Layout:
    """Return the lanes of `plan`; those of a rank are in order of table, then shard, then feature."""
    by_rank: list[list[Lane]] = [[] for _ in range(plan.world_size)]
    for table in plan.tables:
        placement, features = plan.placement(table.name), plan.features_of(table.name)
        if placement.sharding is ShardingType.DATA_PARALLEL or not features:
            continue
        for shard in placement.shards:
            mine = by_rank[shard.rank]
            mine.extend(_lanes(table, placement, shard, features, len(mine)))
    return Layout(plan, tuple(lane for lanes in by_rank for lane in lanes))


def _lanes(
    table: TableSpec, placement: Placement, shard: Shard, features: tuple[int, ...], slot: int
) -> list[Lane]:
    if placement.pooling is Pooling.DESTINATION:
        return [Lane(shard.rank, slot, shard, features, pooled=False, shared=True)]
    pooled = table.combiner is not None
    return [
        Lane(shard.rank, slot + i, shard, (feature,), pooled=pooled, shared=False)
        for i, feature in enumerate(features)
    ]
