"""`demb train` and `demb evaluate` on small synthetic data, on one and two workers."""

import json
import math

import pytest
from demb_commands import demb, train

SMALL = (
    "--data",
    "synthetic",
    "--rows",
    "6001",
    "--valid-rows",
    "3001",
    "--batch-size",
    "257",
    "--epochs",
    "1",
)


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory):
    directory = tmp_path_factory.mktemp("two")
    result, output = train(
        directory, *SMALL, "--workers", "2", "--run-dir", "runs/mine", "--save", "model.keras", timeout=200
    )
    return directory, result, output


def test_result_has_sane_fields(two_workers):
    _, result, _ = two_workers
    assert result["workers"] == 2
    assert result["samples"] == 6001
    assert result["valid_samples"] == 3001
    assert result["steps"] == math.ceil(6001 / 257)
    assert result["samples_per_second"] > 0
    assert 0.5 < result["auc"] < result["best_possible_auc"] < 1
    assert 0 < result["log_loss"] < 1
    assert 0.2 < result["base_rate"] < 0.3
    assert 0 < result["normalised_entropy"] < 1.1
    assert [e["epoch"] for e in result["epochs"]] == [1]


def test_output_shows_plan_and_auc_beside_the_best_possible(two_workers):
    _, result, output = two_workers
    assert f"digest {result['plan_digest'][:12]}" in output
    assert f"auc {result['auc']:.4f}  best possible auc {result['best_possible_auc']:.4f}" in output
    assert output.count("ShardingPlan") == 1, "ranks other than 0 are silent"
    assert "\x1b" not in output, "plain lines where there is no terminal"


def test_run_directory_holds_config_and_result(two_workers):
    directory, result, _ = two_workers
    config = json.loads((directory / "runs/mine/config.json").read_text())
    assert config["inputs"]["rows"] == 6001
    assert config["workers"] == 2
    assert json.loads((directory / "runs/mine/result.json").read_text()) == result


def test_one_worker_gives_the_same(two_workers, tmp_path):
    _, expected, _ = two_workers
    result, _ = train(tmp_path, *SMALL, "--workers", "1")
    assert result["steps"] == expected["steps"]
    assert result["auc"] == pytest.approx(expected["auc"], abs=2e-4)
    assert result["log_loss"] == pytest.approx(expected["log_loss"], abs=2e-4)
    assert result["epochs"][0]["train_loss"] == pytest.approx(expected["epochs"][0]["train_loss"], abs=1e-5)


def test_saved_model_evaluates_the_same_on_one_worker(two_workers):
    directory, trained, _ = two_workers
    done = demb(directory, "evaluate", "runs/mine", "--workers", "1", "--json", "evaluated.json")
    assert done.returncode == 0, done.stderr
    result = json.loads((directory / "evaluated.json").read_text())
    assert result["workers"] == 1
    assert result["samples"] == trained["valid_samples"]
    assert result["auc"] == pytest.approx(trained["auc"], abs=1e-6)


def test_run_without_a_model_says_what_to_do(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    done = demb(tmp_path, "evaluate", str(tmp_path))
    assert done.returncode == 1
    assert "saved no model. Train with --save" in done.stderr


def test_unknown_kind_of_model_file_is_an_error_before_training(tmp_path):
    done = demb(tmp_path, "train", *SMALL, "--save", "model.pickle")
    assert done.returncode == 1
    assert "*.keras. Received: model.pickle" in done.stderr


def test_tensorflow_backend_streaming_and_mixed_precision(tmp_path):
    line = "{}" + "\t5" * 13 + "\t68fd1e64" * 26 + "\n"
    (tmp_path / "data.tsv").write_text("".join(line.format(i % 2) for i in range(100)))
    result, _ = train(
        tmp_path, "--data", "data.tsv", "--valid", "data.tsv", "--stream", "--mixed-precision", "--epochs", "2",
        "--batch-size", "33", "--workers", "2", "--backend", "tensorflow", timeout=200,
    )  # fmt: skip
    assert result["samples"] == 200
    assert result["valid_samples"] == 100
    # All rows are alike: nothing can tell clicks from non-clicks.
    assert result["auc"] == 0.5
    assert result["base_rate"] == 0.5


def test_pipeline_trains_to_the_same_metrics(tmp_path) -> None:
    workers = 2
    common = ["--rows", "6000", "--valid-rows", "2000", "--epochs", "2", "--workers", str(workers)]
    common += ["--strategy", "basic"]
    results = {}
    for staleness in ("0", "exact", "1"):
        directory = tmp_path / staleness
        directory.mkdir()
        trace = ["--trace", str(directory / "run.json")]
        result, said = train(directory, *common, "--staleness", staleness, *trace, timeout=200)
        assert f"pipeline, staleness {staleness}" in said
        events = json.loads((directory / "run.json").read_text())["traceEvents"]
        assert {e["pid"] for e in events} == set(range(workers))
        results[staleness] = [(e["auc"], e["log_loss"], e["train_loss"]) for e in result["epochs"]]
    assert results["exact"] == results["0"]
    assert results["1"] != results["0"]


def test_staleness_must_be_a_number_or_exact(tmp_path) -> None:
    done = demb(tmp_path, "train", "--staleness", "soon")
    assert done.returncode != 0 and "Received: --staleness soon" in done.stderr
    done = demb(tmp_path, "train", "--trace", "t.json")
    assert done.returncode != 0 and "--staleness" in done.stderr
