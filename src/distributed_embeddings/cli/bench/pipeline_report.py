"""The report of `demb bench pipeline` as Markdown."""

from __future__ import annotations

from statistics import median
from typing import Any

from . import markdown

OFF = "off"
NOTES = """
EG, MG: the embedding and the main graph, each while the other stands still; c: what EG does behind the gradient. Bound:
max(EG, MG) with a lag; max(max(D, EG - c) + c, MG) in exact mode, D being the time to the gradient; EG + MG for 0.
Steps without pipeline pool one-hot features at the owner and send every vector, those of the pipeline send each row
once: a part of the gain is theirs. The column *of the bound* is bound / step. Split: steps of exact mode that treated
conflicting rows apart, the others ran as those of 0, which it measures to be faster there; EG, c and the bound are of
split steps.
""".strip().splitlines()


def step_ms(result: dict[str, Any], mode: str) -> float:
    """A step's milliseconds: the median over rounds of a turn's median."""
    return median([median(turn) for turn in result["turns"][mode]]) * 1e3


def bound_ms(mode: str, alone: dict[str, float]) -> float:
    """The shortest step this staleness allows, of each graph measured alone."""
    if mode == "0":
        return alone["embedding"] + alone["main"]
    if mode != "exact":
        return max(alone["embedding"], alone["main"])
    ahead = max(alone["gradient"], alone["embedding"] - alone["critical"])
    return max(ahead + alone["critical"], alone["main"])


def lines_of(result: dict[str, Any]) -> list[str]:
    """One network's table."""
    title = "this machine alone" if result["rate"] == "none" else f"two emulated hosts, {result['rate']}"
    if "error" in result:
        return [f"## {title}", "", result["error"]]
    share = median(result["exchange_share"]) if result["exchange_share"] else float("nan")
    rows = []
    sync = step_ms(result, OFF) if OFF in result["turns"] else None
    for mode in result["turns"]:
        spent = step_ms(result, mode)
        gain = "" if sync is None else f"{sync / spent:.2f}"
        alone = result["alone"].get(mode)
        cells = [""] * 6
        if alone is not None:
            bound = bound_ms(mode, alone)
            cells = [f"{alone[k]:.1f}" for k in ("embedding", "main", "critical")]
            split = f"{result['reports'][mode]['split_share']:.0%}" if mode == "exact" else ""
            cells += [f"{bound:.1f}", f"{bound / spent:.0%}", split]
        rows.append([mode, f"{spent:.1f}", gain, *cells])
    heads = [
        "staleness",
        "step, ms",
        "times as fast as off",
        "EG",
        "MG",
        "c",
        "bound, ms",
        "of the bound",
        "split",
    ]
    return [
        f"## {title}",
        "",
        f"{share:.0%} of a step without pipeline is inside exchanges (waits for the other worker included).",
        "",
        *markdown.table(heads, rows),
    ]


def report_lines(report: dict[str, Any]) -> list[str]:
    """The whole report."""
    case = report["case"]
    lines = [
        "# Pipeline",
        "",
        f"DLRM, {case['tables']} tables of {case['rows']} × {case['dim']}, bottom {case['bottom']}, "
        f"top {case['top']}, {case['workers']} workers × {case['batch']} samples, {case['rounds']} rounds of "
        f"{case['steps']} steps.",
        "",
        *NOTES,
        "",
        *markdown.heading(report),
    ]
    for rate, reason in report["skipped"].items():
        lines += ["", f"{rate}: left out, {reason}."]
    for result in report["results"]:
        lines += ["", *lines_of(result)]
    return lines
