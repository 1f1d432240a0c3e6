"""Starts N workers and ends them all when one fails."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any

from .launch_mpi import mpirun_command
from .launch_processes import TIMEOUT_STATUS, die_with_parent, end_group, say, worker_environment
from .launch_tensorflow import run_tensorflow_workers


def launch(
    command: Sequence[str],
    workers: int,
    *,
    backend: str = "mpi",
    hosts: str | None = None,
    timeout: float | None = None,
    env: Mapping[str, str] | None = None,
    stdout: IO[Any] | None = None,
    stderr: IO[Any] | None = None,
) -> int:
    """Run `command` on `workers` processes; return 0 when all end with 0, else a failing worker's status.

    backend: "mpi" (mpirun) or "tensorflow" (local processes with TF_CONFIG). hosts: "a:2,b:2" for mpirun.
    timeout: seconds, then everything is ended and 124 returned. env: variables added to the workers'
    environment. stdout, stderr: files for the workers' streams; by default this process's own.
    Raises ValueError for wrong arguments, FileNotFoundError when there is no mpirun.
    """
    if not command:
        raise ValueError("`command` must name a program. Received: command=[]")
    if workers < 1:
        raise ValueError(f"`workers` must be at least 1. Received: workers={workers}")
    added = worker_environment(env or {}, workers)
    if backend == "tensorflow":
        if hosts:
            raise ValueError(
                '`hosts` must be None with backend="tensorflow": use TF_CONFIG or srun there. '
                f"Received: hosts={hosts!r}"
            )
        return run_tensorflow_workers(command, workers, added, timeout, stdout, stderr)
    if backend != "mpi":
        raise ValueError(f'`backend` must be "mpi" or "tensorflow". Received: backend={backend!r}')
    added["DEMB_BACKEND"] = "mpi"
    return _run(mpirun_command(command, workers, hosts, added), added, timeout, stdout, stderr)


def _run(
    command: list[str],
    added: Mapping[str, str],
    timeout: float | None,
    stdout: IO[Any] | None,
    stderr: IO[Any] | None,
) -> int:
    # Its own session: a Ctrl-C reaches mpirun once, from here, and the whole group can be ended.
    process = subprocess.Popen(
        command,
        env={**os.environ, **added},
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        preexec_fn=die_with_parent(signal.SIGTERM),
    )
    deadline = None if timeout is None else time.monotonic() + timeout
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = process.wait(0.2 if deadline else None)
                return status if status >= 0 else 128 - status
            if deadline and time.monotonic() >= deadline:
                say(f"no end after {timeout:g} s: ending all workers", stderr)
                return TIMEOUT_STATUS
    finally:
        end_group([process])
