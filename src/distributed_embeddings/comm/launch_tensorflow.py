"""Local workers of the TensorFlow backend: one process a worker, its place in TF_CONFIG."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any

from .launch_processes import TIMEOUT_STATUS, die_with_parent, end_group, say

_POLL_SECONDS = 0.05


def run_tensorflow_workers(
    command: Sequence[str],
    workers: int,
    added: Mapping[str, str],
    timeout: float | None,
    stdout: IO[Any] | None,
    stderr: IO[Any] | None,
) -> int:
    """Start the workers, wait for all; the first that fails ends the others. Returns as `launch`."""
    addresses = [f"localhost:{port}" for port in _free_ports(workers)]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(workers):
            task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}}
            processes.append(
                subprocess.Popen(
                    list(command),
                    env={**os.environ, **added, "DEMB_BACKEND": "tensorflow", "TF_CONFIG": json.dumps(task)},
                    stdout=stdout,
                    stderr=stderr,
                    start_new_session=True,
                    preexec_fn=die_with_parent(signal.SIGKILL),
                )
            )
        return _watch(processes, timeout, stderr)
    finally:
        end_group(processes)


def _watch(
    processes: Sequence[subprocess.Popen[bytes]], timeout: float | None, stderr: IO[Any] | None
) -> int:
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        states = [process.poll() for process in processes]
        failed = [(status, rank) for rank, status in enumerate(states) if status]
        if failed:
            # A signal (negative) first: an exit status is often the answer to a peer's death.
            for status, rank in sorted(failed):
                say(f"worker rank {rank} {_how(status)}: ending all workers", stderr)
            status = min(failed)[0]
            return status if status > 0 else 128 - status
        if all(status == 0 for status in states):
            return 0
        if deadline and time.monotonic() >= deadline:
            say(f"no end after {timeout:g} s: ending all workers", stderr)
            return TIMEOUT_STATUS
        time.sleep(_POLL_SECONDS)


def _how(status: int) -> str:
    if status > 0:
        return f"ended with exit status {status}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-status).name}"
    return f"was killed by signal {-status}"


def _free_ports(count: int) -> list[int]:
    """Ports free now: all held open together, so that they differ."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("localhost", 0))
        return [each.getsockname()[1] for each in sockets]
