"""Which worker this is, from every launcher's environment: no process started."""

from __future__ import annotations

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributed_embeddings.comm import Cluster, detect
from distributed_embeddings.comm.cluster_sources import expand_nodes

MPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}
SLURM = {
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_ID": "77",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_NODELIST": "gpu[01-03]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
}


def tf_config(index: int = 1, role: str = "worker", **roles: list[str]) -> dict[str, str]:
    cluster = roles or {"worker": ["a:1", "a:2", "b:1"]}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})}


def test_nothing_set_is_one_worker() -> None:
    assert detect(env={}) == Cluster("single", 0, 1, 0, 1, "local")


def test_explicit_beats_everything() -> None:
    env = {**tf_config(), **SLURM, **MPI}
    assert detect(rank=1, size=2, addresses=["x:1", "x:2"], env=env) == Cluster(
        "explicit", 1, 2, 1, 2, "tensorflow", ("x:1", "x:2")
    )


def test_tf_config_beats_slurm_and_mpi() -> None:
    found = detect(env={**tf_config(), **SLURM, **MPI})
    assert found == Cluster("TF_CONFIG", 1, 3, 1, 2, "tensorflow", ("a:1", "a:2", "b:1"))


def test_chief_is_rank_0() -> None:
    roles = {"worker": ["w:1", "w:2"], "chief": ["c:1"]}
    assert detect(env=tf_config(0, "chief", **roles)).rank == 0
    assert detect(env=tf_config(1, "worker", **roles)).rank == 2
    assert detect(env=tf_config(1, "worker", **roles)).addresses == ("c:1", "w:1", "w:2")


@pytest.mark.parametrize("text", ["", "{}", "  "])
def test_empty_tf_config_is_none(text: str) -> None:
    assert detect(env={"TF_CONFIG": text}).source == "single"


@pytest.mark.parametrize(
    "text",
    [
        "not json",
        "[]",
        "7",
        '{"cluster": {"worker": ["a:1"]}}',
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}',
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": "x"}}',
        '{"cluster": {"worker": [1]}, "task": {"type": "worker", "index": 0}}',
        '{"cluster": {"worker": ["a:1"], "ps": ["b:1"]}, "task": {"type": "worker", "index": 0}}',
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": "chief", "index": 0}}',
    ],
)
def test_malformed_tf_config_names_itself_and_its_value(text: str) -> None:
    with pytest.raises(ValueError, match="TF_CONFIG") as error:
        detect(env={"TF_CONFIG": text})
    assert repr(text) in str(error.value)


def test_slurm_task() -> None:
    found = detect(env=SLURM)
    assert (found.source, found.rank, found.size, found.local_rank, found.local_size) == ("Slurm", 3, 5, 1, 2)
    assert [a.partition(":")[0] for a in found.addresses] == ["gpu01", "gpu01", "gpu02", "gpu02", "gpu03"]
    assert len(set(found.addresses)) == 5


def test_slurm_batch_script_without_srun_is_one_worker() -> None:
    env = {name: value for name, value in SLURM.items() if name != "SLURM_STEP_ID"}
    assert detect(env=env).source == "single"


def test_malformed_slurm_without_a_step_is_not_one_worker() -> None:
    with pytest.raises(ValueError, match="`SLURM_PROCID`.*'x'"):
        detect(env={"SLURM_NTASKS": "2", "SLURM_PROCID": "x"})


def test_mpirun_inside_a_slurm_allocation_is_mpi() -> None:
    assert detect(env={**SLURM, **MPI}) == Cluster("MPI", 5, 8, 1, 4, "mpi")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SLURM_PROCID", "x"),
        ("SLURM_PROCID", "9"),
        ("SLURM_LOCALID", "-1"),
        ("SLURM_LOCALID", "0"),
        ("SLURM_STEP_NUM_TASKS", "0"),
        ("SLURM_STEP_NODELIST", "gpu[1-"),
        ("SLURM_STEP_NODELIST", "gpu[3-1]"),
        ("SLURM_STEP_TASKS_PER_NODE", "2(x,1"),
        ("SLURM_STEP_TASKS_PER_NODE", "2,2"),
    ],
)
def test_malformed_slurm_names_the_variable(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=name):
        detect(env={**SLURM, name: value})


