"""What ranks tell each other before an operation, and how they compare it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .buffers import Array
from .errors import CommunicationError

KINDS = (
    "all_to_all",
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "broadcast",
    "barrier",
    "shutdown",
    "failure",
)

MOST_PARTS = 8
"""Of one operation."""
_TEXT_BYTES = 256
TOKEN = np.dtype(
    [
        ("sequence", np.int64),
        ("kind", np.int64),
        ("rows", np.int64, MOST_PARTS),  # rows of each part the sender has for the receiver
        ("row_bytes", np.int64, MOST_PARTS),
        ("check", np.int64),  # whatever else must be equal: reduction and length, root, splits
        ("status", np.int64),  # 1: the sender failed before the exchange, `text` is its error
        ("dtype", "S72"),
        ("text", f"S{_TEXT_BYTES}"),
    ]
)


@dataclass(frozen=True)
class Operation:
    """One collective call as its ranks compare it."""

    sequence: int
    kind: str
    phase: str
    dtype: str = ""
    row_bytes: tuple[int, ...] = ()
    check: int = 0
    error: str = ""
    lane: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.phase!r} (operation {self.sequence}{self.lane and f' of the {self.lane}'})"


def fill(tokens: Array, operation: Operation, rows: Any) -> None:
    """Write `operation` into `tokens` (TOKEN), one a receiver; `rows`: for each [receivers, MOST_PARTS], or one for
    all."""
    tokens["sequence"] = operation.sequence
    tokens["kind"] = KINDS.index(operation.kind)
    tokens["rows"] = rows
    tokens["row_bytes"] = 0
    tokens["row_bytes"][:, : len(operation.row_bytes)] = operation.row_bytes
    tokens["check"] = operation.check
    tokens["status"] = bool(operation.error)
    tokens["dtype"] = operation.dtype.encode()
    tokens["text"] = (operation.error or operation.phase).encode()[:_TEXT_BYTES]


def compare(tokens: Array, rank: int, operation: Operation) -> None:
    """Raise CommunicationError unless `tokens` (one a rank, own included) are all in the same operation.

    Every rank has all tokens, so every rank raises, and nobody has sent a part yet.
    """
    if tokens["status"].any():
        failed = np.flatnonzero(tokens["status"])
        views = [f"rank {r}: {_decode(tokens[r]['text'])}" for r in failed]
        raise CommunicationError("; ".join(views), fatal=False)
    for field in ("sequence", "kind", "text", "dtype", "row_bytes", "check"):
        differ = (tokens[field] != tokens[rank][field]).reshape(len(tokens), -1).any(1)
        for peer in np.flatnonzero(differ).tolist():
            gone = KINDS.index("shutdown") in tokens["kind"]
            raise CommunicationError(_difference(tokens, rank, operation, peer, field), fatal=gone)


def _difference(tokens: Array, rank: int, operation: Operation, peer: int, field: str) -> str:
    theirs = tokens[peer]
    kind = KINDS[int(theirs["kind"])]
    if field in ("sequence", "kind", "text"):
        name = f"{kind} {_decode(theirs['text'])!r} (operation {int(theirs['sequence'])})"
        left = peer if kind == "shutdown" else rank if operation.kind == "shutdown" else None
        gone = "" if left is None else f": rank {left} has left the job"
        return f"rank {peer} is in {name}, rank {rank} in {operation}{gone}."
    names = {"dtype": "dtype", "row_bytes": "bytes a row", "check": "shape, splits, op or root (digest)"}
    return (
        f"rank {peer} and rank {rank} are in {operation} with different {names[field]}: rank {peer} has "
        f"{_show(theirs[field])}, rank {rank} has {_show(tokens[rank][field])}."
    )


def _show(value: Any) -> str:
    if isinstance(value, bytes):
        return _decode(value)
    numbers = np.atleast_1d(value)
    return ", ".join(str(int(n)) for n in numbers[: max(1, np.count_nonzero(numbers))])


def _decode(text: Any) -> str:
    return bytes(text).decode(errors="replace")
