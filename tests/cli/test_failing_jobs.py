"""What goes wrong on one worker ends the job, non-zero, in time, with the error's text and the rank."""

import sys
from pathlib import Path

import pytest
from demb_commands import demb

LINE = "1" + "\t5" * 13 + "\t68fd1e64" * 26 + "\n"
LIMIT = 60


def job(directory: Path, body: str, timeout: float = LIMIT):
    """Two workers that run `body` before `demb train` does its work in them."""
    script = directory / "worker.py"
    script.write_text(
        f"import os, sys\nrank = int(os.environ['OMPI_COMM_WORLD_RANK'])\n{body}\n"
        "from distributed_embeddings.cli.main import main\nmain(sys.argv[1:])\n"
    )
    return demb(
        directory, "launch", "-n", "2", "--", sys.executable, script.name,
        "train", "--data", "data.tsv", "--batch-size", "8", "--epochs", "3",
        timeout=timeout,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("body", "texts"),
    [
        ("os.chdir('empty' if rank else '.')", ("[demb rank 1]", "'data.tsv'", "matches no file")),
        ("os.chdir('bad' if rank else '.')", ("[demb rank 1]", "data.tsv:2")),
    ],
    ids=["missing file", "bad row"],
)
def test_trouble_with_a_file_on_one_rank(tmp_path, body, texts):
    (tmp_path / "data.tsv").write_text(LINE * 200)
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "data.tsv").write_text(LINE + "x" + LINE * 199)
    done = job(tmp_path, body)
    assert done.returncode not in (0, 124)
    for text in texts:
        assert text in done.stderr


def test_killed_worker(tmp_path):
    (tmp_path / "data.tsv").write_text(LINE * 200)
    # The second epoch never ends by itself: the worker dies in the middle of training.
    body = (
        "import signal\nfrom distributed_embeddings.cli import training\nevaluate = training.LossSum.add\n"
        "def add(self, local):\n    rank and os.kill(os.getpid(), signal.SIGKILL)\n    return evaluate(self, local)\n"
        "training.LossSum.add = add"
    )
    done = job(tmp_path, body)
    assert done.returncode not in (0, 124)
    assert "signal 9" in done.stderr.lower() or "killed" in done.stderr.lower()


def test_missing_file_in_one_process_is_one_line(tmp_path):
    done = demb(tmp_path, "train", "--data", "no/such.tsv")
    assert done.returncode == 1
    assert "no/such.tsv" in done.stderr
    assert "Traceback" not in done.stderr


def test_wrong_number_of_workers_names_both(tmp_path):
    done = demb(
        tmp_path, "launch", "-n", "2", "--", sys.executable, "-m", "distributed_embeddings.cli.main",
        "train", "--workers", "3", timeout=LIMIT,
    )  # fmt: skip
    assert done.returncode not in (0, 124)
    assert "`--workers` must be this job's number of workers, 2" in done.stderr
