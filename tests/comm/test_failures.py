"""A rank that fails, leaves or hangs ends the job: non-zero, soon, with the rank on stderr, and nothing left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from distributed.run import Finished, run_workers

WORKER = Path(__file__).with_name("failing_worker.py")
# The bound for the end of a job, start of two TensorFlow processes included.
SECONDS = 60
ENV = {"DEMB_WATCHDOG_SECONDS": "0.5", "DEMB_DEADLINE_SECONDS": "3"}

BOTH = pytest.mark.parametrize("backend", ["mpi", "tensorflow"])


def run(way: str, backend: str) -> Finished:
    finished = run_workers([WORKER, way], 2, backend, SECONDS, ENV)
    assert finished.returncode not in (0, 124), finished
    pids = [int(pid) for pid in re.findall(r"pid (\d+)", finished.stdout)]
    assert len(pids) == 2, finished
    assert not any(_alive(pid) for pid in pids)
    return finished


def _alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@BOTH
def test_killed(backend: str) -> None:
    stderr = run("kill", backend).stderr
    assert re.search(r"rank:? 1\b.*(SIGKILL|signal 9)|process rank 1 .*signal 9", stderr, re.DOTALL), stderr


@BOTH
@pytest.mark.parametrize("way", ["raise", "raise_in_thread"])
def test_raised(backend: str, way: str) -> None:
    stderr = run(way, backend).stderr
    assert "[demb rank 1] ValueError: feature C3 has a bad id" in stderr
    assert "Traceback" in stderr


@BOTH
@pytest.mark.parametrize(("way", "status"), [("exit", 3), ("exit_alone", 3), ("exit_with_text", 1)])
def test_exited_with_an_error(backend: str, way: str, status: int) -> None:
    finished = run(way, backend)
    assert finished.returncode == status
    assert f"[demb rank 1] exited with status {status}\n" in finished.stderr
    assert ("no more disk" in finished.stderr) == (way == "exit_with_text")


@BOTH
def test_terminated(backend: str) -> None:
    finished = run("terminate", backend)
    assert finished.returncode == 128 + signal.SIGTERM
    assert "deadline" not in finished.stderr


@BOTH
@pytest.mark.parametrize("way", ["leave", "return"])
def test_left_early(backend: str, way: str) -> None:
    stderr = run(way, backend).stderr
    leaves, works = "shutdown 'shutdown' (operation 2)", "all_reduce 'dense gradients' (operation 2)"
    views = [f"rank 1 is in {leaves}, rank 0 in {works}", f"rank 0 is in {works}, rank 1 in {leaves}"]
    assert any(f"{view}: rank 1 has left the job." in stderr for view in views), stderr


@BOTH
def test_in_another_phase(backend: str) -> None:
    stderr = run("other_phase", backend).stderr
    assert (
        "rank 1 is in all_to_all 'ids' (operation 2), rank 0 in all_reduce 'dense gradients' (operation 2)"
        in stderr
        or "rank 0 is in all_reduce 'dense gradients' (operation 2), rank 1 in all_to_all 'ids' (operation 2)"
        in stderr
    ), stderr


@BOTH
def test_late_beyond_the_deadline(backend: str) -> None:
    stderr = run("late", backend).stderr
    waits = r"rank 0 is in all_reduce 'dense gradients' \(operation 2\) and waits for rank\(s\) 1 since"
    assert re.search(rf"\[demb rank 0\] watchdog: {waits}", stderr), stderr
    assert re.search(rf"\[demb rank 0\] .*{waits}.*deadline", stderr), stderr


@pytest.fixture
def launcher() -> Iterator[subprocess.Popen[str]]:
    """`launch` of two late workers, in a process of its own."""
    # A shell starts what it puts in the background with SIGINT ignored, and children inherit that.
    program = (
        "import signal, sys; from distributed_embeddings.comm import launch; "
        "signal.signal(signal.SIGINT, signal.default_int_handler); "
        "launch(sys.argv[2:], 2, backend=sys.argv[1])"
    )
    processes: list[subprocess.Popen[str]] = []

    def start(backend: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", program, backend, sys.executable, str(WORKER), "late"]
        processes.append(
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=os.environ
            )
        )
        return processes[0]

    yield start  # type: ignore[misc]
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


@BOTH
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda n: n.name)
def test_workers_end_with_their_launcher(launcher, backend: str, number: signal.Signals) -> None:
    process = launcher(backend)
    pids = [int(process.stdout.readline().split()[1]) for _ in range(2)]
    process.send_signal(number)
    process.wait(SECONDS)
    end = time.monotonic() + SECONDS
    while any(map(_alive, pids)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not any(map(_alive, pids))


def test_timeout_ends_the_job() -> None:
    finished = run_workers(["-c", "import time; print('up', flush=True); time.sleep(100)"], 2, "mpi", 4)
    assert finished.returncode == 124
    assert "no end after 4 s" in finished.stderr
