"""`demb doctor`: one line a check, ✓ or ✗; non-zero when something needed fails."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

from .options import DoctorOptions

PACKAGES = ("distributed_embeddings", "tensorflow", "keras", "numpy", "mpi4py")
_ALTERNATIVES = {"tensorflow": ("tensorflow", "tensorflow-cpu")}


@dataclass(frozen=True)
class Check:
    """What was found; `ok` False makes the command fail."""

    name: str
    ok: bool
    text: str

    def line(self) -> str:
        return f"{'✓' if self.ok else '✗'} {self.name}: {self.text}"


def run_doctor(options: DoctorOptions) -> int:
    """Print all checks as they end; returns 1 when one failed."""
    checks: list[Callable[[], Check]] = [
        lambda: Check("python", sys.version_info >= (3, 10), sys.version.split()[0]),
        *[lambda name=name: package(name) for name in PACKAGES],  # type: ignore[misc]
        open_mpi,
        kernel,
        devices,
        lambda: exchange("mpi", options.timeout),
        lambda: exchange("tensorflow", options.timeout),
    ]
    failed = 0
    for check in checks:
        done = check()
        failed += not done.ok
        print(done.line(), flush=True)
    print(f"{failed} of {len(checks)} checks failed" if failed else "all is well")
    return 1 if failed else 0


def package(name: str) -> Check:
    """The installed version of a package, under any of the names it is distributed by."""
    for alternative in _ALTERNATIVES.get(name, (name,)):
        try:
            return Check(name, True, importlib.metadata.version(alternative))
        except importlib.metadata.PackageNotFoundError:
            continue
    return Check(name, False, "not installed")


def open_mpi() -> Check:
    """mpirun and the version it says."""
    from distributed_embeddings.comm.launch_mpi import find_mpirun

    try:
        said = subprocess.run([find_mpirun(), "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("Open MPI", False, str(error))
    first = said.stdout.strip().splitlines()[:1]
    return Check("Open MPI", said.returncode == 0, first[0] if first else said.stderr.strip())


def kernel() -> Check:
    """The compiled library; without it plain TensorFlow ops do the same, so that its absence is no failure."""
    code = (
        "import os, warnings; warnings.simplefilter('ignore'); from distributed_embeddings.ops import kernels; "
        "off = os.environ.get('DEMB_KERNELS') == 'off'; why = 'off by DEMB_KERNELS' if off else 'none'; "
        "print('loaded' if kernels.available() and kernels.library() else "
        "f'{why}: plain TensorFlow ops, several times as slow (docs/how-to/build-kernels.md)')"
    )
    try:
        said = _quiet([sys.executable, "-c", code])
    except subprocess.TimeoutExpired as error:
        return Check("kernels", False, str(error))
    text = said.stdout.strip() if said.returncode == 0 else _last_line(said.stderr)
    return Check("kernels", said.returncode == 0, text)


def devices() -> Check:
    """Devices that TensorFlow sees, asked in a process of its own: its log and its memory stay there."""
    code = "import tensorflow as tf; print(*(d.name for d in tf.config.list_physical_devices()))"
    try:
        said = _quiet([sys.executable, "-c", code])
    except subprocess.TimeoutExpired as error:
        return Check("devices", False, str(error))
    text = said.stdout.strip() if said.returncode == 0 else _last_line(said.stderr)
    return Check("devices", said.returncode == 0, text)


def exchange(backend: str, timeout: float) -> Check:
    """Two processes that exchange vectors and sums over a backend, and check what they got."""
    from distributed_embeddings.comm import launch

    name = f"two-process exchange over {backend}"
    command = [sys.executable, "-m", "distributed_embeddings.cli.exchange_check"]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        try:
            status = launch(
                command, 2, backend=backend, timeout=timeout, stdout=out, stderr=err,
                env={"TF_CPP_MIN_LOG_LEVEL": "2"},
            )  # fmt: skip
        except FileNotFoundError as error:
            return Check(name, False, str(error))
        out.seek(0), err.seek(0)
        if status == 0:
            return Check(name, True, "works")
        return Check(name, False, f"status {status}: {_last_line(err.read() or out.read())}")


def _quiet(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    told = [line for line in lines if "[demb" in line] or lines
    return told[0 if told is not lines else -1] if told else "no output"
