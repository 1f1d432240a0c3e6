"""Batches of `demb bench train`: numbers, one-hot ids and labels, the same bytes in every competitor. NumPy only.

The first request of a train competitor is a case: {"tables", "rows", "dim", "distribution", "batch" (samples a
worker), "workers", "threads" (of each worker), "numbers", "bottom": [64], "top": [64, 32], "rule": "adagrad"}. The
bottom MLP ends in one more layer of width dim, the top MLP in one of width 1; ReLU after all layers but the last. The
loss is the mean binary cross entropy. It is answered by {"checksum": checksum(worker_batches(case, 0)), …versions};
{"run": "step", "count": n} by {"seconds": [n]} of whole training steps as rank 0 sees them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

try:
    from . import made_ids
except ImportError:  # a peer's Python runs the files of this directory as programs, not as a package
    import made_ids  # type: ignore[no-redef]

Batch = tuple[np.ndarray, list[np.ndarray], np.ndarray]
"""(numbers float32 [B, numbers], ids int64 [B] by table, labels float32 [B])"""


def worker_batches(case: Mapping[str, Any], rank: int) -> list[Batch]:
    """The prepared batches of one worker: its samples of the global batch, contiguous, in rank order.

    case: tables, rows, distribution (see `made_ids`), numbers, batch (samples a worker), workers.
    """
    size = int(case["batch"])
    whole = {**case, "batch": size * int(case["workers"]), "hotness": 1}
    mine = slice(rank * size, (rank + 1) * size)
    return [_batch(whole, number, mine) for number in range(made_ids.pool_size(whole))]


def _batch(case: Mapping[str, Any], number: int, mine: slice) -> Batch:
    ids = [made_ids.table_ids(case, number, t)[mine, 0].copy() for t in range(case["tables"])]
    generator = np.random.default_rng([made_ids.SEED, 5, case["batch"], number])
    numbers = generator.standard_normal((case["batch"], case["numbers"]), np.float32)[mine]
    labels = (generator.random(case["batch"]) < 0.25).astype(np.float32)[mine]
    return numbers.copy(), ids, labels


def checksum(batches: list[Batch]) -> int:
    """Of the first batch's ids and labels: equal in all competitors of equally many workers, for rank 0."""
    _, ids, labels = batches[0]
    sums = [int((x * (np.arange(x.size) % 1009 + 1)).sum() % (1 << 40)) for x in ids]
    return sum(sums) + int(labels.sum())
