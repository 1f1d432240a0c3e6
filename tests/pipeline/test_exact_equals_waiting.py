"""Exact mode equals staleness 0, and a lag its serial emulator, to the bit, on real processes with random sleeps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distributed.run import run_workers
from pipeline.pipeline_cases import SETS

WORKER = Path(__file__).with_name("exact_worker.py")
# (workers, backend, set of cases, seconds until a hang is called one)
EVERYDAY = [(1, "local", "few", 240), (2, "mpi", "everyday", 500), (4, "mpi", "few", 400)]
EVERYDAY += [(2, "tensorflow", "one", 200)]
ALL = [(1, "local", "all", 14_400), (2, "mpi", "all", 14_400), (4, "mpi", "all", 28_800)]


@pytest.fixture(scope="session")
def group_results(tmp_path_factory):
    """Runs a group of workers once; TensorFlow starts once a process and not once a case."""
    done: dict[tuple, tuple[dict, str]] = {}

    def results(workers: int, backend: str, cases: str, seconds: int) -> tuple[dict, str]:
        key = (workers, backend, cases)
        if key not in done:
            out = tmp_path_factory.mktemp("exact") / "results.json"
            run = run_workers([WORKER, cases, out], workers, backend, timeout=seconds)
            told = json.loads(out.read_text())["results"] if out.exists() else {}
            done[key] = told, f"status {run.returncode}\n{run.stdout[-2000:]}\n{run.stderr[-4000:]}"
        return done[key]

    return results


def parameters(groups):
    return [
        pytest.param(group, case.name, id=f"{group[1]}-{group[0]}-{case.name}")
        for group in groups
        for case in SETS[group[2]]()
    ]


def check(group_results, group, case: str) -> None:
    results, log = group_results(*group)
    assert case in results, f"the group ended before this case\n{log}"
    assert results[case] == "", results[case]


# The first test of a group runs it whole.
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("group", "case"), parameters(EVERYDAY))
def test_same_bits(group_results, group, case):
    check(group_results, group, case)


@pytest.mark.slow
@pytest.mark.timeout(29_000)
@pytest.mark.parametrize(("group", "case"), parameters(ALL))
def test_same_bits_whole_product(group_results, group, case):
    check(group_results, group, case)
