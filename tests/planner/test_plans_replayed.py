"""Any random plan puts every column of every row in its place; a plan that is tampered with does not."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_strategies import plan_or_none, problems, settings_of_plans, world_sizes

from distributed_embeddings.planner import (
    FeatureSpec,
    Pooling,
    ShardingPlan,
    ShardingType,
    TableSpec,
    make_layout,
    make_plan,
    replay,
)


def every_id(plan):
    """All ids of each feature's table, backwards, and the first one once more."""
    return [[*reversed(range(plan.table(each.table).vocabulary_size)), 0] for each in plan.features]


def check_plan(plan):
    ids = every_id(plan)
    outputs = replay(plan, ids)
    assert len(outputs) == len(plan.features)
    for feature, asked, cells in zip(plan.features, ids, outputs, strict=True):
        table = plan.table(feature.table)
        assert cells.shape == (len(asked), table.embedding_dim, 3)
        assert (cells[..., 0] == plan.tables.index(table)).all()
        assert (cells[..., 1] == np.array(asked)[:, None]).all()
        assert (cells[..., 2] == np.arange(table.embedding_dim)).all()
    loaded = ShardingPlan.from_json(plan.to_json())
    assert loaded == plan
    assert loaded.digest == plan.digest
    assert loaded.to_json(indent=2) == plan.to_json(indent=2)


def check_everyone_has_a_part(plan):
    kinds = {placement.sharding for placement in plan.placements}
    if kinds != {ShardingType.DATA_PARALLEL}:
        for rank in range(plan.world_size):
            held = {plan.placement(shard.table).sharding for shard in plan.shards_on(rank)}
            assert held - {ShardingType.DATA_PARALLEL}, f"rank {rank} holds only copies"


@settings(max_examples=400, deadline=None)
@given(problems(), world_sizes(), settings_of_plans())
def test_a_random_plan_puts_every_column_in_its_place(problem, world_size, chosen):
    plan = plan_or_none(*problem, world_size, **chosen)
    if plan is not None:
        check_plan(plan)
        check_everyone_has_a_part(plan)
        assert make_plan(*problem, world_size, **chosen) == plan


@settings(max_examples=40, deadline=None)
@given(problems(max_tables=30), st.integers(17, 64), settings_of_plans())
def test_a_random_plan_for_many_workers_puts_every_column_in_its_place(problem, world_size, chosen):
    plan = plan_or_none(*problem, world_size, **chosen)
    if plan is not None:
        check_plan(plan)
        check_everyone_has_a_part(plan)


@settings(max_examples=100, deadline=None)
@given(problems(), world_sizes())
def test_auto_always_finds_a_plan(problem, world_size):
    check_everyone_has_a_part(make_plan(*problem, world_size))


def swapped(layout, field):
    """The layout with the first two lanes of feature 0 told each other's `field`."""
    first, second = layout.sources(0)[:2]

    def told(lane, other):
        shard = dataclasses.replace(lane.shard, **{field: getattr(other.shard, field)})
        return dataclasses.replace(lane, shard=shard, rank=shard.rank)

    changed = {id(first): told(first, second), id(second): told(second, first)}
    return dataclasses.replace(layout, lanes=tuple(changed.get(id(lane), lane) for lane in layout.lanes))


def cut_plan(**chosen):
    tables = [TableSpec("a", 12, 6, "sum"), TableSpec("b", 9, 4, "mean")]
    return make_plan(tables, [FeatureSpec("x", "a"), FeatureSpec("y", "b")], 2, "basic", **chosen)


@pytest.mark.parametrize(
    "cut, field", [("column", "rank"), ("column", "columns"), ("row", "rank"), ("row", "rows")]
)
@pytest.mark.parametrize("pooling", ["destination", "owner"])
def test_replay_fails_when_two_lanes_are_swapped(cut, field, pooling):
    chosen = {f"{cut}_slice_threshold": 40}
    plan = cut_plan(row_pooling=pooling, **chosen)
    layout = make_layout(plan)
    replay(plan, every_id(plan), layout)
    with pytest.raises(ValueError, match="must"):
        replay(plan, every_id(plan), swapped(layout, field))


def test_replay_fails_when_a_lane_answers_for_another_table():
    plan = cut_plan()
    layout = make_layout(plan)
    first, second = layout.lanes
    lanes = (
        dataclasses.replace(first, features=second.features),
        dataclasses.replace(second, features=first.features),
    )
    with pytest.raises(ValueError, match="must"):
        replay(plan, every_id(plan), dataclasses.replace(layout, lanes=lanes))


def test_replay_fails_when_rows_are_answered_by_nobody_or_twice():
    plan = cut_plan(row_slice_threshold=40)
    layout = make_layout(plan)
    lost = layout.sources(0)[0]
    for lanes in ([lane for lane in layout.lanes if lane is not lost], [*layout.lanes, lost]):
        with pytest.raises(ValueError, match=r"must be on exactly one rank"):
            replay(plan, every_id(plan), dataclasses.replace(layout, lanes=tuple(lanes)))


@pytest.mark.parametrize("ids", [[[0]], [[0], [9]], [[-1], [0]], [[[0]], [0]], [[0], [0], [0]]])
def test_replay_refuses_ids_that_are_not_of_the_features(ids):
    with pytest.raises(ValueError, match="`ids` must hold"):
        replay(cut_plan(), ids)


def test_pooling_of_column_slices_can_be_moved_to_the_destination():
    plan = cut_plan(column_slice_threshold=40)
    moved = dataclasses.replace(
        plan,
        placements=tuple(dataclasses.replace(each, pooling=Pooling.DESTINATION) for each in plan.placements),
    )
    check_plan(moved)
    assert all(lane.shared for lane in make_layout(moved).lanes)
