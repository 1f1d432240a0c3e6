"""`demb bench train`: whole training steps, end to end, of ours, plain Keras and TorchRec."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from . import machine, markdown
from .competitors import MAKE_PEERS, find_peers
from .interleave import Run, interleave
from .options import TrainBenchOptions
from .process import Worker, WorkerError
from .train_cases import TITLES, USUAL, TrainCase, make_cases, refusal, start
from .train_report import case_lines, report_lines

PHASE = "step"
_PROFILED_STEPS = 5
_STEP_SECONDS = 600.0


def run_train_bench(options: TrainBenchOptions) -> int:
    """Measure all cases; after each the report on disk is whole. Returns 1 when a competitor failed."""
    peers = find_peers(options.peers)
    if peers is None and options.model == "dlrm":
        print(f"no environment of the peers: they are left out. To have them, {MAKE_PEERS}", flush=True)
    unknown = sorted(set(options.competitors) - set(TITLES))
    if unknown:
        raise ValueError(
            f"`--competitors` must be of {sorted(TITLES)}. Received: --competitors {' '.join(unknown)}"
        )
    cases = make_cases(options.model, options.workers, options.batch)
    settings = {"model": options.model, "repeats": options.repeats, "max_seconds": options.max_seconds}
    report: dict[str, Any] = {
        "kind": "train",
        **machine.environment(),
        "settings": settings,
        "results": [],
    }
    name = options.name or f"{machine.now()[:10]}-train-{options.model}"
    path = options.out / f"{name}.json"
    for case in cases:
        result = run_case(case, options, peers)
        report["results"].append(result)
        save(report, path)
        print("\n".join([*case_lines(result), ""]), flush=True)
    print(f"report: {path}", flush=True)
    failed = any(r.startswith("failed") for x in report["results"] for r in x["skipped"].values())
    return 1 if failed else 0


def save(report: dict[str, Any], path: Path) -> None:
    """JSON and, beside it, Markdown."""
    markdown.write(path, [json.dumps(report)])
    markdown.write(path.with_suffix(".md"), report_lines(report))


def run_case(case: TrainCase, options: TrainBenchOptions, peers: Path | None) -> dict[str, Any]:
    """Measure one case with all its competitors in turns; a JSON-able result."""
    result: dict[str, Any] = {
        "case": case.to_dict(), "key": case.key, "date": machine.now(), "commit": machine.commit(),
        "load_before": machine.load(), "skipped": {}, "competitors": {}, "all_rounds": True,
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for name in options.competitors or USUAL:
            reason = refusal(name, case, peers)
            if reason is not None:
                result["skipped"][name] = reason
                continue
            try:
                workers[name] = _ready(stack.enter_context(start(name, case, peers)), case, result, name)
            except WorkerError as error:
                result["skipped"][name] = f"failed: {error}"
        _check_same_data(result["competitors"])
        _measure(workers, options, result)
    return result


def _ready(worker: Worker, case: TrainCase, result: dict[str, Any], name: str) -> Worker:
    """Build the model and run some steps: traces and pages are there before the clock runs."""
    said = worker.ask({"start": case.to_dict()}, timeout=3600)
    worker.ask({"run": PHASE, "count": 3}, timeout=_STEP_SECONDS)
    result["competitors"][name] = {"info": said}
    return worker


def _check_same_data(competitors: dict[str, Any]) -> None:
    """Raise ValueError when competitors do not train on the same samples."""
    sums = {name: c["info"]["checksum"] for name, c in competitors.items()}
    if len(set(sums.values())) > 1:
        raise ValueError(f"competitors must be given the same data. Received: checksums {sums}")


def _measure(workers: dict[str, Worker], options: TrainBenchOptions, result: dict[str, Any]) -> None:
    found = result["competitors"]

    def run_of(name: str) -> Run:
        def run(phase: str, count: int) -> list[float]:
            return [float(s) for s in workers[name].ask({"run": phase, "count": count}, 3600)["seconds"]]

        return run

    try:
        runs = {name: run_of(name) for name in workers}
        phases = dict.fromkeys(runs, (PHASE,))
        turns, result["all_rounds"] = interleave(runs, phases, options.repeats, options.max_seconds)
        for name in workers:
            found[name]["turns"] = turns[name][PHASE]
        if "ours" in workers:
            found["ours"]["memory"] = workers["ours"].ask({"memory": "now"})
            found["ours"]["profile"] = workers["ours"].ask({"profile": _PROFILED_STEPS}, _STEP_SECONDS)
    except WorkerError as error:
        result["skipped"]["all"] = f"failed: {error}"
