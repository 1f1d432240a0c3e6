"""Where the faults' suite lets something go wrong: of eight batches, stages of both graphs. Without TensorFlow."""

from __future__ import annotations

STEPS = 8
# (stage, batch) by mode. The first and the last batches run stages alone that are one function in the steady state.
STAGES = {
    "0": (
        ("read", 3),
        ("plan", 3),
        ("look up", 3),
        ("hand over", 3),
        ("wait for gradient", 3),
        ("update", 3),
    ),
    "1": (
        ("read", 3),
        ("plan", 1),
        ("look up", 1),
        ("hand over", 3),
        ("wait for gradient", 3),
        ("update, plan and look up", 3),
        ("update", 7),
    ),
    "exact": (
        ("read", 3),
        ("announce", 2),
        ("look up free rows", 1),
        ("update and look up free rows, plan", 3),
        ("wait for gradient", 3),
        ("turn", 3),
        ("update free rows", 6),
    ),
}


def faults(mode: str, workers: int, ranks: str) -> list[tuple[str, str, str, int, int]]:
    """(name, graph, stage, batch, rank) of every fault of a mode. ranks: "both", each stage fails on the first and on
    the last rank; "turns", on one of them in turn."""
    stages = [("embedding", *s) for s in STAGES[mode]] + [("main", "step", 3)]
    both = sorted({0, workers - 1})
    turn = mode == "exact"  # a fault of both modes is each rank's once
    return [
        (f"{mode}: {graph} graph, {stage} {batch}, rank {rank}", graph, stage, batch, rank)
        for i, (graph, stage, batch) in enumerate(stages)
        for rank in (both if ranks == "both" else [both[(i + turn) % len(both)]])
    ]
