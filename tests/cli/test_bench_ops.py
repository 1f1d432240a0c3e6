"""`demb bench ops` for real, on a tiny case, without peers."""

from __future__ import annotations

import json

import pytest
from demb_commands import demb

ARGUMENTS = ("bench", "ops", "--suite", "one", "--repeats", "2", "--out", "reports", "--name", "tiny")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("bench")
    done = demb(directory, *ARGUMENTS, "--competitors", "ours", "plain_tf", "fbgemm")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return directory, done.stdout


def test_it_says_how_to_get_the_peers_and_goes_on(run):
    _, said = run
    assert "run `make bench-peers`" in said
    assert "fbgemm skipped: no environment of the peers" in said


def test_the_report_holds_every_run(run):
    directory, _ = run
    report = json.loads((directory / "reports/tiny.json").read_text())
    (result,) = report["results"]
    assert set(result["competitors"]) == {"ours", "plain_tf"}
    for competitor in result["competitors"].values():
        turns = competitor["turns"]
        assert set(turns) == {"lookup", "both"}
        assert all(
            len(rounds) == 2 and all(s > 0 for turn in rounds for s in turn) for rounds in turns.values()
        )
        assert competitor["info"]["unique_rows"] <= 4 * 256 * 3
    markdown = (directory / "reports/tiny.md").read_text()
    assert result["case_key"] in markdown
    assert "| ours on plain TF ops |" in markdown


def test_resume_measures_nothing_twice(run):
    directory, _ = run
    before = (directory / "reports/tiny.json").read_text()
    done = demb(directory, *ARGUMENTS, "--resume")
    assert done.returncode == 0, done.stderr
    assert "0 cases of 1" in done.stdout
    assert (
        json.loads((directory / "reports/tiny.json").read_text())["results"] == json.loads(before)["results"]
    )
    again = demb(directory, "bench", "report", "reports/tiny.json")
    assert again.returncode == 0, again.stderr


@pytest.mark.parametrize("resume", [(), ("--resume",)], ids=["anew", "resume"])
def test_a_report_of_another_machine_is_left_alone(run, tmp_path, resume):
    directory, _ = run
    report = json.loads((directory / "reports/tiny.json").read_text())
    report["machine"]["cpu"] = "Another CPU"
    (tmp_path / "reports").mkdir()
    other = tmp_path / "reports/tiny.json"
    other.write_text(json.dumps(report))
    done = demb(tmp_path, *ARGUMENTS, *resume)
    assert done.returncode == 1
    assert "measured on cpu Another CPU; here it is cpu " in done.stderr
    assert json.loads(other.read_text()) == report


def test_a_named_python_that_is_not_there_is_an_error(tmp_path):
    done = demb(tmp_path, *ARGUMENTS, "--peers", "nowhere/python")
    assert done.returncode == 1
    assert "`--peers` must be a Python with FBGEMM. Received: nowhere/python" in done.stderr
