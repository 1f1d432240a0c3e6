"""Draw some steps of a pipeline's trace: `python docs/pictures/overlap.py TRACE.json OUT.svg [FIRST_BATCH [STEPS]]`.

Needs matplotlib, which the library itself does not.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

COLOURS = ["#4477aa", "#ee7733", "#228833", "#aa3377"]
WAITING = "#dddddd"
CHARACTER = 0.006  # of the width
SHORT = {
    "update, plan and look up": "update {0}, look up {1}",
    "update and look up free rows, plan": "free rows of {2}, {3}",
    "turn": "{0} | {3}",
}
QUIET = ("wait for gradient", "ready", "read", "hand over", "released")


def steps_of(events: list[dict[str, Any]], first: int, count: int) -> tuple[float, float]:
    """Begin and end, in microseconds, of rank 0's main steps first … first + count - 1."""
    mine = {e["args"]["batch"]: e for e in events if e["pid"] == 0 and e["name"] == "step"}
    last = mine[first + count - 1]
    return mine[first]["ts"], last["ts"] + last["dur"]


def draw(events: list[dict[str, Any]], first: int, count: int, out: Path) -> None:
    begin, end = steps_of(events, first, count)
    ranks = sorted({e["pid"] for e in events})
    figure, axes = plt.subplots(len(ranks), 1, sharex=True, figsize=(11, 1.5 * len(ranks) + 0.8))
    for rank, axis in zip(ranks, axes if len(ranks) > 1 else [axes], strict=True):
        spans = [e for e in events if e["pid"] == rank and begin < e["ts"] + e["dur"] and e["ts"] < end]
        ready = {e["args"]["batch"]: e["ts"] for e in spans if e["name"] == "released"}
        axis.set_xlim(0, (end - begin) / 1e3)
        for span in spans:
            draw_span(axis, span, ready, begin, end)
        axis.set_yticks([0, 1], ["main graph", "embedding graph"])
        axis.set_title(f"rank {rank}", loc="left", fontsize=9)
        axis.set_ylim(-0.5, 1.5)
    axis.set_xlabel("ms; numbers are batches; grey: the main graph waits for vectors")
    figure.tight_layout()
    figure.savefig(out)


def draw_span(axis: Any, span: dict[str, Any], ready: dict[int, float], begin: float, end: float) -> None:
    """One stage; of a main step the part before its vectors were there is grey."""
    batch, start, stop = span["args"]["batch"], max(span["ts"], begin), min(span["ts"] + span["dur"], end)
    if span["name"] in QUIET:
        return
    row = 0 if span["name"] == "step" else 1
    if row == 0 and start < ready.get(batch, 0.0) < stop:
        bar(axis, row, start - begin, ready[batch] - begin, WAITING, "")
        start = ready[batch]
    near = (batch, batch + 2, batch - 1, batch + 1)
    text = str(batch) if row == 0 else SHORT.get(span["name"], span["name"] + " {0}").format(*near)
    bar(axis, row, start - begin, stop - begin, COLOURS[batch % len(COLOURS)], text)


def bar(axis: Any, row: int, start: float, stop: float, colour: str, text: str) -> None:
    axis.barh(row, (stop - start) / 1e3, left=start / 1e3, height=0.7, color=colour, edgecolor="white")
    if (stop - start) / 1e3 > len(text) * CHARACTER * axis.get_xlim()[1]:
        axis.text(
            (start + stop) / 2e3, row, text, ha="center", va="center", fontsize=7, color="white", clip_on=True
        )


if __name__ == "__main__":
    trace = json.loads(Path(sys.argv[1]).read_text())["traceEvents"]
    numbers = [int(n) for n in sys.argv[3:]]
    draw([e for e in trace if e["ph"] == "X"], *(numbers + [100, 4][len(numbers) :]), Path(sys.argv[2]))
