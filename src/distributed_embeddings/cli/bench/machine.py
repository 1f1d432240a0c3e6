"""What a benchmark ran on: machine, versions, commit, load. Everything is read, nothing is set."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

_CPU = Path("/sys/devices/system/cpu/cpu0/cache")
_THP = Path("/sys/kernel/mm/transparent_hugepage")
PACKAGES = ("distributed_embeddings", "tensorflow", "tensorflow-cpu", "keras", "numpy", "mpi4py")


def machine() -> dict[str, Any]:
    """CPU model, cores, caches, memory in bytes, huge page settings, kernel."""
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "instructions": [f for f in ("avx2", "avx512f") if f in _cpu_field("flags").split()],
        "caches": caches(),
        "memory_bytes": meminfo("MemTotal"),
        "transparent_hugepage": _chosen(_read(_THP / "enabled")),
        "hugepage_defrag": _chosen(_read(_THP / "defrag")),
        "kernel": platform.release(),
    }


def versions() -> dict[str, str]:
    """Versions of Python and of the installed packages that matter."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit(directory: Path | None = None) -> str:
    """Commit of the library's source tree, "+changes" behind it where files differ; "unknown" outside of git."""
    here = directory or Path(__file__).resolve().parent
    said = _git(here, "rev-parse", "--short=12", "HEAD")
    if said is None:
        return "unknown"
    changed = _git(here, "status", "--porcelain", "--untracked-files=no")
    return said + ("+changes" if changed else "")


def load() -> dict[str, float]:
    """Load averages, and the share of CPU time that other guests of the host took since boot (steal)."""
    one, five, _ = os.getloadavg()
    fields = [int(x) for x in (_read(Path("/proc/stat")).splitlines() or ["cpu 0"])[0].split()[1:]]
    steal = fields[7] / sum(fields[:8]) if len(fields) > 7 and sum(fields[:8]) else 0.0
    return {"load_1min": one, "load_5min": five, "steal": round(steal, 5)}


class OthersClock:
    """What other programs take of the machine while we measure: CPU time that is neither ours nor our children's.

    A grandchild counts once it has ended and was waited for: read `share` after that.
    """

    def __init__(self) -> None:
        self._begin = time.monotonic(), _busy_seconds(), _own_seconds()

    def share(self) -> float:
        """Share of all cores' time since the beginning, steal included."""
        began, busy, own = self._begin
        elapsed = (time.monotonic() - began) * (os.cpu_count() or 1)
        others = (_busy_seconds() - busy) - (_own_seconds() - own)
        return max(0.0, others / elapsed) if elapsed > 0 else 0.0


def _own_seconds() -> float:
    used = os.times()
    ended = used.children_user + used.children_system
    return used.user + used.system + ended + sum(map(_live_child_seconds, Path("/proc").glob("[0-9]*/stat")))


def _live_child_seconds(stat: Path) -> float:
    """CPU seconds of a process and of what it waited for, if it is a child of this one; else 0."""
    fields = _read(stat).rpartition(")")[2].split()  # from the state on: a name may hold spaces
    if len(fields) < 15 or int(fields[1]) != os.getpid():
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _busy_seconds() -> float:
    """CPU seconds of the whole machine since boot that were not idle."""
    fields = [int(x) for x in (_read(Path("/proc/stat")).splitlines() or ["cpu 0"])[0].split()[1:]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = (fields + [0] * 8)[:8]
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def now() -> str:
    """Local time to the second, ISO 8601."""
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


def environment() -> dict[str, Any]:
    """All of the above: the head of a report."""
    return {
        "date": now(),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "load_before": load(),
    }


def meminfo(field: str) -> int:
    """Bytes of a field of /proc/meminfo: MemTotal, MemAvailable, …; 0 where there is none."""
    for line in _read(Path("/proc/meminfo")).splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return 0


def caches() -> dict[str, str]:
    """Sizes by level, of one core: {"L1d": "32K", "L2": "1024K", "L3": "32768K"}."""
    found = {}
    for index in sorted(_CPU.glob("index*")):
        kind = {"Data": "d", "Instruction": "i"}.get(_read(index / "type"), "")
        found[f"L{_read(index / 'level')}{kind}"] = _read(index / "size")
    return found


def cpu_model() -> str:
    return _cpu_field("model name") or platform.processor() or platform.machine()


def _cpu_field(name: str) -> str:
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def _chosen(text: str) -> str:
    """The setting in brackets of "always [madvise] never"."""
    return text.partition("[")[2].partition("]")[0] or text


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _git(directory: Path, *arguments: str) -> str | None:
    try:
        said = subprocess.run(
            ["git", "-C", str(directory), *arguments], capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return said.stdout.strip() if said.returncode == 0 else None
