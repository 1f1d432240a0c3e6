"""The examples as users run them: on 1, 2 and 4 workers, with the same numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from distributed.run import run_workers

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
LINE = re.compile(r"^(?:step|epoch) \d+ loss (\d+\.\d+)$", re.MULTILINE)


def losses(name: str, workers: int, backend: str) -> list[float]:
    run = run_workers(EXAMPLES / name, workers, backend, timeout=150).check()
    return [float(x) for x in LINE.findall(run.stdout)]


@pytest.fixture(scope="module")
def alone():
    return {name: losses(name, 1, "local") for name in ("three_lines.py", "fit.py")}


@pytest.mark.parametrize("name", ["three_lines.py", "fit.py"])
@pytest.mark.parametrize(("workers", "backend"), [(2, "mpi"), (4, "mpi"), (2, "tensorflow")])
def test_same_losses_on_any_number_of_workers(alone, name, workers, backend):
    assert len(alone[name]) == {"three_lines.py": 10, "fit.py": 3}[name]
    assert losses(name, workers, backend) == pytest.approx(alone[name], abs=2e-6)


def test_horovod_script_learns_on_two_workers():
    run = run_workers(EXAMPLES / "from_horovod.py", 2, timeout=150).check()
    values = [float(x) for x in re.findall(r"Step #\d+\tLoss: (\d+\.\d+)", run.stdout)]
    assert len(values) == 5 and values[-1] < values[0] / 2


def test_horovod_script_differs_from_horovods_only_in_its_import():
    """Nothing of the library's own API but the name it is imported under."""
    text = (EXAMPLES / "from_horovod.py").read_text()
    assert text.count("distributed_embeddings") == 1
    used = set(re.findall(r"\bhvd\.(\w+)", text))
    assert used == {"init", "rank", "size", "local_rank", "DistributedGradientTape", "broadcast_variables"}
