"""Sharded equals unsharded: outputs, tables, slots and dense weights, on real processes, against float64 NumPy."""

from __future__ import annotations

from pathlib import Path

import pytest

from distributed.cases import SETS
from distributed.groups import check, make_results, parameters

WORKER = Path(__file__).with_name("sharded_worker.py")
EVERYDAY = [(1, "local", "short", 240), (2, "mpi", "everyday", 700), (4, "mpi", "short", 500)]
EVERYDAY += [(2, "tensorflow", "short", 400), (4, "tensorflow", "few", 500)]
ALL = [
    (n, b, "all", 7200)
    for n, b in ((1, "local"), (2, "mpi"), (4, "mpi"), (2, "tensorflow"), (4, "tensorflow"))
]


@pytest.fixture(scope="session")
def group_results(tmp_path_factory):
    return make_results(WORKER, tmp_path_factory)


# The first test of a group runs it whole.
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("group", "case"), parameters(EVERYDAY, SETS))
def test_equals_unsharded(group_results, group, case):
    check(group_results, group, case)


@pytest.mark.slow
@pytest.mark.timeout(7300)
@pytest.mark.parametrize(("group", "case"), parameters(ALL, SETS))
def test_equals_unsharded_whole_product(group_results, group, case):
    check(group_results, group, case)
