"""Exact mode broken in one place gives other bits than staleness 0: so the suites that say "same bits" would see it."""

from __future__ import annotations

import time

import pytest
import tensorflow as tf
from exact_worker import difference, train
from pipeline_cases import Case
from with_others import as_with_others

from distributed_embeddings.ops import conflict
from distributed_embeddings.pipeline.engine import StageRunner

# Nearly all rows conflict; some do, and some come again one batch later.
TINY = Case("row_cyclic_destination", "adam", "tiny")
ZIPF = Case("row_cyclic_destination", "adam", "zipf")
MOVED_ON = 0.02  # seconds in which the main graph ends its step


@pytest.fixture(scope="module", autouse=True)
def with_others():
    """One worker alone would run exact mode as staleness 0."""
    with as_with_others():
        yield


@pytest.fixture(scope="module")
def waiting():
    """What staleness 0 learns."""
    return {case: train(case, 0, 1, 0, 1) for case in (TINY, ZIPF)}


def found(waiting, case: Case) -> str:
    return difference(train(case, 0, 1, "exact", 2), waiting[case], "exact against 0")


def ahead_in_order(self: StageRunner, batch: int) -> bool:
    self.update_free(batch - 1)
    self.look_up_free(batch + 1)
    return self.announce(batch + 2)


@pytest.mark.parametrize("case", [TINY, ZIPF], ids=lambda c: c.regime)
def test_unbroken(waiting, case):
    assert found(waiting, case) == ""


def test_single_stages_in_their_order(waiting, monkeypatch):
    """What some mutations below are made from is not what they find."""
    monkeypatch.setattr(StageRunner, "ahead", ahead_in_order)
    assert found(waiting, ZIPF) == ""


announce = conflict.announce


def nothing_conflicts(*arguments):
    forward, backward = announce(*arguments)
    return tf.zeros_like(forward), tf.zeros_like(backward)


def forward_after_stamping(*arguments):
    """A mask read after the batch's own stamps are set."""
    early, backward = announce(*arguments)
    with tf.control_dependencies([early]):
        late, _ = announce(*arguments)
    return late, backward


def backward_before_stamping(*arguments):
    """A mask of the batch before, read before this batch's stamps are set."""
    forward, backward = announce(*arguments)
    return forward, tf.zeros_like(backward)


@pytest.mark.parametrize(
    "broken", [nothing_conflicts, forward_after_stamping, backward_before_stamping], ids=lambda f: f.__name__
)
def test_wrong_masks(waiting, monkeypatch, broken):
    monkeypatch.setattr(conflict, "announce", broken)
    assert found(waiting, TINY)


def current(runner: StageRunner):
    """Learning rate and step as they are when an update reads them, instead of those that came with the gradient."""
    time.sleep(MOVED_ON)
    return runner._graph.routed.rate_and_step()


def test_step_read_at_the_turn(waiting, monkeypatch):
    turn = StageRunner.turn

    def late(self, batch):
        fetch = self._manager.fetch

        def fetch_late(batch, name, last=False):
            found = fetch(batch, name, last=last)
            return [*current(self), *found[2:]] if name == "gradient" else found

        with monkeypatch.context() as patch:
            patch.setattr(self._manager, "fetch", fetch_late)
            turn(self, batch)

    monkeypatch.setattr(StageRunner, "turn", late)
    assert found(waiting, TINY)


def test_step_read_at_the_update_of_free_rows(waiting, monkeypatch):
    free_update = StageRunner._free_update
    monkeypatch.setattr(
        StageRunner, "_free_update", lambda self, batch: [*free_update(self, batch)[:-2], *current(self)]
    )
    assert found(waiting, ZIPF)


def test_free_rows_looked_up_before_they_are_updated(waiting, monkeypatch):
    def swapped(self, batch):
        self.look_up_free(batch + 1)
        self.update_free(batch - 1)
        return self.announce(batch + 2)

    monkeypatch.setattr(StageRunner, "ahead", swapped)
    assert found(waiting, ZIPF)


def test_free_rows_not_updated(waiting, monkeypatch):
    monkeypatch.setattr(StageRunner, "ahead", ahead_in_order)
    monkeypatch.setattr(StageRunner, "update_free", StageRunner._retire)
    assert found(waiting, ZIPF)
