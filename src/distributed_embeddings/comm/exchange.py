"""Moves parts between ranks: one nonblocking message a peer and GiB, polled without holding a core."""

from __future__ import annotations

from collections.abc import Sequence
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

    def run(self, outgoing: Sequence[Array | None], incoming: Sequence[Array | None], operation: str) -> None:
        """Send `outgoing[d]` to every rank d while `incoming[s]` is filled from every rank s.

        C-contiguous arrays; both sides know the lengths; None or empty: no message. This rank's own part is
        copied.
        Raises CommunicationError at the deadline.
        """
        requests: list[Any] = []
        sources: list[tuple[int, Any]] = []
        for peer in self._peers():
            received = [self._comm.Irecv(m, peer, _TAG) for m in _messages(incoming[peer])]
            sources += [(peer, request) for request in received]
            requests += received
        for peer in self._peers():
            requests += [self._comm.Isend(m, peer, _TAG) for m in _messages(outgoing[peer])]
        self._copy_own(outgoing[self._rank], incoming[self._rank])
        if requests:
            self._waiter.wait(
                lambda: bool(MPI.Request.Testall(requests)),
                operation,
                lambda: sorted({peer for peer, request in sources if not request.Get_status()}),
            )

    def _peers(self) -> list[int]:
        """All other ranks, starting behind this one, so that not everybody sends to rank 0 first."""
        return [(self._rank + step) % self._size for step in range(1, self._size)]

    @staticmethod
    def _copy_own(source: Array | None, target: Array | None) -> None:
        if source is not None and target is not None and target is not source:
            target[...] = source


def _messages(part: Array | None) -> list[Array]:
    if part is None or part.size == 0:
        return []
    flat = as_bytes(part)
    return [flat[i : i + MESSAGE_BYTES] for i in range(0, flat.size, MESSAGE_BYTES)]