@pytest.mark.parametrize("name", list(MPI))
@pytest.mark.parametrize("value", ["x", "", "-1"])
def test_malformed_mpi_names_the_variable(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=rf"`{name}`.*{value!r}"):
        detect(env={**MPI, name: value})


def test_mpich_variables() -> None:
    env = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}
    assert detect(env=env) == Cluster("MPI", 1, 2, 0, 1, "mpi")


WRONG_PLACES = [{"rank": 0}, {"size": 2}, {"rank": 2, "size": 2}, {"rank": -1, "size": 2}]


@pytest.mark.parametrize("arguments", WRONG_PLACES)
def test_wrong_arguments(arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="`rank` and `size`"):
        detect(**arguments, env={})


def test_wrong_addresses() -> None:
    with pytest.raises(ValueError, match="`addresses`"):
        detect(rank=0, size=2, addresses=["a:1"], env={})


@pytest.mark.parametrize("env", [{}, MPI, SLURM, tf_config()])
def test_one_log_line(env: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="distributed_embeddings"):
        found = detect(env=env)
    (record,) = caplog.records
    assert record.getMessage() == (
        f"rank {found.rank} of {found.size} (local {found.local_rank} of {found.local_size}), "
        f"found by {found.source}, backend {found.backend}"
    )


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("node[01-03,7],login", ["node01", "node02", "node03", "node7", "login"]),
        ("a,b", ["a", "b"]),
        ("r[1-2]n[09-10]x", ["r1n09x", "r1n10x", "r2n09x", "r2n10x"]),
        ("solo", ["solo"]),
    ],
)
def test_node_lists(text: str, nodes: list[str]) -> None:
    assert expand_nodes(text) == nodes


@pytest.mark.parametrize("text", ["", "a[", "a]1[", "a[]", "a[x]", ",a", "a,"])
def test_malformed_node_lists(text: str) -> None:
    with pytest.raises(ValueError, match="SLURM_STEP_NODELIST"):
        expand_nodes(text)


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 20), st.integers(1, 4)), min_size=1, max_size=5))
def test_node_ranges(ranges: list[tuple[int, int, int]]) -> None:
    text = ",".join(f"{low:0{width}d}-{low + more:0{width}d}" for low, more, width in ranges)
    expected = [f"n{i:0{width}d}" for low, more, width in ranges for i in range(low, low + more + 1)]
    widths_fit = all(len(str(low)) <= width for low, _, width in ranges)
    if widths_fit:
        assert expand_nodes(f"n[{text}]") == expected
    else:  # a first number wider than asked sets the width: 10-12 is 10, 11, 12
        assert [int(node[1:]) for node in expand_nodes(f"n[{text}]")] == [int(node[1:]) for node in expected]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.data())
def test_every_slurm_task_finds_itself(per_node: list[int], data: st.DataObject) -> None:
    places = [(node, i) for node, count in enumerate(per_node) for i in range(count)]
    rank = data.draw(st.integers(0, len(places) - 1))
    env = {
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(places[rank][1]),
        "SLURM_NTASKS": str(len(places)),
        "SLURM_STEP_NODELIST": f"h[0-{len(per_node) - 1}]" if len(per_node) > 1 else "h0",
        "SLURM_STEP_TASKS_PER_NODE": ",".join(map(str, per_node)),
    }
    found = detect(env=env)
    assert (found.rank, found.size) == (rank, len(places))
    assert (found.local_rank, found.local_size) == (places[rank][1], per_node[places[rank][0]])
    assert found.addresses[rank].startswith(f"h{places[rank][0]}:")
