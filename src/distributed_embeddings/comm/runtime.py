"""The process's one communicator: started once, left once, and the whole job ended when a rank fails."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from .cluster import Cluster, detect
from .communicator import Communicator
from .exits import exit_status, watch_exits


def _local(cluster: Cluster) -> Communicator:
    from .local import LocalCommunicator

    if cluster.size != 1:
        raise ValueError(f'`backend` must not be "local" with {cluster.size} workers ({cluster.source}).')
    return LocalCommunicator()


def _mpi(cluster: Cluster) -> Communicator:
    from .mpi import MpiCommunicator

    communicator = MpiCommunicator(cluster.local_rank, cluster.local_size)
    if (communicator.rank, communicator.size) != (cluster.rank, cluster.size):
        raise ValueError(
            f'`backend` must not be "mpi" here: MPI says rank {communicator.rank} of {communicator.size}, '
            f"{cluster.source} says {cluster.rank} of {cluster.size}. Start with `demb launch` or mpirun."
        )
    return communicator


def _tensorflow(cluster: Cluster) -> Communicator:
    from .collective import CollectiveCommunicator

    communicator: Communicator = CollectiveCommunicator(cluster)
    return communicator


# One entry a backend; imported on use, so that one worker needs no MPI and a launcher no TensorFlow.
BACKENDS: dict[str, Callable[[Cluster], Communicator]] = {
    "local": _local,
    "mpi": _mpi,
    "tensorflow": _tensorflow,
}

_communicator: Communicator | None = None
_left = False
_lock = threading.RLock()
_LAST_WORDS_SECONDS = 0.5


def init(
    backend: str | None = None,
    rank: int | None = None,
    size: int | None = None,
    addresses: Sequence[str] = (),
) -> Communicator:
    """Join the job and return its communicator; later calls return the same one.

    backend: "local", "mpi" or "tensorflow"; by default env DEMB_BACKEND, else what suits the launcher
    (`detect`). rank, size, addresses ("host:port" a rank): explicit places, instead of what the launcher
    says.
    Raises ValueError for an unknown backend, or one that differs from the running one.
    """
    global _communicator
    with _lock:
        if _communicator is None:
            if _left:
                raise RuntimeError(
                    "This process has left the job with shutdown(); init() cannot join it again."
                )
            _communicator = _start(backend, rank, size, addresses)
            atexit.register(_leave)
            if _communicator.size > 1:
                _install_hooks()
        elif backend not in (None, _communicator.backend):
            raise ValueError(
                f"`backend` must be {_communicator.backend!r}, which runs. Received: backend={backend!r}"
            )
        return _communicator


def current() -> Communicator:
    """Return the running communicator; starts the default one on first use."""
    return _communicator or init()


def shutdown() -> None:
    """Leave the job together with all other ranks. Called at exit too."""
    global _communicator, _left
    with _lock:
        communicator, _communicator = _communicator, None
    if communicator is not None:
        _left = communicator.size > 1
        communicator.shutdown()


def rank() -> int:
    """This worker's rank, 0 … size-1."""
    return current().rank


def size() -> int:
    """Number of workers."""
    return current().size


def local_rank() -> int:
    """This worker's rank among those on its machine."""
    return current().local_rank


def local_size() -> int:
    """Number of workers on this machine."""
    return current().local_size


def fail(error: BaseException) -> None:
    """Print `error` with this worker's rank on stderr and end the whole job, non-zero. Returns if alone."""
    communicator = _communicator
    if communicator is not None and communicator.size > 1:
        _end(communicator, error)


def _leave() -> None:
    """At exit: an exception here would be printed and forgotten, so it ends the job as any other.

    So does a non-zero status: the others may compute for long before they meet this rank's leaving.
    """
    communicator = _communicator
    if communicator is not None and communicator.size > 1 and exit_status():
        _abort(communicator, f"exited with status {exit_status()}", exit_status())
    try:
        shutdown()
    except Exception as error:
        if communicator is not None:
            _end(communicator, error)


def _end(communicator: Communicator, error: BaseException) -> None:
    error = communicator.explain(error)  # type: ignore[attr-defined]
    _abort(communicator, f"{type(error).__name__}: {error}", 1)


def _abort(communicator: Communicator, text: str, status: int) -> None:
    """First a moment for what is under way: the others, so that they can print, or name this rank's operation, and
    the launcher, so that it sees the first rank that died and not one that only lost its peer.
    """
    sys.stdout.flush()
    sys.stderr.write(f"[demb rank {communicator.rank}] {text}\n")
    sys.stderr.flush()
    time.sleep(_LAST_WORDS_SECONDS)
    communicator.abort(status)  # type: ignore[attr-defined]
    os._exit(status)


def _start(backend: str | None, rank: int | None, size: int | None, addresses: Sequence[str]) -> Communicator:
    if backend is None:
        backend = os.environ.get("DEMB_BACKEND") or None
    if backend is not None and backend not in BACKENDS:
        raise ValueError(f"`backend` must be one of {sorted(BACKENDS)}. Received: backend={backend!r}")
    cluster = detect(rank, size, addresses)
    return BACKENDS[backend or cluster.backend](cluster)


def _install_hooks() -> None:
    """An uncaught error anywhere ends the job: the others would wait for this rank until their deadline."""
    watch_exits()
    previous, previous_thread = sys.excepthook, threading.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        previous(kind, error, trace)
        fail(error)

    def thread_hook(args: Any) -> None:
        previous_thread(args)
        if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
            fail(args.exc_value)

    sys.excepthook, threading.excepthook = hook, thread_hook
