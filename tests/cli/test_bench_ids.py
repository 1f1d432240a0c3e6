"""Ids of benchmarks: the law they follow, and the same ones in every process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from distributed_embeddings.cli.bench.cases import Case
from distributed_embeddings.cli.bench.peers import made_ids


def case(**changes):
    return Case(**{"rows": 1000, "dim": 4, "hotness": 10, "batch": 20_000, "tables": 2, **changes}).to_dict()


def test_zipf_follows_its_law():
    rows, exponent = 1000, 1.05
    counts = np.bincount(made_ids.table_ids(case(), 0, 0).ravel(), minlength=rows)
    edges = np.arange(1, rows + 2) ** (1 - exponent)
    expected = np.diff(edges) / (edges[-1] - edges[0]) * counts.sum()
    assert counts.shape == (rows,)
    # Deviations of a multinomial: beyond 6 of them by chance once in 10^6 runs of 1000 ranks; the seed is fixed.
    assert np.max(np.abs(counts - expected) / np.sqrt(expected)) < 6


def test_zipf_ends():
    ranks = made_ids.zipf_ranks(np.array([0.0, 1 - 2**-53]), 10**7, 1.05)
    assert ranks.tolist() == [0, 10**7 - 1]


def test_uniform_reaches_all_rows_alike():
    counts = np.bincount(made_ids.table_ids(case(distribution="uniform"), 0, 0).ravel(), minlength=1000)
    assert counts.shape == (1000,)
    assert np.max(np.abs(counts - 200) / np.sqrt(200)) < 6


@pytest.mark.parametrize("distribution", ["zipf1.05", "uniform", "spread"])
def test_ids_differ_by_table_and_batch_and_are_repeatable(distribution):
    made = [
        made_ids.table_ids(case(distribution=distribution), b, t) for b, t in [(0, 0), (0, 1), (1, 0), (0, 0)]
    ]
    assert made[0].shape == (20_000, 10)
    assert made[0].dtype == np.int64
    assert not np.array_equal(made[0], made[1])
    assert not np.array_equal(made[0], made[2])
    assert np.array_equal(made[0], made[3])


def test_spread_holds_equally_many_distinct_rows_at_any_size():
    small, large = (made_ids.table_ids(case(distribution="spread", rows=r), 0, 0) for r in (10**5, 10**7))
    assert large.max() > 9 * 10**6
    assert abs(len(np.unique(small)) - len(np.unique(large))) < 1500


def test_description():
    pool = [[np.array([[0, 1], [1, 3]]), np.array([[2, 2], [2, 2]])]]
    assert made_ids.describe(pool, 4)["unique_rows"] == 4
    swapped = [[np.array([[1, 0], [1, 3]]), pool[0][1]]]
    assert made_ids.describe(swapped, 4)["checksum"] != made_ids.describe(pool, 4)["checksum"]


def test_pool_shrinks_with_the_batch():
    assert made_ids.pool_size(case()) == 8
    assert made_ids.pool_size(case(tables=26, batch=65536, hotness=50)) == 2


def test_a_peer_imports_it_without_the_library():
    code = (
        "import sys, made_ids, protocol;"
        "bad = {'tensorflow', 'distributed_embeddings'} & set(sys.modules); assert not bad, bad;"
        f"print(made_ids.describe(made_ids.batches({case(batch=50)!r}), 1000)['checksum'])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(made_ids.__file__).parent,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) == made_ids.describe(made_ids.batches(case(batch=50)), 1000)["checksum"]
