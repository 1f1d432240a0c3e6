"""Run a script on N worker processes and look at what it printed: for tests of every room."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from distributed_embeddings.comm import launch


@dataclass(frozen=True)
class Finished:
    """How a group ended: the launcher's status and all workers' streams, mixed."""

    returncode: int
    stdout: str
    stderr: str

    def check(self) -> Finished:
        """Return self; raise AssertionError with both streams unless the status is 0."""
        if self.returncode:
            raise AssertionError(
                f"status {self.returncode}\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"
            )
        return self


def run_workers(
    arguments: str | Path | Sequence[str | Path],
    workers: int,
    backend: str = "mpi",
    timeout: float = 120,
    env: Mapping[str, str] | None = None,
) -> Finished:
    """Run `python *arguments` on `workers` processes; status 124 after `timeout` seconds. Nothing is left behind.

    arguments: a script, or a list such as ["-m", "package.module", "--flag"]. backend: "mpi", "tensorflow",
    or "local" for one plain process.
    """
    listed = [arguments] if isinstance(arguments, str | Path) else list(arguments)
    command = [sys.executable, *map(str, listed)]
    added = {"TF_CPP_MIN_LOG_LEVEL": "2", **(env or {})}
    if backend == "local":
        if workers != 1:
            raise ValueError(f'`workers` must be 1 with backend="local". Received: workers={workers}')
        command = ["env", "DEMB_BACKEND=local", *command]
    with tempfile.TemporaryFile("w+b") as out, tempfile.TemporaryFile("w+b") as err:
        status = launch(
            command,
            workers,
            backend="tensorflow" if backend == "local" else backend,
            timeout=timeout,
            env=added,
            stdout=out,
            stderr=err,
        )
        return Finished(status, _text(out), _text(err))


def _text(stream: tempfile._TemporaryFileWrapper) -> str:  # type: ignore[type-arg]
    os.lseek(stream.fileno(), 0, os.SEEK_SET)
    return stream.read().decode(errors="replace")
