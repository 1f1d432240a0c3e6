"""A plan holds everything exactly once or is refused; its digest and its text tell what it is."""

import dataclasses
import json

import pytest

from distributed_embeddings.planner import (
    FeatureSpec,
    Placement,
    Pooling,
    Shard,
    ShardingPlan,
    ShardingType,
    TableSpec,
    make_plan,
)

TABLE = TableSpec("a", 6, 5, "sum", slot_elements_per_row=5)
ROWS, COLUMNS = range(6), range(5)


def plan_of(kind, *shards, world_size=3, pooling=Pooling.OWNER):
    placed = tuple(Shard("a", rank, rows, columns) for rank, rows, columns in shards)
    return ShardingPlan(
        world_size, (TABLE,), (FeatureSpec("x", "a"),), (Placement("a", ShardingType(kind), pooling, placed),)
    )


GOOD = [
    ("data_parallel", [(0, ROWS, COLUMNS), (1, ROWS, COLUMNS), (2, ROWS, COLUMNS)]),
    ("table_wise", [(2, ROWS, COLUMNS)]),
    ("column_wise", [(2, ROWS, range(3)), (0, ROWS, range(3, 5))]),
    ("row_wise", [(1, range(2), COLUMNS), (0, range(2, 6), COLUMNS)]),
    ("row_wise", [(1, range(0, 6, 2), COLUMNS), (2, range(1, 6, 2), COLUMNS)]),
]

BAD = [
    ("data_parallel", [(0, ROWS, COLUMNS), (1, ROWS, COLUMNS)], "one on each of the 3 ranks"),
    ("data_parallel", [(0, ROWS, COLUMNS), (2, ROWS, COLUMNS), (1, ROWS, COLUMNS)], "in rank order"),
    ("data_parallel", [(0, ROWS, COLUMNS), (1, range(5), COLUMNS), (2, ROWS, COLUMNS)], "the whole table"),
    ("table_wise", [(0, ROWS, COLUMNS), (1, ROWS, COLUMNS)], "exactly one"),
    ("table_wise", [(0, ROWS, range(4))], "the whole table"),
    ("table_wise", [], "must not be empty"),
    ("table_wise", [(3, ROWS, COLUMNS)], "`rank` must be an integer of 0 to 2"),
    ("table_wise", [(-1, ROWS, COLUMNS)], "`rank` must be an integer of 0 to 2"),
    ("table_wise", [(0, range(7), COLUMNS)], "`rows` must be"),
    ("table_wise", [(0, range(5, -1, -1), COLUMNS)], "`rows` must be"),
    ("column_wise", [(0, ROWS, range(3, 5)), (1, ROWS, range(3))], "column 0 comes next"),
    ("column_wise", [(0, ROWS, range(3)), (1, ROWS, range(2, 5))], "column 3 comes next"),
    ("column_wise", [(0, ROWS, range(3)), (1, ROWS, range(4, 5))], "column 3 comes next"),
    ("column_wise", [(0, ROWS, range(3)), (1, ROWS, range(3, 4))], "those from 4 are on no worker"),
    ("column_wise", [(0, ROWS, range(3)), (0, ROWS, range(3, 5))], "at most one a rank"),
    ("column_wise", [(0, range(3), range(3)), (1, ROWS, range(3, 5))], "of all rows"),
    ("column_wise", [(0, ROWS, range(0, 5, 2)), (1, ROWS, range(1, 5, 2))], "column 0 comes next"),
    ("row_wise", [(0, range(2), COLUMNS), (1, range(3, 6), COLUMNS)], "row 2 comes next"),
    ("row_wise", [(0, range(4), COLUMNS), (1, range(3, 6), COLUMNS)], "row 4 comes next"),
    ("row_wise", [(0, range(2), COLUMNS), (1, range(2, 5), COLUMNS)], "those from 5 are on no worker"),
    ("row_wise", [(0, range(3, 6), COLUMNS), (1, range(3), COLUMNS)], "row 0 comes next"),
    ("row_wise", [(0, range(0, 6, 3), COLUMNS), (1, range(1, 6, 3), COLUMNS)], "comes next"),
    ("row_wise", [(0, range(1, 6, 2), COLUMNS), (1, range(0, 6, 2), COLUMNS)], "comes next"),
    ("row_wise", [(0, range(3), COLUMNS), (0, range(3, 6), COLUMNS)], "at most one a rank"),
    ("row_wise", [(0, range(3), range(4)), (1, range(3, 6), COLUMNS)], "of all columns"),
    ("row_wise", [(0, range(0), COLUMNS), (1, ROWS, COLUMNS)], "`rows` must be"),
]


@pytest.mark.parametrize("kind, shards", GOOD)
def test_a_plan_that_holds_everything_once_is_taken_and_survives_json(kind, shards):
    plan = plan_of(kind, *shards)
    assert ShardingPlan.from_json(plan.to_json(indent=1)) == plan
    assert sum(plan.memory_bytes(rank) for rank in range(3)) == 6 * 10 * 4 * (
        3 if kind == "data_parallel" else 1
    )


@pytest.mark.parametrize("kind, shards, message", BAD)
def test_a_plan_that_does_not_is_refused_with_the_reason(kind, shards, message):
    with pytest.raises(ValueError, match=message) as error:
        plan_of(kind, *shards)
    assert "'a'" in str(error.value)


