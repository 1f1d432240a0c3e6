"""The lanes of a plan: order, slots, who is pooled and what is shared."""

import pytest
from hypothesis import given, settings
from plan_strategies import plan_or_none, problems, settings_of_plans, world_sizes

from distributed_embeddings.planner import (
    FeatureSpec,
    Placement,
    Pooling,
    Shard,
    ShardingPlan,
    ShardingType,
    TableSpec,
    make_layout,
)

COPY, WHOLE, COLUMNS, ROWS = ShardingType


def small_plan():
    tables = (
        TableSpec("columns", 4, 6, "sum"),
        TableSpec("copy", 2, 2, "sum"),
        TableSpec("rows", 4, 2, "mean"),
        TableSpec("apart", 4, 3),
        TableSpec("unread", 4, 3),
    )
    reads = ("rows", "columns", "apart", "copy", "columns", "rows")
    features = tuple(FeatureSpec(f"f{i}", name) for i, name in enumerate(reads))
    blocks = {
        "columns": (COLUMNS, Pooling.OWNER, [(1, range(4), range(2)), (0, range(4), range(2, 6))]),
        "copy": (COPY, Pooling.DESTINATION, [(0, range(2), range(2)), (1, range(2), range(2))]),
        "rows": (ROWS, Pooling.DESTINATION, [(1, range(0, 4, 2), range(2)), (0, range(1, 4, 2), range(2))]),
        "apart": (WHOLE, Pooling.OWNER, [(1, range(4), range(3))]),
        "unread": (WHOLE, Pooling.OWNER, [(1, range(4), range(3))]),
    }
    placements = tuple(
        Placement(name, kind, pooling, tuple(Shard(name, *block) for block in shards))
        for name, (kind, pooling, shards) in blocks.items()
    )
    return ShardingPlan(2, tables, features, placements)


def test_lanes_of_a_small_plan():
    layout = make_layout(small_plan())
    seen = [
        (lane.rank, lane.slot, lane.shard.table, lane.features, lane.pooled, lane.shared)
        for lane in layout.lanes
    ]
    assert seen == [
        (0, 0, "columns", (1,), True, False),
        (0, 1, "columns", (4,), True, False),
        (0, 2, "rows", (0, 5), False, True),
        (1, 0, "columns", (1,), True, False),
        (1, 1, "columns", (4,), True, False),
        (1, 2, "rows", (0, 5), False, True),
        (1, 3, "apart", (2,), False, False),
    ]
    assert [lane.rank for lane in layout.sources(4)] == [1, 0]  # column order, not rank order
    assert [lane.rank for lane in layout.sources(0)] == [1, 0]  # order of range starts
    assert layout.sources(3) == ()
    assert layout.lanes_of(1) == layout.lanes[3:]
    for ask in (layout.lanes_of, layout.sources):
        with pytest.raises(ValueError, match="must be an integer of 0 to"):
            ask(6)


@settings(max_examples=150, deadline=None)
@given(problems(), world_sizes(), settings_of_plans())
def test_lanes_of_a_random_plan(problem, world_size, chosen):
    plan = plan_or_none(*problem, world_size, **chosen)
    if plan is None:
        return
    layout = make_layout(plan)
    assert [lane for rank in range(world_size) for lane in layout.lanes_of(rank)] == list(layout.lanes)
    for rank in range(world_size):
        lanes = layout.lanes_of(rank)
        assert [lane.slot for lane in lanes] == list(range(len(lanes)))
        assert all(lane.rank == lane.shard.rank == rank for lane in lanes)
        order = [(plan.table_index(lane.shard.table), lane.features) for lane in lanes]
        assert order == sorted(order)
    for index, feature in enumerate(plan.features):
        placement, sources = plan.placement(feature.table), layout.sources(index)
        copied = placement.sharding is ShardingType.DATA_PARALLEL
        assert [lane.shard for lane in sources] == ([] if copied else list(placement.shards))
        for lane in sources:
            destination = placement.pooling is Pooling.DESTINATION
            assert lane.shared is destination
            assert lane.features == (plan.features_of(feature.table) if destination else (index,))
            assert lane.pooled is (not destination and plan.table(feature.table).combiner is not None)
