"""Exact mode keeps the faster of its two ways, and all ranks try the same one at the same time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributed_embeddings.pipeline.choice import CYCLE, TRIAL, SplitChoice


def run(choice: SplitChoice, split: float, whole: float, first: int, count: int) -> list[bool]:
    """Steps that take so long; whether each was whole."""
    ways = []
    for batch in range(first, first + count):
        way = choice.wants_whole(batch)
        choice.note(batch, whole if way else split)
        ways.append(way)
    return ways


@pytest.mark.parametrize(
    ("split", "whole", "kept"), [(3.0, 2.0, True), (2.0, 3.0, False), (2.0, 1.95, False)]
)
def test_the_faster_way_is_kept(split, whole, kept):
    ways = run(SplitChoice(), split, whole, 0, CYCLE)
    assert ways[:TRIAL] == [False] * TRIAL
    assert ways[TRIAL : 2 * TRIAL] == [True] * TRIAL
    assert set(ways[2 * TRIAL :]) == {kept}


def test_it_tries_again():
    choice = SplitChoice()
    assert run(choice, 3.0, 2.0, 0, CYCLE)[-1]
    assert not run(choice, 2.0, 3.0, CYCLE, CYCLE)[-1]


@given(st.lists(st.floats(0.1, 10.0), min_size=2 * TRIAL, max_size=2 * TRIAL), st.integers(0, 3))
def test_all_ranks_try_the_same_at_the_same_time(seconds, cycle):
    """Whatever their clocks say."""
    one, two = SplitChoice(), SplitChoice()
    for i, time in enumerate(seconds):
        batch = cycle * CYCLE + i
        assert one.wants_whole(batch) == two.wants_whole(batch)
        one.note(batch, time)
        two.note(batch, 1.0)


def test_one_slow_step_decides_nothing():
    choice = SplitChoice()
    for batch in range(2 * TRIAL):
        choice.note(
            batch, 100.0 if batch in (6, TRIAL + 7, TRIAL) else 2.0 if choice.wants_whole(batch) else 3.0
        )
    assert choice.wants_whole(2 * TRIAL)


def test_what_was_never_tried_is_not_kept():
    assert not run(SplitChoice(), 3.0, 2.0, 2 * TRIAL, 100)[-1]
    choice = SplitChoice()
    run(choice, 3.0, 2.0, 0, TRIAL)  # a stream that ends within the trial
    assert not choice.wants_whole(2 * TRIAL)
