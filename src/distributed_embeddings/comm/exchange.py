"""Moves parts between ranks: one nonblocking message a peer and GiB, polled without holding a core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mpi4py import MPI

from .buffers import Array, as_bytes
from .waiting import Waiter

# MPI counts are C ints before MPI 4: a longer part goes as several messages.
MESSAGE_BYTES = 1 << 30
_TAG = 2


class Exchange:
    """Point-to-point all-to-all of byte parts over one communicator."""

    def __init__(self, comm: Any, waiter: Waiter) -> None:
        self._comm = comm
        self._rank: int = comm.Get_rank()
        self._size: int = comm.Get_size()
        self._waiter = waiter
        self.when_waiting: Callable[[], None] | None = None  # called when a run has sent its part

    def run(
        self, outgoing: Sequence[Sequence[Array]], incoming: Sequence[Sequence[Array]], operation: str
    ) -> None:
        """Send the arrays `outgoing[d]` to every rank d while `incoming[s]` are filled from every rank s.

        C-contiguous arrays; both sides know the lengths; empty: no message. This rank's own are copied.
        Raises CommunicationError at the deadline.
        """
        requests: list[Any] = []
        sources: list[tuple[int, Any]] = []
        for peer in self._peers():
            messages = [m for part in incoming[peer] for m in _messages(part)]
            received = [self._comm.Irecv(m, peer, _TAG) for m in messages]
            sources += [(peer, request) for request in received]
            requests += received
        for peer in self._peers():
            messages = [m for part in outgoing[peer] for m in _messages(part)]
            requests += [self._comm.Isend(m, peer, _TAG) for m in messages]
        for source, target in zip(outgoing[self._rank], incoming[self._rank], strict=True):
            if target is not source:
                target[...] = source
        if self.when_waiting is not None:
            self.when_waiting()
        if requests:
            self._waiter.wait(
                lambda: bool(MPI.Request.Testall(requests)),
                operation,
                lambda: sorted({peer for peer, request in sources if not request.Get_status()}),
            )

    def _peers(self) -> list[int]:
        """All other ranks, starting behind this one, so that not everybody sends to rank 0 first."""
        return [(self._rank + step) % self._size for step in range(1, self._size)]


def _messages(part: Array) -> list[Array]:
    if part.size == 0:
        return []
    flat = as_bytes(part)
    return [flat[i : i + MESSAGE_BYTES] for i in range(0, flat.size, MESSAGE_BYTES)]
