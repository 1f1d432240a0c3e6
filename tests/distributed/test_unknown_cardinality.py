"""A step that fails alone, at the end of its dataset, has begun no operation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from distributed.run import run_workers


@pytest.mark.parametrize("backend", ["mpi", "tensorflow"])
def test_fit_ends_at_the_end_of_the_dataset(backend):
    finished = run_workers(Path(__file__).with_name("endless_worker.py"), 2, backend, 120).check()
    counts = re.findall(r"operations (\d+) (\d+)", finished.stdout)
    assert len(counts) == 2 and counts[0] == counts[1]
    known, unknown = counts[0]
    assert int(known) > 0 and unknown == known
