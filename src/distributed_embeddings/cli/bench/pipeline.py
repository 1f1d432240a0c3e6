"""`demb bench pipeline`: what embedding work beside dense work gains, with and without a network to wait for."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from distributed_embeddings.comm import launch

from . import machine, markdown
from .hosts import EmulatedHosts, missing
from .options import PipelineBenchOptions
from .pipeline_report import lines_of, report_lines
from .train_cases import TrainCase

_WORKER = "distributed_embeddings.cli.bench.worker_pipeline"
_ALONE = "none"
_SECONDS = 1800.0


def run_pipeline_bench(options: PipelineBenchOptions) -> int:
    """Measure all networks; after each the report on disk is whole. Returns 1 when one failed."""
    case = case_of(options)
    report: dict[str, Any] = {
        "kind": "pipeline",
        **machine.environment(),
        "case": {name: value for name, value in case.items() if name != "trace"},  # a path of this machine
        "results": [],
        "skipped": {},
    }
    path = options.out / f"{options.name or machine.now()[:10] + '-pipeline'}.json"
    failed = False
    for rate in options.rates:
        reason = missing() if rate != _ALONE else None
        if reason is not None:
            report["skipped"][rate] = reason
            print(f"{rate}: left out, {reason}", flush=True)
        else:
            result = measure(case, rate)
            failed |= "error" in result
            report["results"].append(result)
            print("\n".join([*lines_of(result), ""]), flush=True)
        markdown.write(path, [json.dumps(report)])
        markdown.write(path.with_suffix(".md"), report_lines(report))
    print(f"report: {path}", flush=True)
    return 1 if failed else 0


def case_of(options: PipelineBenchOptions) -> dict[str, Any]:
    """What the worker is told. Raises ValueError for a batch that the workers cannot share."""
    if options.batch % options.workers:
        raise ValueError(
            f"`--batch` must be a multiple of --workers. Received: {options.batch} of {options.workers}"
        )
    model = TrainCase(
        "dlrm",
        options.workers,
        options.batch // options.workers,
        1,
        dim=options.dim,
        bottom=options.bottom,
        top=options.top,
    )
    trace = None if options.trace is None else str(options.trace.resolve())
    if options.trace is not None:
        options.trace.mkdir(parents=True, exist_ok=True)
    settings = {
        "modes": list(options.modes),
        "rounds": options.rounds,
        "steps": options.steps,
        "trace": trace,
    }
    return {**model.to_dict(), **settings}


def measure(case: dict[str, Any], rate: str) -> dict[str, Any]:
    """One job of all modes on one network."""
    head = {"rate": rate, "date": machine.now(), "load_before": machine.load()}
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "result.json"
        command = [sys.executable, "-m", _WORKER, json.dumps(case), str(out)]
        settings = {"TF_CPP_MIN_LOG_LEVEL": "2"}
        if rate == _ALONE:
            status = launch(command, case["workers"], backend="mpi", timeout=_SECONDS, env=settings)
        else:
            with EmulatedHosts(rate) as hosts:
                status = hosts.launch(command, case["workers"], timeout=_SECONDS, env=settings)
        if status or not out.exists():
            return {**head, "error": f"the workers ended with status {status}"}
        return {**head, **json.loads(out.read_text()), "load_after": machine.load()}
