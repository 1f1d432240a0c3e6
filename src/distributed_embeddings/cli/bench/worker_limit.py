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
_TOUCHED = 2**30
"""Bytes of rows that are touched before any comes again: more than caches hold, however few a case has."""


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
    return {"count": count}, answer_runs(steps, _pool(count, of.row_bytes))


def whole_lines(row_bytes: int) -> int:
    """The least multiple of a cache line that holds a row."""
    return -(-row_bytes // LINE) * LINE


def _pool(count: int, row_bytes: int) -> int:
    """Sets of rows that take turns."""
    return -(-_TOUCHED // (count * whole_lines(row_bytes)))


def random_rows(num_rows: int, count: int, random: np.random.Generator) -> np.ndarray:
    """count different rows, int64, in random order: one out of every run of num_rows // count."""
    run = num_rows // count
    rows = np.arange(count) * run + random.integers(0, run, count)
    return random.permutation(rows)


def _step(table: TableResource, row_bytes: int, modify: bool, count: int, random: np.random.Generator) -> Any:
    num_rows = LIMIT_TABLE // row_bytes
    first = random_rows(num_rows, count, random)
    # The same order from other places on: drawing every set would take a minute.
    pool = [
        tf.constant((first + move) % num_rows)
        for move in random.integers(0, num_rows, _pool(count, row_bytes))
    ]

    def step(batch: int) -> None:
        rows = pool[batch % len(pool)]
        kernels.library().demb_random_rows(table.handle, rows, row_bytes=row_bytes, modify=modify)

    return step


if __name__ == "__main__":
    serve(start)
