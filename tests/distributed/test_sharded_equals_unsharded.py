"""Sharded equals unsharded: outputs, tables, slots and dense weights, on real processes, against float64 NumPy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distributed.cases import SETS
from distributed.run import run_workers

WORKER = Path(__file__).with_name("sharded_worker.py")
# (workers, backend, set of cases, seconds until a hang is called one)
EVERYDAY = [(1, "local", "short", 240), (2, "mpi", "everyday", 700), (4, "mpi", "short", 500)]
EVERYDAY += [(2, "tensorflow", "short", 400), (4, "tensorflow", "few", 500)]
ALL = [
    (n, b, "all", 7200)
    for n, b in ((1, "local"), (2, "mpi"), (4, "mpi"), (2, "tensorflow"), (4, "tensorflow"))
]


@pytest.fixture(scope="session")
def group_results(tmp_path_factory):
    """Runs a group of workers once; TensorFlow starts once a process and not once a case."""
    done: dict[tuple, tuple[dict, str]] = {}

    def results(workers: int, backend: str, cases: str, seconds: int) -> tuple[dict, str]:
        key = (workers, backend, cases)
        if key not in done:
            out = tmp_path_factory.mktemp("sharded") / "results.json"
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
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("group", "case"), parameters(EVERYDAY))
def test_equals_unsharded(group_results, group, case):
    check(group_results, group, case)


@pytest.mark.slow
@pytest.mark.timeout(7300)
@pytest.mark.parametrize(("group", "case"), parameters(ALL))
def test_equals_unsharded_whole_product(group_results, group, case):
    check(group_results, group, case)
