"""`demb launch` and `demb doctor`."""

import sys

import pytest
from demb_commands import demb

from distributed_embeddings.cli import doctor

PRINT_PLACE = (
    "import sys; from distributed_embeddings.comm import detect; c = detect(); "
    "print(f'I am {c.rank} of {c.size}', sys.argv[1:])"
)


@pytest.mark.parametrize("backend", ["mpi", "tensorflow"])
def test_workers_know_their_place(tmp_path, backend):
    done = demb(
        tmp_path,
        "launch",
        "-n",
        "2",
        "--backend",
        backend,
        "--",
        sys.executable,
        "-c",
        PRINT_PLACE,
        "--x",
        "--",
    )
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        assert f"I am {rank} of 2 ['--x', '--']" in done.stdout


@pytest.mark.parametrize("backend", ["mpi", "tensorflow"])
def test_exit_status_passes(tmp_path, backend):
    code = "import sys; sys.exit(7)"
    done = demb(tmp_path, "launch", "-n", "2", "--backend", backend, "--", sys.executable, "-c", code)
    assert done.returncode == 7


def test_no_program_says_how(tmp_path):
    done = demb(tmp_path, "launch", "-n", "2")
    assert done.returncode == 2
    assert "-- python script.py" in done.stderr


def test_doctor_finds_this_installation_well(tmp_path):
    done = demb(tmp_path, "doctor", timeout=200)
    assert done.returncode == 0, done.stdout
    assert "✗" not in done.stdout
    for name in (
        "tensorflow: 2.",
        "mpi4py: 4.",
        "exchange over mpi: works",
        "exchange over tensorflow: works",
    ):
        assert name in done.stdout


def test_doctor_names_what_is_missing(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "PACKAGES", ("no-such-package",))
    for name in ("open_mpi", "kernel", "devices"):
        monkeypatch.setattr(doctor, name, lambda: doctor.Check("skipped", True, ""))
    monkeypatch.setattr(doctor, "exchange", lambda backend, timeout: doctor.Check(backend, False, "status 9"))
    assert doctor.run_doctor(doctor.DoctorOptions()) == 1
    said = capsys.readouterr().out
    assert "✗ no-such-package: not installed" in said
    assert "✗ mpi: status 9" in said
