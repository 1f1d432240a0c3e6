"""The machine's own limits: random rows of a large table in huge pages, gathered, and modified in place.

A process of its own: `python -m distributed_embeddings.cli.bench.limits` answers {"row_bytes": …, "threads": …}.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

from .peers.protocol import Answer, serve
from .process import Worker, WorkerError

_MODULE = "distributed_embeddings.ops.limits"


def measure(row_bytes: int, threads: int) -> dict[str, float]:
    """Bytes of rows a second, in 1e9, over random rows of row_bytes bytes each on `threads` threads.

    "gather_gbps": rows read and written to a small buffer; "modify_gbps": rows read, changed and written back, a row
    counted once. Raises NotImplementedError where the library holds no kernel that measures them.
    """
    if importlib.util.find_spec(_MODULE) is None:
        raise NotImplementedError("the library was built without kernels that measure the machine's limits")
    return dict(importlib.import_module(_MODULE).measure(row_bytes, threads))


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
                measured = worker.ask({"row_bytes": row_bytes, "threads": threads})
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
