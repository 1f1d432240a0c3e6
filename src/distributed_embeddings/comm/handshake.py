"""What every operation of the mpi backend starts with: all ranks tell each other which operation they are in.

A rank that runs another step, another dtype, or has left the job is so an error at once instead of a hang,
and the receiving side learns how many rows come before it posts a receive.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from mpi4py import MPI

from .buffers import Array
from .errors import CommunicationError
from .tokens import TOKEN, Operation, compare, fill
from .waiting import Waiter

_TAG = 1


class Handshake:
    """Persistent requests to and from every peer, started anew for each operation."""

    def __init__(self, comm: Any, waiter: Waiter) -> None:
        self._rank: int = comm.Get_rank()
        size: int = comm.Get_size()
        self._waiter = waiter
        self._deadlines = {"shutdown": math.inf, "failure": waiter.farewell_seconds}
        self._sent = np.zeros(size, TOKEN)
        self._received = np.zeros(size, TOKEN)
        self._peers = [p for p in range(size) if p != self._rank]
        # Bytes, viewed once: a request keeps the address, so the arrays above are never replaced.
        sent, received = (a.view(np.uint8).reshape(size, -1) for a in (self._sent, self._received))
        self._receives = [comm.Recv_init(received[p], p, _TAG) for p in self._peers]
        self._requests = self._receives + [comm.Send_init(sent[p], p, _TAG) for p in self._peers]

    def run(self, operation: Operation, rows: Any) -> Array:
        """Tell rank d that `rows[d]` rows of each part come; return how many come from each (int64 [size, MOST_PARTS]).

        Leaving has no deadline, telling a failure a short one: the others may be anywhere.
        Raises CommunicationError when a rank is in another operation, reports an error, or is late.
        """
        fill(self._sent, operation, rows)
        self._received[self._rank] = self._sent[self._rank]
        if self._peers:
            MPI.Prequest.Startall(self._requests)
            self._waiter.wait(
                lambda: bool(MPI.Prequest.Testall(self._requests)),
                str(operation),
                self._missing,
                deadline=self._deadlines.get(operation.kind),
            )
            compare(self._received, self._rank, operation)
        elif operation.error:
            raise CommunicationError(operation.error, fatal=False)
        counts: Array = self._received["rows"].copy()
        return counts

    def free(self) -> None:
        """Release the persistent requests."""
        for request in self._requests:
            request.Free()

    def _missing(self) -> list[int]:
        return [p for p, r in zip(self._peers, self._receives, strict=True) if not r.Get_status()]