PLACED = Placement("a", ShardingType.TABLE_WISE, Pooling.OWNER, (Shard("a", 0, ROWS, COLUMNS),))


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"world_size": 0}, "`world_size` must be"),
        ({"tables": (TABLE, TABLE)}, "`tables` must have unique names"),
        ({"features": (FeatureSpec("x", "a"),) * 2}, "`features` must have unique names"),
        ({"features": (FeatureSpec("x", "b"),)}, "table='b' in feature 'x'"),
        ({"features": (TABLE,)}, "must be of FeatureSpec"),
        ({"placements": ()}, "none for table 'a'"),
        ({"placements": (PLACED, PLACED)}, "`placements` must have unique names"),
        ({"placements": (PLACED, dataclasses.replace(PLACED, table="b"))}, "Received: table='b'"),
        ({"placements": (dataclasses.replace(PLACED, sharding="table_wise"),)}, "must be a ShardingType"),
        ({"strategy": None}, "`strategy` must be a string"),
    ],
)
def test_a_plan_of_wrong_names_is_refused(fields, message):
    plan = plan_of(*GOOD[1][:1], *GOOD[1][1])
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(plan, **fields)


def many(world_size=4):
    tables = [TableSpec("tiny", 3, 2), TableSpec("big", 4000, 16, "sum"), TableSpec("mid", 300, 64, "mean")]
    features = [FeatureSpec("p", "mid"), FeatureSpec("q", "tiny"), FeatureSpec("r", "mid", None, True)]
    return make_plan(tables, features, world_size)


def test_questions_about_a_plan():
    plan = many()
    assert plan.table("mid").embedding_dim == 64
    assert plan.table_index("mid") == 2
    assert plan.placement("tiny").sharding is ShardingType.DATA_PARALLEL
    assert plan.features_of("mid") == (0, 2)
    assert plan.features_of("big") == ()
    assert [shard.table for shard in plan.shards_on(3)][:2] == ["tiny", "big"]
    assert plan.placement("big").shards[1].shape == (1000, 16)
    assert plan.placement("big").shards[1].num_elements == 16000
    for ask in (plan.table, plan.placement, plan.features_of):
        with pytest.raises(ValueError, match="table='none'"):
            ask("none")
    with pytest.raises(ValueError, match="`rank` must be"):
        plan.shards_on(4)


CHANGES = [
    lambda data: data.update(strategy="x"),
    lambda data: data["tables"][0].update(vocabulary_size=4),
    lambda data: data["tables"][2].update(combiner="sum"),
    lambda data: data["tables"][2].update(initializer={"class_name": "Zeros"}),
    lambda data: data["features"][0].update(hotness=2),
    lambda data: data["features"][2].update(weighted=False),
    lambda data: data["features"].reverse(),
    lambda data: data["placements"][1].update(pooling="owner"),
    lambda data: data["placements"][0].update(pooling="owner"),
]


@pytest.mark.parametrize("changed", CHANGES)
def test_the_digest_changes_with_anything(changed):
    plan = many()
    data = json.loads(plan.to_json())
    changed(data)
    assert ShardingPlan.from_json(json.dumps(data)).digest != plan.digest


def test_the_digest_tells_contiguous_from_cyclic_rows_of_one_each():
    # range(0, 3, 3) == range(0, 1) in Python: the plans compare equal where every shard has one row.
    tables, digests = [TableSpec("a", 3, 2)], set()
    for layout in ("cyclic", "contiguous"):
        digests.add(make_plan(tables, [], 3, "basic", row_slice_threshold=1, row_layout=layout).digest)
    assert len(digests) == 2


@pytest.mark.parametrize(
    "changed, message",
    [
        (lambda data: data.update(format="x"), "`text` must be JSON with"),
        (lambda data: data.update(version=99), "`version` must be 1"),
        (lambda data: data.pop("tables"), "`tables` must be"),
        (lambda data: data.update(world_size=True), "`world_size` must be"),
        (lambda data: data["tables"][0].update(rows=1), "no field 'rows'"),
        (lambda data: data["placements"][1].update(table="none"), "Received: table='none' in placement 1"),
        (lambda data: data["placements"][1].update(sharding="x"), "`sharding` must be"),
        (
            lambda data: data["placements"][1].pop("shards"),
            r"`shards` must be .* placement 1 \(table 'big'\)",
        ),
        (
            lambda data: data["placements"][1]["shards"][0].update(rows=[0, 4]),
            "`rows` must be .start, stop, step",
        ),
        (
            lambda data: data["placements"][1]["shards"][0].update(rows=[0, 9, 0]),
            "`rows` must be .start, stop, step",
        ),
        (lambda data: data["placements"][1]["shards"].pop(), "comes next"),
    ],
)
def test_json_that_is_no_plan_is_refused_with_the_place(changed, message):
    data = json.loads(many().to_json())
    changed(data)
    with pytest.raises(ValueError, match=message):
        ShardingPlan.from_json(json.dumps(data))


@pytest.mark.parametrize("text", ["", "{", "[]", b"\xff\xfe\x00", many().to_json()[:-5]])
def test_text_that_is_no_json_is_refused(text):
    with pytest.raises(ValueError, match="`text` must be"):
        ShardingPlan.from_json(text)


def test_the_text_names_every_table_and_what_each_rank_holds():
    plan = many()
    lines = str(plan).splitlines()
    big = next(line for line in lines if line.startswith("big"))
    for part in ("4,000×16", "sum", "row_wise (cyclic)", "destination", "62.5 KiB", "all 4"):
        assert part in big
    assert any(line.startswith("tiny") and "data_parallel" in line and "24 B" in line for line in lines)
    for rank in range(4):
        assert any(line.startswith(f"{rank} ") and line.endswith("KiB") for line in lines)
    assert plan.digest[:12] in lines[0]


def test_the_text_of_many_tables_and_ranks_stays_short():
    tables = [TableSpec(f"t{i}", 100_000 + i % 3, 16) for i in range(600)]
    text = str(make_plan(tables, [], 128))
    assert len(text.splitlines()) < 40
    assert "t0 +199 alike" in text
    assert "… 120 more ranks" in text
