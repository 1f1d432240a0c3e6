"""Processes that never outlive their launcher."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

_PR_SET_PDEATHSIG = 1
_GRACE_SECONDS = 5.0
TIMEOUT_STATUS = 124  # as timeout(1)


def die_with_parent(number: signal.Signals) -> Callable[[], None]:
    """Return a function for `preexec_fn`: the kernel sends the child `number` when its parent dies."""
    prctl = ctypes.CDLL(None).prctl  # loaded before the fork: after it only the call itself is safe
    value = int(number)

    def call() -> None:
        prctl(_PR_SET_PDEATHSIG, value, 0, 0, 0)

    return call


def worker_environment(env: Mapping[str, str], workers: int) -> dict[str, str]:
    """`env` plus what a worker should use where nobody said.

    Threads: the cores shared out, at least one; TensorFlow's inter-op pool keeps two at least, because an operation
    that waits for a peer holds one. Large pages: TensorFlow's tensors come from malloc, and a peer reads them page by
    page; with 4 KiB pages that takes about twice as long as with 2 MiB ones (glibc asks by madvise, from 2.35 on).
    """
    share = max(1, len(os.sched_getaffinity(0)) // workers)
    defaults = {
        "OMP_NUM_THREADS": share,
        "TF_NUM_INTRAOP_THREADS": share,
        "TF_NUM_INTEROP_THREADS": max(2, share),
    }
    threads = {name: str(n) for name, n in defaults.items() if name not in os.environ}
    pages = {} if "GLIBC_TUNABLES" in os.environ else {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    return {**threads, **pages, **env}


def end_group(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End the groups of `processes` (each a session leader): SIGTERM, a grace time, SIGKILL; reap."""
    running = [p for p in processes if p.poll() is None]
    for process in running:
        _signal(process, signal.SIGTERM)
    deadline = time.monotonic() + _GRACE_SECONDS
    for process in running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
    for process in processes:
        # Also those whose leader has ended: what it left behind in its group.
        _signal(process, signal.SIGKILL)
        process.wait()


def say(text: str, stderr: IO[Any] | None) -> None:
    """Write one line of the launcher to `stderr`, a text or binary file, by default this process's own."""
    line = f"[demb launch] {text}\n"
    target: IO[Any] = stderr or sys.stderr
    target.write(line.encode() if "b" in getattr(target, "mode", "") else line)
    target.flush()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
