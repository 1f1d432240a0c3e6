"""What `demb` refuses, and that it names the option or the file."""

import gzip
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from demb_commands import demb

from distributed_embeddings.cli import run_dir
from distributed_embeddings.cli.main import run
from distributed_embeddings.cli.options import DataOptions
from distributed_embeddings.cli.presets import find_format
from distributed_embeddings.cli.saving import load
from distributed_embeddings.cli.sources import open_evaluation, open_sources

LINE = "1" + "\t5" * 13 + "\t68fd1e64" * 26 + "\n"
FRAPPE_LINE = "1 " + " ".join(f"{i}:1" for i in range(10)) + "\n"
SMALL = ("--rows", "3000", "--valid-rows", "300", "--batch-size", "100")


@pytest.mark.parametrize("option", ["--batch-size", "--epochs", "--workers"])
@pytest.mark.parametrize("value", ["0", "-5"])
def test_a_count_below_one_is_not_taken_for_not_given(option, value, capsys):
    assert run(["train", f"{option}={value}"]) == 1
    assert (
        f"`{option}` must be at least 1, or left out. Received: {option} {value}" in capsys.readouterr().err
    )


def test_evaluate_on_no_worker(tmp_path, capsys):
    assert run(["evaluate", str(tmp_path), "--workers", "0"]) == 1
    assert "`--workers` must be at least 1" in capsys.readouterr().err


def test_runs_of_one_second_have_their_own_directories(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_dir.time, "strftime", lambda form: "20300101-000000")
    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(run_dir.create_run_dir, ["criteo"] * 40))
    assert len(set(paths)) == 40
    assert all(path.is_dir() for path in paths)
    assert {"criteo-20300101-000000", "criteo-20300101-000000-40"} <= {path.name for path in paths}


def test_workers_of_a_launcher_share_the_run_directory_that_rank_0_names(tmp_path):
    done = demb(
        tmp_path,
        "launch",
        "-n",
        "2",
        "--",
        sys.executable,
        "-m",
        "distributed_embeddings.cli.main",
        "train",
        "--data",
        "synthetic",
        *SMALL,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    (made,) = (tmp_path / "runs").iterdir()
    assert sorted(path.name for path in made.iterdir()) == ["config.json", "result.json"]
    assert f"config and result: runs/{made.name}" in done.stdout


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("content", [b"", b"\n\r\n", gzip.compress(b"")], ids=["empty", "blank", "gzip"])
def test_empty_criteo_file_is_named(tmp_path, stream, content):
    (tmp_path / "empty.tsv").write_bytes(content)
    (tmp_path / "data.tsv").write_text(LINE)
    for option in ("data", "valid"):
        files = {"data": str(tmp_path / "data.tsv"), option: str(tmp_path / "empty.tsv")}
        with pytest.raises(ValueError, match=rf"`--{option}` .* at least one row.* none in .*empty\.tsv"):
            open_sources(DataOptions(**files, format="criteo", stream=stream), 1)
    whole = DataOptions(data=str(tmp_path / "data.tsv"), format="criteo", stream=stream)
    assert open_sources(whole, 1).valid is None
    with pytest.raises(ValueError, match=r"`--data` .* none in .*empty\.tsv"):
        open_evaluation(whole, str(tmp_path / "empty.tsv"), 1)


def test_empty_libfm_file_is_named(tmp_path):
    (tmp_path / "empty.libfm").write_text("\n")
    (tmp_path / "data.libfm").write_text(FRAPPE_LINE)
    for option in ("data", "valid"):
        files = {"data": str(tmp_path / "data.libfm"), option: str(tmp_path / "empty.libfm")}
        with pytest.raises(ValueError, match=rf"`--{option}` .* none in .*empty\.libfm"):
            open_sources(DataOptions(**files, format="libfm"), 1)


def test_too_few_rows_to_hold_a_tenth_out(tmp_path):
    path = tmp_path / "user_artists.dat"
    for rows, text in (
        ("", "user_artists.dat"),
        ("1\t2\t3\n2\t3\t4\n", "Received: 4 rows in .*user_artists"),
    ):
        path.write_text("userID\tartistID\tweight\n" + rows)
        inputs = DataOptions(data=str(path))
        with pytest.raises(ValueError, match=text):
            open_sources(DataOptions(data=str(path), format=find_format(inputs)), 1)


def test_empty_file_ends_the_command_with_one_line(tmp_path):
    (tmp_path / "empty.tsv").write_text("")
    done = demb(tmp_path, "train", "--data", "empty.tsv")
    assert done.returncode == 1
    assert "demb: `--data` must have at least one row. Received: none in empty.tsv" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists(), "what was never begun leaves nothing behind"


@pytest.mark.parametrize("damage", ["no zip", "cut"])
def test_damaged_model_file_is_named(tmp_path, damage):
    import keras

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    path = tmp_path / "model.keras"
    model.save(path)
    load(model, path)
    whole = path.read_bytes()
    path.write_bytes(b"not a model" if damage == "no zip" else whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"the saved model .*model\.keras must be a whole file"):
        load(model, path)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        # The loss is NaN within the first steps: noticed when it is next summed.
        (("--batch-size", "100"), "at step 20 or shortly before: the training loss is"),
        # One step a training: its loss is the start's, finite; the weights after it are not.
        (
            ("--batch-size", "3000", "--optimizer", "sgd"),
            "at step 1 or shortly before: predictions are NaN or infinite",
        ),
    ],
    ids=["training loss", "validation"],
)
def test_divergence_is_told_with_the_learning_rate(tmp_path, arguments, text):
    done = demb(
        tmp_path, "train", "--data", "synthetic", "--rows", "3000", "--valid-rows", "300",
        "--learning-rate", "1e30", "--save", "model.keras", *arguments,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout
    assert f"demb: training diverged in epoch 1, {text}" in done.stderr
    assert "Lower `--learning-rate`. Received: --learning-rate 1e+30" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "model.keras").exists()
