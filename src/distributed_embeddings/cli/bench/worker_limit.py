"""The machine's own limit as a competitor: `python -m distributed_embeddings.cli.bench.worker_limit`.

Random rows of a table of 4 GiB in huge pages, read and summed up ("gather"), or read, changed and written back
("modify"). It takes turns with the others, because a machine's memory has moods too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from distributed_embeddings.ops import kernels
from distributed_embeddings.ops.table_resource import TableResource

from .cases import LIMIT_TABLE, Case
from .peers.protocol import Answer, answer_runs, serve
from .tensorflow_steps import use_threads

LINE = 64
"""Bytes of a cache line: rows lie on whole ones; only their own bytes count."""
_MOST_ROWS = 2**20
_POOL = 4


def start(case: dict[str, Any]) -> tuple[dict[str, Any], Answer]:
    """Make the table and the rows of a case: as many as it looks up, at most 2^20; to be modified no row twice.

    Raises NotImplementedError where the library has no kernels.
    """
    if not kernels.available():
        raise NotImplementedError(
            "the library was built without the kernels that measure the machine's limit"
        )
    use_threads(case["threads"])
    of = Case(**case)
    table = TableResource(
        shape=(LIMIT_TABLE // LINE, LINE // 4), dtype="float32", trainable=False, name="limit"
    )
    count = min(of.ids, _MOST_ROWS)
    random = np.random.default_rng(0)
    phases = {"gather": of.row_bytes, "modify": of.row_bytes + of.slot_bytes}
    steps = {
        phase: _step(table, whole_lines(row_bytes), phase == "modify", count, random)
        for phase, row_bytes in phases.items()
    }
    return {"count": count}, answer_runs(steps, _POOL)


def whole_lines(row_bytes: int) -> int:
    """The least multiple of a cache line that holds a row."""
    return -(-row_bytes // LINE) * LINE


def random_rows(num_rows: int, count: int, random: np.random.Generator) -> np.ndarray:
    """count different rows, int64, in random order: one out of every run of num_rows // count."""
    run = num_rows // count
    rows = np.arange(count) * run + random.integers(0, run, count)
    return random.permutation(rows)


def _step(table: TableResource, row_bytes: int, modify: bool, count: int, random: np.random.Generator) -> Any:
    pool = [tf.constant(random_rows(LIMIT_TABLE // row_bytes, count, random)) for _ in range(_POOL)]

    def step(batch: int) -> None:
        kernels.library().demb_random_rows(table.handle, pool[batch], row_bytes=row_bytes, modify=modify)

    return step


if __name__ == "__main__":
    serve(start)
