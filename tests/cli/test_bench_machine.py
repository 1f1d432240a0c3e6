"""What reports say of the machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from distributed_embeddings.cli.bench import machine
from distributed_embeddings.cli.bench.markdown import heading, write

SPIN = "import time; end = time.process_time() + 0.5\nwhile time.process_time() < end: pass"


def test_environment_is_told():
    found = machine.environment()
    assert found["machine"]["cores"] == len(os.sched_getaffinity(0))
    assert found["machine"]["memory_bytes"] > 2**28
    assert {"python", "keras", "numpy"} <= set(found["versions"])
    lines = "\n".join(heading(found))
    assert found["machine"]["cpu"] in lines
    assert found["commit"] in lines


def test_a_directory_outside_of_git(tmp_path):
    assert machine.commit(tmp_path) == "unknown"


def test_own_children_are_no_others(monkeypatch):
    """The machine being as busy as we and our children are, others take nothing; what nobody of us used is theirs."""
    busy = {"extra": 0.0}
    base = machine._own_seconds()
    monkeypatch.setattr(machine, "_busy_seconds", lambda: machine._own_seconds() - base + busy["extra"])
    clock = machine.OthersClock()
    subprocess.run([sys.executable, "-c", SPIN], check=True)
    assert machine._own_seconds() - base >= 0.5
    assert clock.share() < 0.01
    busy["extra"] = 1000.0
    assert clock.share() > 1.0


def test_busy_seconds_count_work():
    before, end = machine._busy_seconds(), time.process_time() + 0.3
    while time.process_time() < end:
        pass
    assert machine._busy_seconds() - before > 0.2


def test_a_report_is_replaced_whole(tmp_path):
    path = tmp_path / "new" / "report.md"
    write(path, ["a", "b", ""])
    write(path, ["c"])
    assert path.read_text() == "c\n"
    assert list(path.parent.iterdir()) == [path]


def test_a_live_child_counts_and_counts_once():
    base = machine._own_seconds()
    with subprocess.Popen(
        [sys.executable, "-c", f"{SPIN}\nprint('done', flush=True)\ninput()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as child:  # fmt: skip
        assert child.stdout.readline() == "done\n"
        living = machine._own_seconds() - base
        child.communicate("\n")
    assert living >= 0.4
    assert living - 0.1 <= machine._own_seconds() - base <= living + 0.3
