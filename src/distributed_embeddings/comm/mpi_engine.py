"""Collectives on NumPy arrays over mpi4py: handshake, then parts point to point, then sums in rank order."""

from __future__ import annotations

import contextlib
import math
import threading
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from .arguments import op_error, root_error, scalar_error, splits_error
from .buffers import Array, BufferPool, as_bytes
from .errors import CommunicationError
from .exchange import MESSAGE_BYTES, Exchange
from .handshake import Handshake
from .reductions import reduce_parts
from .tokens import MOST_PARTS, Operation
from .waiting import Waiter

# Up to here every rank sends all it has to all and sums alone: one trip instead of two.
ONE_TRIP_BYTES = 1 << 16


class MpiEngine:
    """One duplicated communicator, so that the user's own MPI traffic never meets this one.

    lane: what its operations are called in errors, when a process has several.
    """

    def __init__(self, lane: str = "") -> None:
        self._lane = lane
        self._comm: Any = MPI.COMM_WORLD.Dup()
        self.rank: int = self._comm.Get_rank()
        self.size: int = self._comm.Get_size()
        self._waiter = Waiter(self.rank)
        self._handshake = Handshake(self._comm, self._waiter)
        self._exchange = Exchange(self._comm, self._waiter)
        self._pool = BufferPool()
        self._sequence = 0
        self._failure: BaseException | None = None
        self.last_error: BaseException | None = None
        self._closed = False
        # Two threads that communicate at once would break the order; the lock keeps it an error, not a torn
        # message.
        self._lock = threading.Lock()

    def all_to_all(self, values: Sequence[Array], splits: Sequence[Array], phase: str) -> list[Array]:
        """Parts: values [n, ...], splits int64 [size] → rows by source of each, then int64 [size] of each."""
        with self._lock:
            errors = [splits_error(v.shape, s, self.size, phase) for v, s in zip(values, splits, strict=True)]
            error = next((e for e in errors if e), "")
            rows = np.zeros((self.size, MOST_PARTS), np.int64)
            if not error:
                rows[:, : len(splits)] = np.stack(splits, 1)
            told, name = self._meet("all_to_all", values, rows, phase, error=error)
            counts = [told[:, k].copy() for k in range(len(values))]
            received = [
                self._pool.take((int(c.sum()), *v.shape[1:]), v.dtype)
                for v, c in zip(values, counts, strict=True)
            ]
            own = [_cut(np.ascontiguousarray(v), s) for v, s in zip(values, splits, strict=True)]
            into = [_cut(r, c) for r, c in zip(received, counts, strict=True)]
            self._run(_by_peer(own), _by_peer(into), name)
            return [*received, *counts]

    def all_gather(self, values: Array, phase: str) -> tuple[Array, Array]:
        """values [n_r, ...] → (rows by source, int64 [size])."""
        with self._lock:
            error = scalar_error(values.shape, phase)
            rows = values.shape[0] if values.ndim else 0
            told, name = self._meet("all_gather", [values], rows, phase, error=error)
            counts = told[:, 0].copy()
            received = self._pool.take((int(counts.sum()), *values.shape[1:]), values.dtype)
            self._run([[np.ascontiguousarray(values)]] * self.size, _by_peer([_cut(received, counts)]), name)
            return received, counts

    def reduce_scatter(self, values: Array, splits: Array, phase: str) -> Array:
        """values [n, ...], splits int64 [size] equal on all ranks → the sum of this rank's rows."""
        with self._lock:
            error = splits_error(values.shape, splits, self.size, phase) or op_error("sum", values.dtype)
            check = zlib.crc32(np.ascontiguousarray(splits).tobytes())
            _, name = self._meet("reduce_scatter", [values], 0, phase, check=check, error=error)
            shape = (int(splits[self.rank]), *values.shape[1:])
            parts = [self._pool.take(shape, values.dtype) for _ in range(self.size)]
            own = _cut(np.ascontiguousarray(values), splits)
            parts[self.rank] = own[self.rank]
            self._run(_by_peer([own]), _by_peer([parts]), name)
            out = self._pool.take(shape, values.dtype)
            reduce_parts(parts, "sum", out)
            return out

    def all_reduce(self, values: Array, op: str, phase: str) -> Array:
        """Equal shapes → the reduction, the same bits on every rank."""
        with self._lock:
            error = op_error(op, values.dtype)
            check = zlib.crc32(repr((op, values.shape)).encode())
            _, name = self._meet("all_reduce", [values], values.size, phase, check=check, error=error)
            flat = np.ascontiguousarray(values).reshape(-1)
            out = self._pool.take(flat.shape, flat.dtype)
            if flat.nbytes <= ONE_TRIP_BYTES:
                self._reduce_in_one_trip(flat, op, out, name)
            else:
                self._reduce_in_two_trips(flat, op, out, name)
            return out.reshape(values.shape)

    def broadcast(self, values: Array, root: int, phase: str) -> Array:
        """Equal shapes → `root`'s values."""
        with self._lock:
            error = root_error(root, self.size, phase)
            check = zlib.crc32(repr((root, values.shape)).encode())
            _, name = self._meet("broadcast", [values], 0, phase, check=check, error=error)
            out = self._pool.take(values.shape, values.dtype)
            if self.rank == root:
                out[...] = values
            flat = as_bytes(out)
            for start in range(0, flat.size, MESSAGE_BYTES):
                request = self._comm.Ibcast(flat[start : start + MESSAGE_BYTES], root)
                self._wait(request, name, root)
            return out

    def barrier(self, phase: str) -> None:
        """Wait for every rank: the handshake alone does."""
        with self._lock:
            self._meet("barrier", [], 0, phase)

    def share_core(self, shared: bool = True) -> None:
        """Whether another thread of this process communicates too, or computes, while this one waits."""
        self._waiter.share_core(shared)

    def when_waiting(self, call: Callable[[], None] | None) -> None:
        """See Communicator.when_waiting."""
        self._exchange.when_waiting = call

    def tell_failure(self, text: str) -> None:
        """See Communicator.tell_failure."""
        with self._lock:
            if self._closed or self._failure is not None:
                return
            with contextlib.suppress(CommunicationError, ValueError):
                self._meet("failure", [], 0, "failure", error=text)

    def shutdown(self) -> None:
        """Leave together with all others, without a deadline. After a failure nobody comes: leave alone."""
        with self._lock:
            if self._closed:
                return
            if self._failure is None:
                self._meet("shutdown", [], 0, "shutdown")
                self._handshake.free()
                self._comm.Free()
            self._closed = True

    def abort(self, status: int) -> None:
        """End all processes of the job; `status` is this one's."""
        self._comm.Abort(status)

    def _meet(
        self, kind: str, values: Sequence[Array], rows: Any, phase: str, *, check: int = 0, error: str = ""
    ) -> tuple[Array, str]:
        """Run the handshake. Returns (rows of each part from each rank, the operation's name).

        A rank whose arguments are wrong meets the others too, so that all ranks raise, with its text.
        """
        if self._closed:
            raise CommunicationError(
                f"rank {self.rank} has left the job; {kind} {phase!r} came after shutdown()."
            )
        if self._failure is not None:
            raise CommunicationError(f"{kind} {phase!r} after an earlier failure: {self._failure}")
        self._sequence += 1
        self.last_error = None
        dtype = ",".join(v.dtype.name for v in values)
        row_bytes = tuple(v.dtype.itemsize * math.prod(v.shape[1:]) for v in values)
        operation = Operation(self._sequence, kind, phase, dtype, row_bytes, check, error, self._lane)
        try:
            return self._handshake.run(operation, rows), str(operation)
        except CommunicationError as failure:
            self._failure = failure if failure.fatal else None
            self.last_error = failure
            if error:
                raise ValueError(error) from failure
            raise

    def _run(self, outgoing: Any, incoming: Any, name: str) -> None:
        try:
            self._exchange.run(outgoing, incoming, name)
        except CommunicationError as failure:
            self._failure = self.last_error = failure
            raise

    def _wait(self, request: Any, name: str, source: int) -> None:
        try:
            self._waiter.wait(lambda: bool(request.Test()), name, lambda: [source])
        except CommunicationError as failure:
            self._failure = self.last_error = failure
            raise

    def _reduce_in_one_trip(self, flat: Array, op: str, out: Array, name: str) -> None:
        parts = [np.empty_like(flat) for _ in range(self.size)]
        parts[self.rank] = flat
        self._run([[flat]] * self.size, _by_peer([parts]), name)
        reduce_parts(parts, op, out)

    def _reduce_in_two_trips(self, flat: Array, op: str, out: Array, name: str) -> None:
        """Rank r reduces the r-th part of everybody, then sends the result to all."""
        share = np.full(self.size, flat.size // self.size, np.int64)
        share[: flat.size % self.size] += 1
        own, results = _cut(flat, share), _cut(out, share)
        parts = [self._pool.take((int(share[self.rank]),), flat.dtype) for _ in range(self.size)]
        parts[self.rank] = own[self.rank]
        self._run(_by_peer([own]), _by_peer([parts]), name)
        reduce_parts(parts, op, results[self.rank])
        self._run([[results[self.rank]]] * self.size, _by_peer([results]), name)


def _by_peer(parts: Sequence[Sequence[Array]]) -> list[list[Array]]:
    """Parts by rank → by rank all its parts."""
    return [list(of_peer) for of_peer in zip(*parts, strict=True)]


def require_threads() -> None:
    """Raise RuntimeError unless several threads may be inside MPI at once."""
    level = MPI.Query_thread()
    if level < MPI.THREAD_MULTIPLE:
        raise RuntimeError(
            "this MPI must be started with MPI_THREAD_MULTIPLE for communication in two threads. "
            f"Received: thread level {level} (single {MPI.THREAD_SINGLE} … multiple {MPI.THREAD_MULTIPLE}). "
            "Set MPI4PY_RC_THREAD_LEVEL=multiple, or use an MPI built with thread support."
        )


def _cut(rows: Array, splits: Array) -> list[Array]:
    ends = np.cumsum(splits)
    return [rows[end - count : end] for end, count in zip(ends.tolist(), splits.tolist(), strict=True)]
