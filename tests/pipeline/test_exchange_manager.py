"""The exchange manager against a model of itself, and its waits from two threads."""

from __future__ import annotations

from itertools import pairwise, permutations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from threads import LONG, blocked, started

from distributed_embeddings.pipeline.exchange_manager import ExchangeManager, State, nbytes

EXACT = list(State)
LAGGED = [s for s in State if s not in (State.FREE_READY, State.CONFLICT_APPLIED)]
NAMES = ["plan", "forward", "gradient"]
NEVER_WAITS = 0.0  # seconds: a wait that is needed fails at once
PATIENT = 10 * LONG  # a wait that nobody ends is longer than the test's own


def with_bytes(count: int) -> list[np.ndarray]:
    return [np.zeros(count // 2, np.int8), np.zeros(count - count // 2, np.int8)]


def legal(before: State, after: State) -> bool:
    """By the list of states: no way back, and only what occurs in exact mode is left out."""
    return after > before and all(
        s in (State.FREE_READY, State.CONFLICT_APPLIED) for s in State if before < s < after
    )


class Batches(RuleBasedStateMachine):
    """Any calls in any order: the manager does what the model does, and refuses what the model refuses."""

    @initialize(depth=st.integers(0, 2), budget=st.one_of(st.none(), st.integers(20, 60)))
    def begin(self, depth, budget):
        self.manager = ExchangeManager(depth, budget, seconds=NEVER_WAITS)
        self.slots, self.budget = depth + 2, budget
        self.states: dict[int, State] = {}
        self.fields: dict[int, dict[str, list]] = {}
        self.gone: set[tuple[int, str]] = set()
        self.opened = self.retired = -1
        self.most = self.most_bytes = 0

    def held(self):
        return sum(t.nbytes for fields in self.fields.values() for ts in fields.values() for t in ts)

    def any_batch(self, data):
        """Mostly one that is here."""
        here = sorted(self.states)
        return data.draw(st.sampled_from(here * 5 + [self.opened + 1, max(0, self.retired)]))

    @rule(step=st.integers(-1, 2))
    def open(self, step):
        batch = max(0, self.opened + step)
        if batch <= self.opened:
            with pytest.raises(RuntimeError, match=f"batch {batch} must come after batch {self.opened}"):
                self.manager.open(batch)
        elif len(self.states) == self.slots:
            with pytest.raises(TimeoutError, match=f"a permit for batch {batch} has not come in 0 s"):
                self.manager.open(batch)
        else:
            self.manager.open(batch)
            self.states[batch], self.fields[batch] = State.READ, {}
            self.opened = batch
            self.most = max(self.most, len(self.states))

    @rule(data=st.data(), state=st.sampled_from(State))
    def advance_to(self, data, state):
        self.advance(self.any_batch(data), state)

    @rule(data=st.data())
    def advance_to_next(self, data):
        batch = self.any_batch(data)
        state = self.states.get(batch, State.READ)
        after = [s for s in State if legal(state, s)]
        self.advance(batch, data.draw(st.sampled_from(after)))

    @precondition(lambda self: self.states)
    @rule(data=st.data(), freed=st.booleans(), exact=st.booleans())
    def finish(self, data, freed, exact):
        batch = data.draw(st.sampled_from(sorted(self.states)))
        if freed:
            self.drop_fields(batch, NAMES)
        for state in EXACT if exact else LAGGED:
            if batch in self.states and state > self.states[batch]:
                self.advance(batch, state)

    def advance(self, batch, state):
        if batch not in self.states:
            with pytest.raises(RuntimeError, match=f"batch {batch} is not here"):
                self.manager.advance(batch, state)
        elif not legal(self.states[batch], state):
            text = f"batch {batch} must not go from {self.states[batch].name} to {state.name}"
            with pytest.raises(RuntimeError, match=text):
                self.manager.advance(batch, state)
        elif state is State.RETIRED and self.fields[batch]:
            with pytest.raises(RuntimeError, match=f"batch {batch} must not be retired with .* left"):
                self.manager.advance(batch, state)
        elif state is State.RETIRED and batch != min(self.states):
            text = f"batch {batch} must be retired after batch {min(self.states)}"
            with pytest.raises(RuntimeError, match=text):
                self.manager.advance(batch, state)
        else:
            self.manager.advance(batch, state)
            self.states[batch] = state
            if state is State.RETIRED:
                del self.states[batch], self.fields[batch]
                self.retired = batch

    @rule(data=st.data(), name=st.sampled_from(NAMES), size=st.integers(0, 20))
    def store(self, data, name, size):
        batch, tensors = self.any_batch(data), with_bytes(size)
        if batch not in self.states:
            with pytest.raises(RuntimeError, match=f"batch {batch} is not here"):
                self.manager.store(batch, name, tensors)
        elif name in self.fields[batch] or (batch, name) in self.gone:
            with pytest.raises(RuntimeError, match=f"'{name}' of batch {batch} must be stored once"):
                self.manager.store(batch, name, tensors)
        elif self.budget is not None and self.held() + size > self.budget:
            text = f"byte_budget={self.budget}, with '{name}' of batch {batch} {self.held() + size} bytes"
            with pytest.raises(MemoryError, match=text):
                self.manager.store(batch, name, tensors)
        else:
            self.manager.store(batch, name, tensors)
            self.fields[batch][name] = tensors
            self.most_bytes = max(self.most_bytes, self.held())

    @rule(data=st.data(), name=st.sampled_from(NAMES), last=st.booleans())
    def fetch(self, data, name, last):
        batch = self.any_batch(data)
        if name not in self.fields.get(batch, {}):
            with pytest.raises(RuntimeError, match=f"batch {batch} (is not here|.* has no field '{name}')"):
                self.manager.fetch(batch, name, last)
            return
        found = self.manager.fetch(batch, name, last)
        assert all(a is b for a, b in zip(found, self.fields[batch][name], strict=True))
        if last:
            del self.fields[batch][name]
            self.gone.add((batch, name))

    @precondition(lambda self: self.states)
    @rule(data=st.data(), names=st.lists(st.sampled_from(NAMES)))
    def drop(self, data, names):
        self.drop_fields(data.draw(st.sampled_from(sorted(self.states))), names)

    def drop_fields(self, batch, names):
        self.manager.drop(batch, *names)
        for name in set(names) & set(self.fields[batch]):
            del self.fields[batch][name]
            self.gone.add((batch, name))

    @rule()
    def discard(self):
        self.manager.discard()
        self.states.clear()
        self.fields.clear()

    @rule()
    def wait_retired(self):
        if self.retired >= 0:
            self.manager.wait_retired(self.retired)
        with pytest.raises(TimeoutError, match=f"the update of batch {self.retired + 1} has not come in 0 s"):
            self.manager.wait_retired(self.retired + 1)

    @invariant()
    def alike(self):
        manager = self.manager
        assert len(manager) == len(self.states) <= self.slots
        assert manager.nbytes == self.held()
        assert (manager.peak_entries, manager.peak_bytes) == (self.most, self.most_bytes)
        assert self.budget is None or manager.peak_bytes <= self.budget
        assert all(manager.state(b) == state for b, state in self.states.items())
        for batch in set(range(self.opened + 1)) - set(self.states):
            assert manager.state(batch) is State.RETIRED
        with pytest.raises(RuntimeError, match="is not here"):
            manager.state(self.opened + 1)


TestBatches = Batches.TestCase
TestBatches.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)


def test_every_transition():
    """Legal are the two ways of the design, and nothing else."""
    steps = {pair for way in (EXACT, LAGGED) for pair in pairwise(way)}
    for before, after in permutations(State, 2):
        if before is State.RETIRED:
            continue
        manager = ExchangeManager(1)
        manager.open(0)
        for state in State:
            if State.READ < state <= before:
                manager.advance(0, state)
        if (before, after) in steps:
            manager.advance(0, after)
            assert manager.state(0) is after
        else:
            with pytest.raises(RuntimeError, match=f"from {before.name} to {after.name}"):
                manager.advance(0, after)
            assert manager.state(0) is before


def retire(manager: ExchangeManager, batch: int) -> None:
    for state in (State.PLANNED, State.READY, State.TAKEN, State.GRAD, State.RETIRED):
        manager.advance(batch, state)


def test_a_field_is_stored_once_and_freed_once():
    manager = ExchangeManager(1)
    manager.open(0)
    manager.store(0, "plan", with_bytes(4))
    twice = pytest.raises(RuntimeError, match="'plan' of batch 0 must be stored once")
    with twice:
        manager.store(0, "plan", with_bytes(4))
    manager.fetch(0, "plan")
    manager.fetch(0, "plan", last=True)
    with twice:
        manager.store(0, "plan", with_bytes(4))
    with pytest.raises(RuntimeError, match=r"batch 0 \(READ\) has no field 'plan'"):
        manager.fetch(0, "plan", last=True)
    manager.drop(0, "plan", "gradient")


def test_what_is_left_at_the_end_is_told():
    manager = ExchangeManager(1)
    manager.open(0)
    manager.store(0, "plan", with_bytes(4))
    with pytest.raises(RuntimeError, match=r"batch 0 must not be retired with \['plan'\] left"):
        retire(manager, 0)
    manager.fetch(0, "plan", last=True)
    manager.advance(0, State.RETIRED)
    assert (len(manager), manager.nbytes, manager.peak_bytes) == (0, 0, 4)


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_open_waits_for_a_permit(depth):
    manager = ExchangeManager(depth, seconds=PATIENT)
    for batch in range(depth + 2):
        manager.open(batch)
    unhindered = manager.waited_seconds
    waiting = started(manager.open, depth + 2)
    assert blocked(waiting)
    for state in (State.PLANNED, State.READY, State.TAKEN, State.GRAD):
        manager.advance(0, state)
        assert blocked(waiting, 0.01)  # a permit comes back when the gradient has been applied, not before
    manager.advance(0, State.RETIRED)
    waiting.result(LONG)
    assert len(manager) == manager.peak_entries == manager.slots == depth + 2
    assert manager.waited_seconds > unhindered


def test_wait_retired_wakes():
    manager = ExchangeManager(1, seconds=PATIENT)
    manager.open(5)
    manager.open(6)
    waiting = started(manager.wait_retired, 6)
    retire(manager, 5)
    assert blocked(waiting)
    retire(manager, 6)
    waiting.result(LONG)
    manager.wait_retired(5)


def test_waits_give_up_with_what_is_there():
    manager = ExchangeManager(0, seconds=0.02)
    manager.open(3)
    manager.open(4)
    manager.advance(3, State.PLANNED)
    received = r"has not come in 0\.02 s\. Received: batches \{3: 'PLANNED', 4: 'READ'\}"
    with pytest.raises(TimeoutError, match=f"a permit for batch 5 {received}"):
        manager.open(5)
    with pytest.raises(TimeoutError, match=f"the update of batch 3 {received}"):
        manager.wait_retired(3)


def test_abort_wakes_everybody_with_the_error():
    manager = ExchangeManager(0, seconds=PATIENT)
    manager.open(0)
    manager.open(1)
    waiting = [started(manager.open, 2), *(started(manager.wait_retired, b) for b in (0, 1))]
    assert all(blocked(w, 0.01) for w in waiting)
    error = OSError("the disk")
    manager.abort(error)
    assert all(w.exception(LONG) is error for w in waiting)
    with pytest.raises(OSError, match="the disk"):  # and whoever comes later
        manager.wait_retired(1)


def test_discard_gives_permits_and_memory_back():
    manager = ExchangeManager(0, byte_budget=10, seconds=PATIENT)
    manager.open(0)
    manager.open(1)
    manager.store(0, "plan", with_bytes(10))
    waiting = started(manager.open, 2)
    assert blocked(waiting, 0.01)
    manager.discard()
    waiting.result(LONG)
    assert (len(manager), manager.nbytes) == (1, 0)
    manager.store(2, "plan", with_bytes(10))
    with pytest.raises(RuntimeError, match="batch 0 is not here"):
        manager.fetch(0, "plan")


def test_the_budget_says_what_to_do():
    manager = ExchangeManager(1, byte_budget=100)
    manager.open(7)
    manager.store(7, "plan", with_bytes(60))
    with pytest.raises(MemoryError) as error:
        manager.store(7, "gradient", with_bytes(41))
    assert str(error.value) == (
        "the byte budget of the pipeline must hold 3 batches. Received: byte_budget=100, with 'gradient' of batch 7 "
        "101 bytes are needed. Raise the budget, lower the batch size, or use a smaller staleness."
    )
    manager.store(7, "gradient", with_bytes(40))  # a field that was refused has not been stored
    assert manager.peak_bytes == 100


def test_bytes():
    assert nbytes(tf.zeros([3, 5])) == 60
    assert nbytes(tf.zeros([], tf.int64)) == 8
    assert nbytes(tf.zeros([0, 7])) == 0
    assert nbytes(tf.zeros([4], tf.bool)) == 4
    assert nbytes(np.zeros([2, 3], np.int64)) == 48
    assert nbytes(np.float32(1)) == 4
