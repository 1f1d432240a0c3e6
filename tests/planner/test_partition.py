"""Strategies and thresholds: which table is cut how, and how even the memory is."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_strategies import NAMES, plan_or_none, problems, settings_of_plans, world_sizes

from distributed_embeddings.planner import FeatureSpec, Pooling, ShardingType, TableSpec, Topology, make_plan

COPY, WHOLE, COLUMNS, ROWS = ShardingType


def tables_of(*shapes):
    return [TableSpec(f"t{i}", rows, dim, "sum") for i, (rows, dim) in enumerate(shapes)]


def kinds(plan):
    return [placement.sharding for placement in plan.placements]


def ranks(plan):
    return [[shard.rank for shard in placement.shards] for placement in plan.placements]


def widths(plan, table=0):
    return [len(shard.columns) for shard in plan.placements[table].shards]


def fullest(plan):
    return max(plan.memory_bytes(rank) for rank in range(plan.world_size))


SIZES = tables_of((10, 4), (50, 4), (20, 4), (40, 4), (30, 4))


def test_basic_deals_in_the_given_order():
    assert ranks(make_plan(SIZES, [], 2, "basic")) == [[0], [1], [0], [1], [0]]


def test_memory_balanced_deals_by_falling_size_there_and_back():
    assert ranks(make_plan(SIZES, [], 2, "memory_balanced")) == [[0], [0], [0], [1], [1]]


def test_memory_optimized_evens_memory():
    plan = make_plan(SIZES, [], 2, "memory_optimized")
    assert sorted(plan.memory_bytes(rank) for rank in range(2)) == [70 * 16, 80 * 16]


def test_size_counts_slots_and_dtype():
    tables = [TableSpec("a", 10, 4, dtype="float64", slot_elements_per_row=8), TableSpec("b", 25, 4)]
    tables += [TableSpec("c", 25, 4), TableSpec("d", 25, 4)]
    # 960 bytes against 400 each, though 40 elements against 100 each.
    assert ranks(make_plan(tables, [], 2, "memory_optimized")) == [[0], [1], [1], [1]]
    assert make_plan(tables, [], 1).memory_bytes(0) == 10 * 12 * 8 + 3 * 25 * 16


@settings(max_examples=200, deadline=None)
@given(problems(), world_sizes(), settings_of_plans())
def test_memory_optimized_is_never_fuller_than_the_others(problem, world_size, chosen):
    others = {**chosen, "row_layout": "cyclic"}
    plans = [plan_or_none(*problem, world_size, **{**others, "strategy": name}) for name in NAMES[1:]]
    if None not in plans:
        assert fullest(plans[2]) == min(map(fullest, plans))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 500), min_size=1, max_size=30), st.integers(2, 8))
def test_memory_optimized_keeps_the_greedy_bound(rows, world_size):
    plan = make_plan(tables_of(*((size, world_size) for size in rows)), [], world_size, "memory_optimized")
    mean = sum(plan.memory_bytes(rank) for rank in range(world_size)) / world_size
    largest = max(plan.shard_bytes(shard) for placement in plan.placements for shard in placement.shards)
    assert fullest(plan) <= mean + largest


@pytest.mark.parametrize("strategy", NAMES)
def test_thresholds_apply_in_their_order_with_every_strategy(strategy):
    tables = tables_of((10, 2), (1000, 8), (300, 8), (100, 8), (101, 8), (10, 2))
    chosen = {"data_parallel_threshold": 800, "row_slice_threshold": 2400, "column_slice_threshold": 807}
    plan = make_plan(tables, [], 4, strategy, **chosen)
    assert kinds(plan)[:2] == [COPY, ROWS]
    assert kinds(plan)[3] is WHOLE  # 800 elements: neither below the first nor above the last threshold
    assert kinds(plan)[5] is COPY
    assert sum(widths(plan, 2)) == 8
    assert max(widths(plan, 2)) <= 8
    exact = make_plan(tables, [], 4, strategy, **(chosen | {"row_slice_threshold": 2399}))
    assert kinds(exact)[2] is ROWS  # 2,400 elements are above 2,399, not above 2,400


@pytest.mark.parametrize(
    "dim, world_size, threshold, expected",
    [
        (8, 8, 799, [4, 4]),
        (8, 8, 800, [8]),
        (8, 8, 400, [4, 4]),
        (8, 8, 399, [2, 2, 2, 2]),
        (7, 8, 400, [4, 3]),
        (7, 8, 399, [2, 2, 2, 1]),
        (7, 8, 1, [2, 2, 2, 1]),  # as far as columns go: 4 is the largest power of two of 7 columns
        (8, 4, 1, [2, 2, 2, 2]),  # as far as workers go
        (1, 4, 1, [1]),
    ],
)
def test_columns_are_cut_in_the_smallest_power_of_two(dim, world_size, threshold, expected):
    others = tables_of(*[(50, 4)] * 8)[1:]
    tables = [TableSpec("first", 100, dim, "sum"), *others]
    plan = make_plan(tables, [], world_size, "basic", column_slice_threshold=threshold)
    assert widths(plan) == expected


def test_slices_that_meet_on_a_rank_become_one_shard():
    # 50 to rank 0, then both slices of 40 to rank 1: there and back.
    plan = make_plan(tables_of((50, 1), (10, 8)), [], 2, "memory_balanced", column_slice_threshold=50)
    assert ranks(plan) == [[0], [1]]
    assert kinds(plan) == [WHOLE, WHOLE]
    assert widths(plan, 1) == [8]


@pytest.mark.parametrize("strategy", NAMES[1:])
def test_fewer_tables_than_workers_are_cut_as_little_as_needed(strategy):
    plan = make_plan(tables_of((100, 8), (10, 8)), [], 4, strategy)
    assert kinds(plan) == [COLUMNS, WHOLE]
    assert widths(plan) == [3, 3, 2]


@pytest.mark.parametrize("strategy", NAMES[1:])
def test_rows_are_cut_where_columns_are_not_enough(strategy):
    plan = make_plan(tables_of((100, 2), (50, 2)), [], 5, strategy)
    assert kinds(plan) == [ROWS, WHOLE]
    assert [shard.rows for shard in plan.placements[0].shards] == [
        range(i, i + 20) for i in range(0, 100, 20)
    ]
    assert plan.placements[0].pooling is Pooling.DESTINATION


@pytest.mark.parametrize("strategy", NAMES[1:])
def test_too_many_workers_are_an_error_that_names_the_settings(strategy):
    with pytest.raises(
        ValueError, match=rf"world_size=9 with strategy='{strategy}'.*2 table.*data_parallel_threshold"
    ):
        make_plan(tables_of((3, 2), (4, 2)), [], 9, strategy)
    plan = make_plan(tables_of((3, 2), (4, 2)), [], 9, strategy, data_parallel_threshold=9)
    assert kinds(plan) == [COPY, COPY]


def test_ranks_without_rows_of_a_short_table_are_dealt_to_first():
    plan = make_plan(tables_of((3, 100), (4, 8), (5, 8)), [], 5, "basic", row_slice_threshold=100)
    assert ranks(plan) == [[0, 1, 2], [3], [4]]


def test_one_worker_holds_every_table_whole():
    chosen = {"data_parallel_threshold": 100, "row_slice_threshold": 10, "column_slice_threshold": 5}
    for strategy in NAMES:
        plan = make_plan(SIZES, [], 1, strategy, **chosen)
        assert kinds(plan) == [WHOLE] * 5


def test_auto_copies_tiny_tables_and_cuts_the_rows_of_giants():
    tables = tables_of((10, 8), (10**7, 16), *[(50_000, 16)] * 8, (2**14 // 16, 16))
    plan = make_plan(tables, [], 4)
    assert kinds(plan) == [COPY, ROWS] + [WHOLE] * 9
    assert [shard.rows for shard in plan.placements[1].shards] == [range(i, 10**7, 4) for i in range(4)]
    even = [plan.memory_bytes(rank) for rank in range(4)]
    assert max(even) < 1.01 * min(even)


def test_auto_cuts_columns_where_a_giant_has_too_few_rows():
    plan = make_plan(tables_of((3, 100_000), (1000, 20)), [], 4)
    assert kinds(plan)[0] is COLUMNS
    assert len(widths(plan)) == 4


def test_auto_leaves_slices_that_a_threshold_made_small_enough():
    tables = tables_of((100_000, 64), (50_000, 16))
    assert kinds(make_plan(tables, [], 2))[0] is ROWS
    assert kinds(make_plan(tables, [], 2, column_slice_threshold=3_200_000))[0] is COLUMNS


@pytest.mark.parametrize("pooling", ["owner", "destination", Pooling.OWNER])
@pytest.mark.parametrize("layout, step", [("cyclic", 2), ("contiguous", 1), (None, 1)])
def test_row_pooling_and_layout_are_as_asked(pooling, layout, step):
    chosen = {"row_slice_threshold": 10, "row_pooling": pooling, "row_layout": layout}
    (placement,) = make_plan(tables_of((9, 4)), [], 2, "basic", **chosen).placements
    assert placement.pooling is Pooling(pooling)
    assert [shard.rows.step for shard in placement.shards] == [step, step]
    assert [len(shard.rows) for shard in placement.shards] == [5, 4]


@pytest.mark.parametrize(
    "chosen, message",
    [
        ({"strategy": "best"}, "`strategy` must be one of"),
        ({"strategy": None}, "`strategy` must be one of"),
        ({"row_pooling": "sum"}, "`row_pooling` must be one of"),
        ({"row_layout": "hashed"}, "`row_layout` must be one of"),
        ({"row_slice_threshold": -1}, "`row_slice_threshold` must be"),
        ({"column_slice_threshold": 1e6}, "`column_slice_threshold` must be"),
        ({"data_parallel_threshold": True}, "`data_parallel_threshold` must be"),
        ({"topology": 0}, "`world_size` must be"),
        ({"topology": "2"}, "`world_size` must be"),
        ({"tables": [SIZES[0], SIZES[0]]}, "`tables` must have unique names"),
        ({"tables": ["t0"]}, "`tables` must be of TableSpec"),
        ({"features": [FeatureSpec("f", "none")]}, "table='none' in feature 'f'"),
    ],
)
def test_a_wrong_argument_is_named(chosen, message):
    with pytest.raises(ValueError, match=message):
        make_plan(**({"tables": SIZES, "features": [], "topology": 2} | chosen))


def test_a_plan_that_exceeds_the_device_is_refused_with_the_bytes_short():
    make_plan(SIZES, [], Topology(2, device_memory=80 * 16), "memory_optimized")
    with pytest.raises(
        ValueError, match=r"rank \d needs 1,280 bytes, 1 more. Largest there: t\d \(\d+ bytes\)"
    ):
        make_plan(SIZES, [], Topology(2, device_memory=80 * 16 - 1), "memory_optimized")


def test_two_thousand_tables_on_512_workers_are_all_placed():
    tables = [TableSpec(f"t{i}", 10 if i % 2 else 10**6 * (1 + i % 7), 64) for i in range(2000)]
    plan = make_plan(tables, [FeatureSpec(f"f{i}", f"t{i}") for i in range(2000)], 512)
    mean = sum(plan.memory_bytes(rank) for rank in range(512)) / 512
    assert fullest(plan) < 1.1 * mean
    assert len(plan.to_json()) < 2**20  # copies are implied, not written 512 times


def test_memory_optimized_counts_slices_that_merge_as_one():
    # Slots a row are kept once a shard, so that two slices of one table on one rank take less than their sum.
    tables = [
        TableSpec(f"t{i}", rows, 4, slot_elements_per_row=1) for i, rows in enumerate((9, 10, 11, 4, 7))
    ]
    for world_size in (2, 3, 4):
        for threshold in (0, 10, 20):
            plans = [
                make_plan(tables, [], world_size, name, column_slice_threshold=threshold)
                for name in NAMES[1:]
            ]
            assert fullest(plans[2]) == min(map(fullest, plans))
