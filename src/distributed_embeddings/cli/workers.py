"""One process that was asked for N workers becomes N."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

TERMINAL_VARIABLE = "DEMB_TERMINAL"
"""Set to 1 for workers whose output ends on a terminal."""


def in_job() -> bool:
    """Whether a launcher started this process as one of several workers."""
    from distributed_embeddings.comm import detect

    return detect().size > 1


def relaunch(command: str, argv: Sequence[str], workers: int, backend: str) -> int:
    """Run `demb command argv` on N workers and return the job's status."""
    from distributed_embeddings.comm import launch

    return launch(
        [sys.executable, "-m", "distributed_embeddings.cli.main", command, *argv],
        workers,
        backend=backend,
        env={TERMINAL_VARIABLE: "1" if sys.stdout.isatty() else "0"},
    )


def require_size(communicator: Any, workers: int | None) -> None:
    """Raise ValueError when this job has another number of workers than `--workers` says."""
    if workers not in (None, communicator.size):
        raise ValueError(
            f"`--workers` must be this job's number of workers, {communicator.size}, or left out. "
            f"Received: --workers {workers}"
        )
