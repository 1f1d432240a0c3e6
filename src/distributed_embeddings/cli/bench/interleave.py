"""A B A B: competitors take turns, so that what happens to the machine happens to all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

Run = Callable[[str, int], list[float]]
"""run(phase, count): seconds of each of `count` steps of a phase, the other competitors being idle."""

Turns = dict[str, dict[str, list[list[float]]]]
"""turns[competitor][phase][round]: seconds of the steps of that turn."""

_TURN = 0.2
"""Seconds a turn should last: long against the scheduler's and the timer's grain, short against a machine's moods."""
_LONG = 0.5
"""From this many seconds a step on, what the others left in the caches no longer counts: no step is dropped."""
_MOST = 50


def interleave(
    runs: Mapping[str, Run], phases: Mapping[str, Sequence[str]], repeats: int, max_seconds: float
) -> tuple[Turns, bool]:
    """`repeats` rounds in which every competitor runs each of its phases, the others waiting.

    The first step of a turn of short steps warms the caches and is dropped. Stops after the first round that ends
    past max_seconds, at least one being complete. Returns the turns, and whether all rounds were run.
    """
    begin = time.monotonic()
    counts = {
        name: {phase: steps_in_turn(_estimate(run, phase)) for phase in phases[name]}
        for name, run in runs.items()
    }
    turns: Turns = {name: {phase: [] for phase in phases[name]} for name in runs}
    for done in range(repeats):
        if done and time.monotonic() - begin > max_seconds:
            return turns, False
        for name, run in runs.items():
            for phase in phases[name]:
                count, dropped = counts[name][phase]
                turns[name][phase].append(run(phase, count + dropped)[dropped:])
    return turns, True


def steps_in_turn(seconds: float) -> tuple[int, int]:
    """(steps that count, steps dropped before them) of a turn whose steps take `seconds`."""
    if seconds >= _LONG:
        return 1, 0
    return max(2, min(_MOST, round(_TURN / max(seconds, 1e-6)))), 1


def _estimate(run: Run, phase: str) -> float:
    """Seconds of a step: of one where it is long, else the better of two further ones."""
    first = run(phase, 1)[0]
    return first if first >= _LONG else min(run(phase, 2))
