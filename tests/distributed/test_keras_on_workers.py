"""fit, save, load, and errors that are the same on every rank, on real processes."""

from __future__ import annotations

import json
from pathlib import Path

import keras
import numpy as np
import pytest

import distributed_embeddings.dist_model_parallel as dmp  # registers the layers for load_model
from distributed.run import run_workers

WORKER = Path(__file__).with_name("keras_worker.py")
GROUPS = [(2, "mpi"), (4, "mpi"), (2, "tensorflow")]


def run(scenario: str, out: Path, workers: int, backend: str) -> list[dict]:
    run_workers([WORKER, scenario, out], workers, backend, timeout=200).check()
    return [json.loads(Path(f"{out}.{rank}").read_text()) for rank in range(workers)]


@pytest.fixture(scope="module")
def one_worker(tmp_path_factory):
    return run("fit", tmp_path_factory.mktemp("one") / "out", 1, "local")[0]


@pytest.mark.parametrize(("workers", "backend"), GROUPS)
def test_fit_equals_one_worker_and_its_file_loads_anywhere(tmp_path, one_worker, workers, backend):
    results = run("fit", tmp_path / "out", workers, backend)
    for result in results:
        for key in ("tables", "dense"):
            for got, want in zip(result[key], one_worker[key], strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    held = [r["local_parameters"] for r in results]
    assert sum(held) == one_worker["local_parameters"] and max(held) < one_worker["local_parameters"]
    # Saved on N workers, loaded in one process without any.
    loaded = keras.saving.load_model(tmp_path / "out.keras")
    layer = loaded.get_layer("tables")
    assert isinstance(layer, dmp.DistributedEmbedding)
    assert [w.shape for w in layer.get_weights()] == [np.shape(t) for t in results[0]["tables"]]


@pytest.mark.parametrize(("workers", "backend"), GROUPS)
def test_bad_id_on_one_rank_is_raised_on_all(tmp_path, workers, backend):
    results = run("bad_id", tmp_path / "out", workers, backend)
    for result in results:
        for text in (result["eager"], result["traced"]):
            want = (
                f"feature c (table e2): id 90 is outside [0, 90) at row 2 of the batch on rank {workers - 1}"
            )
            assert want in text
        assert result["rows"] == 4
    assert len({r["eager"] for r in results}) == 1


@pytest.mark.parametrize(("workers", "backend"), [(2, "mpi"), (2, "tensorflow")])
def test_inputs_of_another_kind_on_one_rank_fail_on_all(tmp_path, workers, backend):
    for result in run("other_kind", tmp_path / "out", workers, backend):
        assert "every rank must give each feature in the same kind" in result["error"]
        assert "rank 0: a 2, b 2, c 2" in result["error"] and "rank 1: a 2, b ragged, c 2" in result["error"]


@pytest.mark.parametrize(("workers", "backend"), [(2, "mpi"), (2, "tensorflow")])
def test_another_plan_on_one_rank_fails_on_all(tmp_path, workers, backend):
    first, second = run("other_plan", tmp_path / "out", workers, backend)
    assert first["error"] == second["error"]
    assert "every rank must have the same plan, library version and dtypes" in first["error"]


def test_an_overflow_on_one_rank_skips_the_step_on_all(tmp_path):
    for result in run("skip_together", tmp_path / "out", 2, "mpi"):
        assert result == {"skipped": True, "scale": 4.0}


def test_compile_with_a_plain_optimizer_is_refused_on_all(tmp_path):
    for result in run("plain_fit", tmp_path / "out", 2, "mpi"):
        assert "averaged over the workers" in result["error"] and "DistributedOptimizer" in result["error"]


def test_broadcast_of_the_optimizer_leaves_table_slots_alone(tmp_path):
    for result in run("broadcast_slots", tmp_path / "out", 2, "mpi"):
        assert result["kept"] and result["slots"] == 3


def test_model_parallel_input_after_set_weights(tmp_path):
    first, second = run("model_parallel_after_build", tmp_path / "out", 2, "mpi")
    assert (first["given"], second["given"]) == (["a"], ["b"])
    rows = [[[2.0 * i, 2.0 * i + 1] for i in bag] for bag in [[1, 2], [3, 4], [5, 6], [7, 8], [0, 1]]]
    # Rank r has samples [r·5/2, (r+1)·5/2), as the readers deal them.
    assert first["a"] == rows[:2] and second["a"] == rows[2:]
    assert first["b"] + second["b"] == [[-3.0 * i, -3.0 * i - 1, -3.0 * i - 2] for i in [5, 4, 3, 2, 1]]


@pytest.mark.parametrize("backend", ["mpi", "tensorflow"])
def test_gradients_of_different_variables_are_not_added_up(tmp_path, backend):
    for result in run("other_gradients", tmp_path / "out", 2, backend):
        assert "for variables 0 of 2" in result["error"] and "for variables 1 of 2" in result["error"]


def test_gradients_of_learned_weights_are_those_of_the_global_batch(tmp_path):
    (alone,) = run("learned_weights", tmp_path / "alone", 1, "local")
    for result in run("learned_weights", tmp_path / "out", 2, "mpi"):
        for case, gradient in result.items():
            np.testing.assert_allclose(gradient, alone[case], rtol=1e-5, atol=1e-6, err_msg=case)


def test_rowwise_adagrad_with_two_tables_of_one_name(tmp_path):
    for result in run("same_name_rowwise", tmp_path / "out", 2, "mpi"):
        want = [-3 / np.sqrt(0.1 + 9 / dim) for dim in (8, 4)]
        np.testing.assert_allclose(result["first"], want, rtol=1e-5)


def test_functional_model_with_model_parallel_input(tmp_path):
    for result in run("functional_model_parallel", tmp_path / "out", 2, "mpi"):
        assert result["shape"] == [2, 3, 4]
