"""All backends, all cases: one group of processes a backend and size, its results read case by case."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import conformance_cases
import pytest
from conformance_cases import CASES, LARGE

from distributed.run import run_workers

GROUPS = [("local", 1), *((backend, size) for backend in ("mpi", "tensorflow") for size in (1, 2, 4))]
GROUP_SECONDS = 240


@cache
def results(directory: Path, backend: str, size: int, *names: str) -> list[dict[str, str]]:
    target = directory / f"{backend}-{size}-{len(names)}"
    target.mkdir()
    finished = run_workers([conformance_cases.__file__, target, *names], size, backend, GROUP_SECONDS)
    if finished.returncode:
        return [
            dict.fromkeys(names or CASES, f"the group ended with {finished.returncode}:\n{finished.stderr}")
        ]
    return [json.loads((target / f"{rank}.json").read_text()) for rank in range(size)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("conformance")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("group", GROUPS, ids=lambda g: f"{g[0]}-{g[1]}")
def test_case(directory: Path, group: tuple[str, int], name: str) -> None:
    failures = {rank: result[name] for rank, result in enumerate(results(directory, *group)) if result[name]}
    assert not failures, "\n".join(f"rank {rank}: {text}" for rank, text in failures.items())


@pytest.mark.parametrize("backend", ["mpi", pytest.param("tensorflow", marks=pytest.mark.slow)])
def test_more_than_64_mib(directory: Path, backend: str) -> None:
    assert results(directory, backend, 2, LARGE) == [{LARGE: ""}] * 2
