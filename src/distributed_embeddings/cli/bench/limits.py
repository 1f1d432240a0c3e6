"""The machine's own limits: random rows of a large table in huge pages, gathered, and modified in place.

A process of its own: `python -m distributed_embeddings.cli.bench.limits` answers
{"start": {"row_bytes": …, "threads": …}}.
"""

from __future__ import annotations

import sys
from typing import Any

from . import machine
from .peers.protocol import Answer, serve
from .process import Worker, WorkerError

LINE = 64
"""Bytes of a cache line: rows are read and written in whole ones."""
_TABLE = 4 * 2**30
"""Bytes of the table: far beyond caches and TLB, as the aims mean it."""
_ROWS, _REPEATS = 2**20, 7


def measure(row_bytes: int, threads: int) -> dict[str, float]:
    """Bytes of rows a second, in 1e9, over random rows of row_bytes bytes each on `threads` threads; the fastest of
    some tries.

    "gather_gbps": rows are read and summed up; "modify_gbps": rows are read, changed and written back, no row twice,
    each counted once. Rows lie on whole cache lines; only their own bytes count. To be called before TensorFlow has
    started its threads. Raises NotImplementedError where the library has no kernels.
    """
    import tensorflow as tf

    from distributed_embeddings.ops import kernels

    operation = getattr(kernels.library(), "demb_memory_limits", None) if kernels.available() else None
    if operation is None:
        raise NotImplementedError(
            "the library was built without the kernels that measure the machine's limits"
        )
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    seconds = operation(
        row_bytes=whole_lines(row_bytes),
        table_bytes=table_bytes(machine.meminfo("MemAvailable")),
        count=_ROWS,
        repeats=_REPEATS,
    ).numpy()
    gather, modify = (_ROWS * row_bytes / float(each.min()) / 1e9 for each in seconds)
    return {"gather_gbps": gather, "modify_gbps": modify}


def whole_lines(row_bytes: int) -> int:
    """The least multiple of a cache line that holds a row."""
    return -(-row_bytes // LINE) * LINE


def table_bytes(available: int) -> int:
    """4 GiB, or half the free memory where there is less; whole GiB while there is one, at least 1 GiB."""
    return max(1, min(_TABLE, available // 2) // 2**30) * 2**30


class Limits:
    """Limits by (row bytes, threads), each measured once, in a process that ends at once."""

    def __init__(self, known: list[dict[str, Any]]) -> None:
        self.known = known
        self.reason: str | None = None

    def find(self, row_bytes: int, threads: int) -> dict[str, Any] | None:
        """The limit, measured where it is not known; None where it cannot be: see `reason`."""
        for entry in self.known:
            if (entry["row_bytes"], entry["threads"]) == (row_bytes, threads):
                return entry
        if self.reason is not None:
            return None
        try:
            with Worker("limits", [sys.executable, "-m", __name__]) as worker:
                measured = worker.ask({"start": {"row_bytes": row_bytes, "threads": threads}})
        except WorkerError as error:
            self.reason = str(error).splitlines()[0]
            return None
        self.known.append({"row_bytes": row_bytes, "threads": threads, **measured})
        return self.known[-1]


def _start(request: dict[str, Any]) -> tuple[dict[str, Any], Answer]:
    def answer(request: dict[str, Any]) -> dict[str, Any]:
        return measure(request["row_bytes"], request["threads"])

    return answer(request), answer


if __name__ == "__main__":
    serve(_start)
