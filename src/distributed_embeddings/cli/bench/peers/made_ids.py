"""Ids and gradients of a case, the same bytes in every competitor's process. NumPy only.

An id is its popularity rank: id 0 is the most frequent. Frequent rows are therefore neighbours in memory, as in
vocabularies sorted by frequency (the usual way to build one); hashed ids would scatter them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

IDS_FOLLOW = ("tables", "rows", "hotness", "batch", "distribution")
"""What of a case its ids depend on."""
SEED = 20261129
SPREAD_ROWS = 100_000
"""Distinct ids of a table under "spread"."""
_POOL_IDS = 40_000_000
_KINDS = {"zipf": 1, "uniform": 2, "spread": 3, "gradient": 4}


def pool_size(case: Mapping[str, Any]) -> int:
    """Prepared batches that take turns: 8, or fewer where 8 would hold more than 40 million ids; at least 2."""
    return int(max(2, min(8, _POOL_IDS // (case["tables"] * case["batch"] * case["hotness"]))))


def zipf_ranks(uniform: np.ndarray, rows: int, exponent: float) -> np.ndarray:
    """Uniform numbers [0, 1) to ranks 0 … rows-1 (int64) with P(rank k) ∝ ∫ x^-exponent dx over [k+1, k+2).

    Inverse of the continuous law's distribution function over [1, rows+1). exponent must not be 1.
    """
    power = 1.0 - exponent
    x = (uniform * ((rows + 1.0) ** power - 1.0) + 1.0) ** (1.0 / power)
    return np.minimum(x.astype(np.int64) - 1, rows - 1)


def table_ids(case: Mapping[str, Any], batch: int, table: int) -> np.ndarray:
    """int64 ids [batch size, hotness] of one table in prepared batch number `batch`.

    case: tables, rows, hotness, batch, distribution ("zipf1.05", "uniform", "spread"). "spread": uniform over
    100,000 ids evenly spaced over the table, so that batches hold equally many distinct rows at any table size.
    """
    rows, shape = int(case["rows"]), (int(case["batch"]), int(case["hotness"]))
    name = case["distribution"]
    kind = "zipf" if name.startswith("zipf") else name
    generator = np.random.default_rng([SEED, _KINDS[kind], rows, *shape, batch, table])
    if kind == "zipf":
        return zipf_ranks(generator.random(shape), rows, float(name.removeprefix("zipf")))
    if kind == "spread":
        distinct = min(SPREAD_ROWS, rows)
        return generator.integers(0, distinct, shape) * (rows // distinct)
    return generator.integers(0, rows, shape)


def batches(case: Mapping[str, Any]) -> list[list[np.ndarray]]:
    """All prepared batches: [batch number][table] of int64 [batch size, hotness]. The last case's are kept: cases
    that differ in width, rule or threads alone have the same."""
    return _batches(*(case[field] for field in IDS_FOLLOW))


@functools.lru_cache(maxsize=1)
def _batches(*fields: Any) -> list[list[np.ndarray]]:
    case = dict(zip(IDS_FOLLOW, fields, strict=True))
    return [[table_ids(case, b, t) for t in range(case["tables"])] for b in range(pool_size(case))]


def gradients(case: Mapping[str, Any]) -> list[np.ndarray]:
    """Gradients of the outputs: [table] of float32 [batch size, dim], normal with deviation 1e-3; table t's are table
    0's moved by t samples."""
    shape = (int(case["batch"]), int(case["dim"]))
    generator = np.random.default_rng([SEED, _KINDS["gradient"], *shape])
    first = generator.standard_normal(shape, np.float32) * np.float32(1e-3)
    return [np.roll(first, t, axis=0) for t in range(case["tables"])]


def describe(pool: list[list[np.ndarray]], rows: int) -> dict[str, int]:
    """Of batch 0: a checksum of the ids, equal in all competitors, and the number of distinct rows over all tables."""
    first = pool[0]
    checksum = sum(int((ids.ravel() * (np.arange(ids.size) % 1009 + 1)).sum() % (1 << 40)) for ids in first)
    unique = sum(int(np.count_nonzero(np.bincount(ids.ravel(), minlength=rows))) for ids in first)
    return {"checksum": checksum, "unique_rows": unique}
