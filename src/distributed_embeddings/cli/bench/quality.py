"""`demb bench quality`: what lag costs in accuracy, over seeds, with confidence intervals."""

from __future__ import annotations

import json
import math
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from . import machine, markdown
from .options import QualityOptions

METRICS = ("auc", "log_loss")
# Two-sided 95 % quantiles of Student's t by degrees of freedom.
_T95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


def run_quality(options: QualityOptions) -> int:
    """Train every staleness with every seed; after each the report on disk is whole. Returns 1 when a run failed."""
    if options.seeds < 2:
        raise ValueError(f"`--seeds` must be 2 or more for an interval. Received: --seeds {options.seeds}")
    report: dict[str, Any] = {
        "kind": "quality",
        **machine.environment(),
        "data": options.data,
        "workers": options.workers,
        "arguments": options.arguments,
        "runs": [],
    }
    path = options.out / f"{options.name or machine.now()[:10] + '-quality'}.json"
    failed = False
    for seed in range(1, options.seeds + 1):
        for staleness in options.staleness:
            run = train(options, staleness, seed)
            failed |= "error" in run
            report["runs"].append(run)
            told = run.get("error") or ", ".join(f"{m} {run[m]:.6f}" for m in METRICS)
            print(f"seed {seed}, staleness {staleness}: {told}", flush=True)
            markdown.write(path, [json.dumps(report)])
            markdown.write(path.with_suffix(".md"), report_lines(report))
    print("\n".join(report_lines(report)), flush=True)
    print(f"report: {path}", flush=True)
    return 1 if failed else 0


def train(options: QualityOptions, staleness: str, seed: int) -> dict[str, Any]:
    """One `demb train`: metrics of its last epoch."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "result.json"
        command = [sys.executable, "-m", "distributed_embeddings.cli.main", "train"]
        command += ["--data", options.data, "--seed", str(seed), "--workers", str(options.workers)]
        command += ["--run-dir", directory, "--json", str(out)]
        command += ["--staleness", staleness] if staleness != "off" else []
        command += ["--valid", options.valid] if options.valid is not None else []
        done = subprocess.run(
            [*command, *shlex.split(options.arguments)], capture_output=True, text=True, check=False
        )
        run: dict[str, Any] = {"staleness": staleness, "seed": seed}
        if done.returncode or not out.exists():
            return {**run, "error": done.stderr.strip()[-2000:]}
        last = json.loads(out.read_text())["epochs"][-1]
        return {**run, **{m: last[m] for m in METRICS}}


def interval(values: list[float]) -> tuple[float, float]:
    """Mean, and half of its 95 % confidence interval (Student's t)."""
    n = len(values)
    if n < 2:
        return mean(values), math.nan
    return mean(values), _T95.get(n - 1, 1.96) * stdev(values) / math.sqrt(n)


def report_lines(report: dict[str, Any]) -> list[str]:
    """The whole report as Markdown."""
    good = [r for r in report["runs"] if "error" not in r]
    modes = list(dict.fromkeys(r["staleness"] for r in good))
    base = {r["seed"]: r for r in good if r["staleness"] == "0"}
    rows = []
    for mode in modes:
        mine = [r for r in good if r["staleness"] == mode]
        cells = [mode, str(len(mine))]
        for metric in METRICS:
            middle, half = interval([r[metric] for r in mine])
            cells.append(f"{middle:.5f} ± {half:.5f}")
            paired = [r[metric] - base[r["seed"]][metric] for r in mine if r["seed"] in base]
            cells.append("" if mode == "0" or not paired else "{:+.5f} ± {:.5f}".format(*interval(paired)))
        same = all(r[m] == base[r["seed"]][m] for r in mine if r["seed"] in base for m in METRICS)
        cells.append("yes" if base and same else "no")
        rows.append(cells)
    heads = ["staleness", "seeds", "AUC", "against 0", "log loss", "against 0", "the same bits as 0"]
    return [
        "# Quality by staleness",
        "",
        f"`demb train --data {report['data']} {report['arguments']}` on {report['workers']} workers, last "
        "epoch's validation metrics; mean over seeds ± half of the 95 % confidence interval (Student's t); differences "
        "are paired by seed.",
        "",
        *markdown.table(heads, rows),
        "",
        *markdown.heading(report),
    ]
