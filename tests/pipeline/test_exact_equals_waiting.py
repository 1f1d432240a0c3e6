"""Exact mode equals staleness 0, and a lag its serial emulator, to the bit, on real processes with random sleeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from distributed.groups import check, make_results, parameters
from pipeline.pipeline_cases import SETS

WORKER = Path(__file__).with_name("exact_worker.py")
EVERYDAY = [(1, "local", "few", 240), (2, "mpi", "everyday", 500), (4, "mpi", "few", 400)]
EVERYDAY += [(2, "tensorflow", "one", 200)]
ALL = [(1, "local", "all", 14_400), (2, "mpi", "all", 14_400), (4, "mpi", "all", 28_800)]


@pytest.fixture(scope="session")
def group_results(tmp_path_factory):
    return make_results(WORKER, tmp_path_factory)


# The first test of a group runs it whole.
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("group", "case"), parameters(EVERYDAY, SETS))
def test_same_bits(group_results, group, case):
    check(group_results, group, case)


@pytest.mark.slow
@pytest.mark.timeout(29_000)
@pytest.mark.parametrize(("group", "case"), parameters(ALL, SETS))
def test_same_bits_whole_product(group_results, group, case):
    check(group_results, group, case)
