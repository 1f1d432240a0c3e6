"""Specs say which field of which table, feature or topology is wrong, and survive JSON."""

import json

import numpy as np
import pytest

from distributed_embeddings.planner import FeatureSpec, TableSpec, Topology


@pytest.mark.parametrize(
    "field, value",
    [
        ("name", ""),
        ("name", "  "),
        ("name", 3),
        ("vocabulary_size", 0),
        ("vocabulary_size", 2.0),
        ("vocabulary_size", True),
        ("embedding_dim", -1),
        ("embedding_dim", "8"),
        ("combiner", "max"),
        ("combiner", 1),
        ("dtype", "int32"),
        ("dtype", np.float32),
        ("slot_elements_per_row", -1),
        ("initializer", "uniform"),
        ("initializer", {"config": object()}),
        ("initializer", {"scale": float("nan")}),
    ],
)
def test_a_wrong_table_field_is_named(field, value):
    good = {"name": "C1", "vocabulary_size": 10, "embedding_dim": 4}
    TableSpec(**good)
    with pytest.raises(ValueError, match=f"^`{field}` must be .* Received: {field}=") as error:
        TableSpec(**(good | {field: value}))
    assert field == "name" or "C1" in str(error.value)


@pytest.mark.parametrize(
    "field, value",
    [("name", ""), ("table", None), ("hotness", 0), ("hotness", 1.5), ("weighted", 1)],
)
def test_a_wrong_feature_field_is_named(field, value):
    with pytest.raises(ValueError, match=f"^`{field}` must be .* Received: {field}="):
        FeatureSpec(**({"name": "f", "table": "C1"} | {field: value}))


@pytest.mark.parametrize(
    "field, value",
    [("world_size", 0), ("world_size", "2"), ("local_size", 5), ("device_memory", 0), ("host_memory", 1.0)],
)
def test_a_wrong_topology_field_is_named(field, value):
    with pytest.raises(ValueError, match=f"^`{field}` must be .* Received: {field}="):
        Topology(**({"world_size": 4} | {field: value}))


@pytest.mark.parametrize(
    "spec",
    [
        TableSpec(
            "C1", 2**40, 4, "mean", "bfloat16", 4, {"class_name": "Zeros", "config": {"shape": (1, 2)}}
        ),
        TableSpec("C1", np.int64(3), np.int32(4)),
        FeatureSpec("f", "C1", None, True),
        Topology(8, 4, 80 * 2**30),
    ],
)
def test_specs_survive_json_and_can_be_hashed(spec):
    loaded = type(spec).from_dict(json.loads(json.dumps(spec.to_dict())))
    assert loaded == spec
    assert hash(loaded) == hash(spec)


def test_a_spec_keeps_its_own_copy_of_the_initializer():
    given = {"class_name": "Zeros", "config": {"seed": 1}}
    spec = TableSpec("C1", 3, 4, initializer=given)
    given["config"]["seed"] = 2
    assert spec.initializer == {"class_name": "Zeros", "config": {"seed": 1}}


@pytest.mark.parametrize("data", [{"name": "f"}, {"name": "f", "table": "t", "rows": 3}, ["f", "t"]])
def test_a_dict_that_is_no_spec_is_refused(data):
    with pytest.raises(ValueError, match="FeatureSpec"):
        FeatureSpec.from_dict(data)


@pytest.mark.parametrize(
    "slots, columns, expected",
    [
        (0, 8, 10 * 8 * 4),
        (8, 8, 10 * 16 * 4),  # a slot an element, e.g. Adagrad
        (8, 3, 10 * 6 * 4),
        (16, 4, 10 * 12 * 4),  # two, e.g. Adam
        (1, 8, 10 * 9 * 4),  # a slot a row, e.g. row-wise Adagrad
        (1, 3, 10 * 4 * 4),  # each slice keeps its own
    ],
)
def test_bytes_of_a_block_count_the_slots_beside_it(slots, columns, expected):
    assert TableSpec("t", 100, 8, slot_elements_per_row=slots).block_bytes(10, columns) == expected
