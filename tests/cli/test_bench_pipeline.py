"""`demb bench pipeline` and `demb bench quality`: the numbers' arithmetic, and one small run of each."""

from __future__ import annotations

import json

import pytest

from cli.demb_commands import demb
from distributed_embeddings.cli.bench.pipeline_report import bound_ms, lines_of, step_ms
from distributed_embeddings.cli.bench.quality import interval, report_lines

ALONE = {"embedding": 30.0, "main": 10.0, "gradient": 8.0, "critical": 12.0}


@pytest.mark.parametrize(("mode", "bound"), [("0", 40.0), ("1", 30.0), ("3", 30.0), ("exact", 30.0)])
def test_bound(mode: str, bound: float) -> None:
    assert bound_ms(mode, ALONE) == bound


def test_bound_of_exact_when_the_gradient_comes_late() -> None:
    assert bound_ms("exact", {**ALONE, "gradient": 25.0, "main": 28.0}) == 37.0


def test_table() -> None:
    result = {
        "rate": "1gbit",
        "exchange_share": [0.5, 0.7, 0.6],
        "turns": {"off": [[0.05, 0.06, 0.04]], "1": [[0.04], [0.03], [0.05]]},
        "alone": {"1": ALONE},
    }
    assert step_ms(result, "1") == pytest.approx(40.0)
    text = "\n".join(lines_of(result))
    assert "60% of a step" in text
    assert "| 1 | 40.0 | 1.25 | 30.0 | 10.0 | 12.0 | 30.0 | 75% |  |" in text


def test_interval_is_students() -> None:
    middle, half = interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert middle == 3.0
    assert half == pytest.approx(2.776 * 1.5811388 / 5**0.5, rel=1e-4)


def test_runs(tmp_path) -> None:
    options = [
        "--rates",
        "none",
        "--modes",
        "off",
        "exact",
        "1",
        "--rounds",
        "1",
        "--steps",
        "5",
        "--batch",
        "64",
        "--dim",
        "4",
    ]
    done = demb(
        tmp_path, "bench", "pipeline", *options, "--out", tmp_path, "--name", "p", "--trace", tmp_path
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "p.json").read_text())
    (result,) = report["results"]
    assert set(result["turns"]) == {"off", "exact", "1"} and set(result["alone"]) == {"exact", "1"}
    assert result["reports"]["exact"]["split_share"] == 1  # too few steps to have tried the other way
    assert "this machine alone" in (tmp_path / "p.md").read_text()
    trace = json.loads((tmp_path / "pipeline-exact.json").read_text())["traceEvents"]
    assert {e["pid"] for e in trace} == {0, 1}
    assert {e["name"] for e in trace if e["ph"] == "X"} >= {"step", "turn"}


def test_quality_says_that_exact_is_0(tmp_path) -> None:
    further = ["--arguments=--rows 4000 --valid-rows 2000 --epochs 1"]
    options = ["--staleness", "0", "exact", "--seeds", "2", "--workers", "1", *further]
    done = demb(tmp_path, "bench", "quality", *options, "--out", tmp_path, "--name", "q")
    assert done.returncode == 0, done.stderr + done.stdout
    text = "\n".join(report_lines(json.loads((tmp_path / "q.json").read_text())))
    (line,) = [x for x in text.splitlines() if x.startswith("| exact |")]
    assert line.endswith("| yes |") and "+0.00000 ± 0.00000" in line
