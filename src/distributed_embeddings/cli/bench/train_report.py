"""The Markdown of `demb bench train` from its JSON."""

from __future__ import annotations

from typing import Any

from .markdown import heading, milliseconds, table
from .stats import Ratio, ratio, summarise
from .train_cases import AIMS, TITLES, TrainCase

NOTES = """
How to read it. Every system trains the same model on the same samples: batches prepared beforehand, eight (two for the
size ladder) that take turns, so that reading data is no part of a step. A step is forward, backward, exchanges and
update, begun and awaited by rank 0. Systems are live processes that take turns (A B A B), all others idle; the first
step of a turn is dropped. Times are medians over rounds of the turns' medians, the fastest step in parentheses; ratios
are of samples/s, with the least and the greatest ratio of a round in brackets: above 1 ours is faster.

Phases come from TensorFlow's profiler over five further steps of rank 0: each operation's own time, by the section of
the traced step that made it, summed over threads (with several threads that may be more than the step). An exchange's
time includes the wait for the other workers. *Between operations* is what is left of the step: starting the function,
scheduling, waiting threads. Profiling itself slows a step down, so the profiled step is longer than the measured one.

Memory is resident: of the process before the model exists, after tables, slots and prepared batches do, and at its peak
since. What the plan predicts is tables and slots; what is held beyond it is TensorFlow's and MPI's own. A step's
vectors, activations and gradients are the peak less what was built.
""".strip().splitlines()


def report_lines(report: dict[str, Any]) -> list[str]:
    """The whole report."""
    settings = report["settings"]
    lines = [f"# Training end to end, `{settings['model']}`", "", *heading(report)]
    lines += [
        f"- {settings['repeats']} rounds a case, or as many as begin in {settings['max_seconds']:g} s",
        "",
    ]
    lines += [*NOTES, ""]
    for result in report["results"]:
        lines += [*case_lines(result), ""]
    return lines


def case_lines(result: dict[str, Any]) -> list[str]:
    """One case: speeds, phases, memory, what was left out."""
    case = TrainCase.from_dict(result["case"])
    lines = [f"## `{case.key}`: {case.workers} × {case.batch} samples, {case.threads} thread(s) a worker", ""]
    if result["load_before"]["load_1min"] >= 0.5:
        lines += [f"Load before the start {result['load_before']['load_1min']:.2f}: not quiet.", ""]
    lines += [*speed_table(result, case), ""]
    ours = result["competitors"].get("ours", {})
    if "profile" in ours:
        lines += ["### Phases of ours", "", *phase_table(ours["profile"]), ""]
    if "memory" in ours:
        lines += ["### Memory of ours", "", *memory_table(ours), ""]
    skipped = [f"- {TITLES.get(n, n)}: {reason.splitlines()[0]}" for n, reason in result["skipped"].items()]
    return lines + (["Left out:", "", *skipped] if skipped else [])


def speed_table(result: dict[str, Any], case: TrainCase) -> list[str]:
    """One line a system."""
    rows = []
    for name, competitor in result["competitors"].items():
        if "turns" not in competitor:
            continue
        times = summarise(competitor["turns"])
        found = ratio_of(result, name)
        aim = AIMS.get((name, case.workers)) if case.model == "dlrm" else None
        rows.append([
            TITLES[name] + _version(competitor["info"]),
            f"{milliseconds(times.median)} ({milliseconds(times.minimum)})",
            f"{case.samples / times.median:,.0f}", found.text() if found else "", f"{aim}" if aim else "",
        ])  # fmt: skip
    return table(["system", "step ms", "samples/s", "ours ÷ it", "aim"], rows)


def ratio_of(result: dict[str, Any], name: str) -> Ratio | None:
    """Ours' samples/s over a competitor's."""
    competitors = result["competitors"]
    if name == "ours" or "turns" not in competitors.get("ours", {}):
        return None
    return ratio(competitors[name]["turns"], competitors["ours"]["turns"])


def phase_table(profile: dict[str, Any]) -> list[str]:
    """Milliseconds and share of the profiled step by phase, then the slowest kinds of operations."""
    step = profile["step"]
    phases = dict(profile["phases"])
    left = step - sum(phases.values())
    if left > 0:
        phases["between operations"] = left
    rows = [[name, milliseconds(spent), f"{spent / step:.0%}"] for name, spent in phases.items()]
    lines = table(["phase", "ms", "share"], [*rows, ["profiled step", milliseconds(step), "100%"]])
    slowest = ", ".join(f"{name} {milliseconds(s)}" for name, s in list(profile["operations"].items())[:12])
    return [*lines, "", f"Slowest operations, ms: {slowest}."]


def memory_table(ours: dict[str, Any]) -> list[str]:
    """Resident memory by worker against what the plan says tables and slots take."""
    info, rows = ours["info"], []
    for rank, planned in enumerate(info["plan_bytes"]):
        before, built = info["resident_before"][rank], info["resident_built"][rank]
        batches, peak = info["batch_bytes"][rank], ours["memory"]["peak"][rank]
        held = built - before - batches
        shown = (planned, before, batches, built, held, peak, peak - built)
        rows.append([rank, *(f"{n / 2**20:,.0f}" for n in shown), f"{held / planned:.3f}"])
    headers = ["rank", "plan: tables and slots, MiB", "resident before, MiB", "batches, MiB", "built, MiB",
               "built less before and batches, MiB", "peak, MiB", "peak less built, MiB", "held ÷ plan"]  # fmt: skip
    return table(headers, rows)


def _version(info: dict[str, Any]) -> str:
    return f" {info['torchrec']}" if "torchrec" in info else ""
