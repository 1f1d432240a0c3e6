"""Parts of a Markdown report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """Lines of a table; numbers are the caller's to format."""
    lines = ["| " + " | ".join(headers) + " |", "|" + "---|" * len(headers)]
    return lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]


def milliseconds(seconds: float) -> str:
    """Three significant digits of milliseconds."""
    ms = seconds * 1e3
    return f"{ms:.0f}" if ms >= 100 else f"{ms:.1f}" if ms >= 10 else f"{ms:.2f}"


def heading(environment: Mapping[str, Any]) -> list[str]:
    """The lines that say where and when: what `machine.environment` gave."""
    m, before = environment["machine"], environment["load_before"]
    caches = ", ".join(f"{k} {v}" for k, v in m["caches"].items())
    versions = ", ".join(f"{k} {v}" for k, v in environment["versions"].items())
    quiet = "quiet" if before["load_1min"] < 0.5 else "NOT quiet: take times with care, ratios less so"
    return [
        f"- Date {environment['date']}, commit {environment['commit']}",
        f"- Machine: {m['cpu']}, {m['cores']} cores, {'/'.join(m['instructions'])}, {caches}, "
        f"{m['memory_bytes'] / 2**30:.1f} GiB, transparent huge pages: {m['transparent_hugepage']} "
        f"(defrag {m['hugepage_defrag']}), kernel {m['kernel']}",
        f"- Versions: {versions}",
        f"- Load before the start: {before['load_1min']:.2f} (1 min), {before['load_5min']:.2f} (5 min); "
        f"steal since boot {before['steal']:.2%}; {quiet}",
    ]


def write(path: Path, lines: Iterable[str]) -> None:
    """Write lines, whole or not at all: an old report stays when the disk is full."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text("\n".join(lines).rstrip() + "\n")
    partial.replace(path)
