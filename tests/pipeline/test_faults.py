"""A fault in any stage of either graph, on any rank, is everybody's soon, and leaves tables that nobody may read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distributed.run import run_workers
from pipeline.faults import faults

WORKER = Path(__file__).with_name("failing_worker.py")
# (workers, backend, ranks of `faults`, modes, seconds until a hang is called one)
EVERYDAY = [(1, "local", "both", ("exact", "1"), 120), (2, "mpi", "turns", ("exact", "1"), 200)]
ALL = [
    (1, "local", "both", ("0",), 120),
    (2, "mpi", "both", ("exact", "1", "0"), 600),
    (4, "mpi", "both", ("exact", "1", "0"), 900),
]


@pytest.fixture(scope="session")
def faults_seen(tmp_path_factory):
    """Runs a group of workers once, for all its faults."""
    done: dict[tuple, tuple[dict, str, int]] = {}

    def seen(group: tuple) -> tuple[dict, str, int]:
        if group not in done:
            workers, backend, ranks, modes, seconds = group
            out = tmp_path_factory.mktemp("faults") / "results.json"
            run = run_workers([WORKER, out, ranks, *modes], workers, backend, timeout=seconds)
            told = json.loads(out.read_text()) if out.exists() else {}
            log = f"status {run.returncode}\n{run.stdout[-2000:]}\n{run.stderr[-4000:]}"
            done[group] = told, log, run.returncode
        return done[group]

    return seen


def names(group) -> list[str]:
    workers, _, ranks, modes, _ = group
    return [fault[0] for mode in modes for fault in faults(mode, workers, ranks)]


def identify(group) -> str:
    return f"{group[1]}-{group[0]}"


def parameters(groups):
    return [
        pytest.param(group, name, id=f"{identify(group)}-{name}") for group in groups for name in names(group)
    ]


def check(faults_seen, group, fault: str) -> None:
    results, log, _ = faults_seen(group)
    assert fault in results, f"the group ended before this fault\n{log}"
    assert results[fault] == "", results[fault]


def check_end(faults_seen, group) -> None:
    results, log, status = faults_seen(group)
    assert status == 0, log
    assert list(results) == names(group)


# The first test of a group runs it whole.
@pytest.mark.parametrize(("group", "fault"), parameters(EVERYDAY))
def test_everybody_knows_of_a_fault(faults_seen, group, fault):
    check(faults_seen, group, fault)


@pytest.mark.parametrize("group", EVERYDAY, ids=identify)
def test_workers_live_on_after_faults(faults_seen, group):
    check_end(faults_seen, group)


@pytest.mark.slow
@pytest.mark.timeout(1000)
@pytest.mark.parametrize(("group", "fault"), parameters(ALL))
def test_everybody_knows_of_a_fault_whole_product(faults_seen, group, fault):
    check(faults_seen, group, fault)


@pytest.mark.slow
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("group", ALL, ids=identify)
def test_workers_live_on_after_faults_whole_product(faults_seen, group):
    check_end(faults_seen, group)
