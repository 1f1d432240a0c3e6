"""Suites whose cases a group of workers runs in one go: TensorFlow starts once a process and not once a case.

A group: (workers, backend, set of cases, seconds until a hang is called one). A worker is called with the set's name
and a file, and writes {"results": {case: error or ""}} there.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distributed.run import run_workers

Group = tuple[int, str, str, int]
Results = Callable[[int, str, str, int], tuple[dict[str, str], str]]


def make_results(worker: Path, directories: pytest.TempPathFactory) -> Results:
    """What runs a group when it is first asked for: (errors by case, what the workers printed)."""
    done: dict[tuple[int, str, str], tuple[dict[str, str], str]] = {}

    def results(workers: int, backend: str, cases: str, seconds: int) -> tuple[dict[str, str], str]:
        key = (workers, backend, cases)
        if key not in done:
            out = directories.mktemp(worker.stem) / "results.json"
            run = run_workers([worker, cases, out], workers, backend, timeout=seconds)
            told = json.loads(out.read_text())["results"] if out.exists() else {}
            done[key] = told, f"status {run.returncode}\n{run.stdout[-2000:]}\n{run.stderr[-4000:]}"
        return done[key]

    return results


def parameters(groups: list[Group], sets: dict[str, Callable[[], list[Any]]]) -> list[Any]:
    """Every case of every group, as a test's (group, case)."""
    return [
        pytest.param(group, case.name, id=f"{group[1]}-{group[0]}-{case.name}")
        for group in groups
        for case in sets[group[2]]()
    ]


def check(results: Results, group: Group, case: str) -> None:
    found, log = results(*group)
    assert case in found, f"the group ended before this case\n{log}"
    assert found[case] == "", found[case]
