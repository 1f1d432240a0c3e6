"""What every operation starts with: all ranks tell each other which operation they are in.

A rank that runs another step, another dtype, or has left the job is so an error at once instead of a hang,
and the receiving side learns how many rows come before it posts a receive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

from .buffers import Array
from .errors import CommunicationError
from .waiting import Waiter

KINDS = ("all_to_all", "all_gather", "reduce_scatter", "all_reduce", "broadcast", "barrier", "shutdown")

_TEXT_BYTES = 256
_TOKEN = np.dtype(
    [
        ("sequence", np.int64),
        ("kind", np.int64),
        ("rows", np.int64),  # rows the sender has for the receiver
        ("row_bytes", np.int64),
        ("check", np.int64),  # whatever else must be equal: reduction and length, root, splits
        ("status", np.int64),  # 1: the sender failed before the exchange, `text` is its error
        ("dtype", "S16"),
        ("text", f"S{_TEXT_BYTES}"),
    ]
)
_TAG = 1


@dataclass(frozen=True)
class Operation:
    """One collective call as its ranks compare it."""

    sequence: int
    kind: str
    phase: str
    dtype: str = ""
    row_bytes: int = 0
    check: int = 0
    error: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.phase!r} (operation {self.sequence})"


class Handshake:
    """Persistent requests to and from every peer, started anew for each operation."""

    def __init__(self, comm: Any, waiter: Waiter) -> None:
        self._rank: int = comm.Get_rank()
        self._size: int = comm.Get_size()
        self._waiter = waiter
        self._sent = np.zeros(self._size, _TOKEN)
        self._received = np.zeros(self._size, _TOKEN)
        self._peers = [p for p in range(self._size) if p != self._rank]
        # Bytes, viewed once: a request keeps the address, so the arrays above are never replaced.
        sent, received = (a.view(np.uint8).reshape(self._size, -1) for a in (self._sent, self._received))
        self._receives = [comm.Recv_init(received[p], p, _TAG) for p in self._peers]
        self._requests = self._receives + [comm.Send_init(sent[p], p, _TAG) for p in self._peers]

    def run(self, operation: Operation, rows: Array) -> Array:
        """Tell rank d that `rows[d]` rows come; return how many come from each rank (int64 [size]).

        Raises CommunicationError when a rank is in another operation, reports an error, or is late.
        """
        self._fill(operation, rows)
        if self._peers:
            MPI.Prequest.Startall(self._requests)
            self._waiter.wait(
                lambda: bool(MPI.Prequest.Testall(self._requests)),
                str(operation),
                self._missing,
                deadline=operation.kind != "shutdown",
            )
            self._compare(operation)
        elif operation.error:
            raise CommunicationError(operation.error, fatal=False)
        counts: Array = self._received["rows"].copy()
        return counts

    def free(self) -> None:
        """Release the persistent requests."""
        for request in self._requests:
            request.Free()

    def _fill(self, operation: Operation, rows: Array) -> None:
        sent = self._sent
        sent["sequence"] = operation.sequence
        sent["kind"] = KINDS.index(operation.kind)
        sent["rows"] = rows
        sent["row_bytes"] = operation.row_bytes
        sent["check"] = operation.check
        sent["status"] = bool(operation.error)
        sent["dtype"] = operation.dtype.encode()
        sent["text"] = (operation.error or operation.phase).encode()[:_TEXT_BYTES]
        self._received[self._rank] = sent[self._rank]

    def _missing(self) -> list[int]:
        return [p for p, request in zip(self._peers, self._receives, strict=True) if not request.Get_status()]

    def _compare(self, operation: Operation) -> None:
        mine = self._sent[self._rank]
        for token in self._received:
            if token["status"]:
                self._raise_reported()
        for field in ("sequence", "kind", "text", "dtype", "row_bytes", "check"):
            for peer, token in enumerate(self._received):
                if token[field] != mine[field]:
                    # Every rank has all tokens, so every rank raises here, and nobody has sent a part yet.
                    gone = KINDS.index("shutdown") in self._received["kind"]
                    raise CommunicationError(self._difference(operation, peer, field), fatal=gone)

    def _raise_reported(self) -> None:
        failed = np.flatnonzero(self._received["status"])
        views = [f"rank {r}: {_decode(self._received[r]['text'])}" for r in failed]
        raise CommunicationError("; ".join(views), fatal=False)

    def _difference(self, operation: Operation, peer: int, field: str) -> str:
        theirs = self._received[peer]
        kind = KINDS[int(theirs["kind"])]
        name = f"{kind} {_decode(theirs['text'])!r} (operation {int(theirs['sequence'])})"
        if kind == "shutdown":
            name += ": it has left the job"
        if field in ("sequence", "kind", "text"):
            return f"rank {peer} is in {name}, rank {self._rank} in {operation}."
        mine = self._sent[self._rank]
        what = (
            "dtype"
            if field == "dtype"
            else "bytes a row"
            if field == "row_bytes"
            else "shape, splits, op or root"
        )
        return (
            f"rank {peer} and rank {self._rank} are in {operation} with different {what}: rank {peer} has "
            f"{_show(theirs, field)}, rank {self._rank} has {_show(mine, field)}."
        )


def _show(token: Any, field: str) -> str:
    value = token[field]
    if field == "dtype":
        return _decode(value)
    rows = f" with {int(token['rows'])} row(s) for this rank" if field == "check" else ""
    return f"{int(value)}{rows}"


def _decode(text: Any) -> str:
    return bytes(text).decode(errors="replace")
