"""Run `demb` as a person does: a process, its status, its two streams, its JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

DATA = Path(
    os.environ.get("DEMB_TEST_DATA") or Path(__file__).resolve().parents[2].parent / "shared" / "data"
)


def demb(directory: Path, *arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """`demb arguments` in `directory`."""
    command = [sys.executable, "-m", "distributed_embeddings.cli.main", *map(str, arguments)]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=timeout)


def train(directory: Path, *arguments: str, timeout: float = 120) -> tuple[dict, str]:
    """(JSON result, standard output) of a `demb train` that must succeed."""
    result = directory / "result.json"
    done = demb(directory, "train", *arguments, "--json", str(result), timeout=timeout)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return json.loads(result.read_text()), done.stdout


def real_data(name: str) -> Path:
    """The directory of a real data set; skips the test where it is absent."""
    path = DATA / name
    if not path.exists():
        pytest.skip(f"real data is absent: no {path}; set DEMB_TEST_DATA")
    return path
