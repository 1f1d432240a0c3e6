"""Schedules keep the pipeline's invariants on any stream, and the checker that says so catches broken ones."""

from __future__ import annotations

from itertools import pairwise

import pytest
from checked_stages import CheckedStages, Violation, run_checked
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from distributed_embeddings.pipeline.exchange_manager import ExchangeManager, State
from distributed_embeddings.pipeline.schedule import run
from distributed_embeddings.pipeline.staleness import Staleness, parse

EXACT = parse("exact")
FIRSTS = st.integers(0, 50)
WHOLE = st.frozensets(st.integers(0, 12))
STALENESS = st.sampled_from([parse(s) for s in (0, 1, 2, 3, 4, 5, "exact")])


def streams(least: int = 1):
    """Rows of each batch: few rows, so that batches share all, some or none of them; and empty batches."""
    return st.integers(1, 8).flatmap(
        lambda most: st.lists(st.integers(0, 2**most - 1).map(bits), min_size=least, max_size=12)
    )


def bits(number: int) -> set[int]:
    return {i for i in range(number.bit_length()) if number >> i & 1}


@given(streams(), STALENESS, FIRSTS, WHOLE)
def test_every_stream_keeps_the_invariants(batches, staleness, first, whole):
    run_checked(CheckedStages(batches, staleness, first, whole))


@given(streams(), FIRSTS, WHOLE)
def test_exact_reads_what_waiting_reads(batches, first, whole):
    exact, waiting = (run_checked(CheckedStages(batches, s, first, whole)) for s in (EXACT, parse(0)))
    assert exact.reads == waiting.reads
    assert exact.versions == waiting.versions


@given(streams(), FIRSTS)
def test_exact_looks_ahead_where_it_may(batches, first):
    """Rows that wait for the turn are those of the batch before, and no others: else there is no overlap."""
    stages = run_checked(CheckedStages(batches, EXACT, first))
    for batch in range(first + 1, stages.end):
        assert (
            stages.forward[batch] == stages.backward[batch - 1] == stages.rows[batch] & stages.rows[batch - 1]
        )
        if (
            batch > first + 1
        ):  # the first one's gradient is awaited with nothing in between but its own lookups
            assert stages.log.index(("look_up_free", batch)) < stages.log.index(("take_gradient", batch - 1))
            assert stages.log.index(("announce", batch)) < stages.log.index(("take_gradient", batch - 2))


@pytest.mark.parametrize("lag", [1, 2, 5])
@pytest.mark.parametrize("count", [1, 2, 5, 6, 12])
def test_a_lag_looks_up_as_far_ahead_as_it_may(lag, count):
    stages = run_checked(CheckedStages([{0}] * count, parse(lag)))
    for batch in range(count):
        ahead = min(batch + lag, count - 1)
        assert stages.log.index(("look_up", ahead)) < stages.log.index(("take_gradient", batch))


def test_order_of_exact_stages_where_one_is_whole():
    stages = run_checked(CheckedStages([{0}, {0, 1}, {1}, {2}, {2}], EXACT, 7, frozenset({1})))
    assert [f"{name} {batch}" for name, batch in stages.log if name != "plan"] == [
        *("announce 7", "look_up 7", "announce 8"),
        *("look_up_free 8", "announce 9", "take_gradient 7", "turn 7"),
        *("update_free 7", "announce 10", "take_gradient 8", "update 8", "look_up 9"),
        *("look_up_free 10", "announce 11", "take_gradient 9", "turn 9"),
        *("update_free 9", "look_up_free 11", "take_gradient 10", "turn 10"),
        *("update_free 10", "take_gradient 11", "update 11"),
    ]


def test_order_of_exact_stages():
    stages = run_checked(CheckedStages([{0}, {0, 1}, {1}, {2}], EXACT, 7))
    assert [f"{name} {batch}" for name, batch in stages.log if name != "plan"] == [
        *("announce 7", "look_up 7", "announce 8"),
        *("look_up_free 8", "announce 9", "take_gradient 7", "turn 7"),
        *("update_free 7", "look_up_free 9", "announce 10", "take_gradient 8", "turn 8"),
        *("update_free 8", "look_up_free 10", "take_gradient 9", "turn 9"),
        *("update_free 9", "take_gradient 10", "update 10"),
    ]


class Managed(CheckedStages):
    """Also opens, moves and retires batches in a real exchange manager, which nobody else frees."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.manager = ExchangeManager(self.staleness.depth, seconds=0.05)

    def plan(self, batch):
        self.manager.open(batch)
        self.manager.advance(batch, State.PLANNED)
        return super().plan(batch)

    def look_up_free(self, batch):
        super().look_up_free(batch)
        self.manager.advance(batch, State.FREE_READY)

    def hand_over(self, batch):
        super().hand_over(batch)
        self.manager.advance(batch, State.READY)

    def take_gradient(self, batch):
        super().take_gradient(batch)
        self.manager.advance(batch, State.TAKEN)
        self.manager.advance(batch, State.GRAD)

    def turn(self, batch):
        super().turn(batch)
        self.manager.advance(batch, State.CONFLICT_APPLIED)

    def retire(self, batch):
        super().retire(batch)
        self.manager.advance(batch, State.RETIRED)


@given(streams(), STALENESS, FIRSTS, WHOLE)
def test_permits_suffice_and_transitions_are_legal(batches, staleness, first, whole):
    """The thread that runs the schedule is the one that gives permits back: it must never wait for one."""
    manager = run_checked(Managed(batches, staleness, first, whole)).manager
    assert len(manager) == 0
    most = {0: 2, 1: 2}.get(staleness.lag, staleness.lag + 1) if not staleness.exact else 3
    assert manager.peak_entries == min(len(batches), most) <= manager.slots


# Each mutation below breaks one rule. On every stream where the rule matters the checker must say so, and on the others
# the mutation must do no harm: else it breaks something else than it says.


class NothingConflicts(CheckedStages):
    """Masks all false."""

    def shared(self, rows, batch):
        return set()


class ForwardAfterStamping(CheckedStages):
    """The mask of a batch read after its own stamps are set."""

    def announce(self, batch):
        more = super().announce(batch)
        self.forward[batch] = self.shared(self.rows[batch], batch - 1)
        return more


class BackwardBeforeStamping(CheckedStages):
    """The mask of the batch before read before the stamps are set."""

    def announce(self, batch):
        early = self.shared(self.rows.get(batch - 1, set()), batch)
        more = super().announce(batch)
        self.backward[batch - 1] = early
        return more


class BackwardRestamped(CheckedStages):
    """A batch's mask read when it is used: the next batch but one has set its stamps by then."""

    def turn(self, batch):
        self.backward[batch] = self.shared(self.rows[batch], batch + 1)
        super().turn(batch)


class LooksUpBeforeUpdateFree(CheckedStages):
    """Steps a and b swapped."""

    late: int | None = None

    def update_free(self, batch):
        self.late = batch

    def _catch_up(self):
        if self.late is not None:
            super().update_free(self.late)
        self.late = None

    def look_up_free(self, batch):
        super().look_up_free(batch)
        self._catch_up()

    def take_gradient(self, batch):
        self._catch_up()
        super().take_gradient(batch)


class SkipsUpdateFree(CheckedStages):
    """Step a left out, and not missed by whoever counts permits."""

    def update_free(self, batch):
        self.retired.append(batch)


class LooksUpBeforeTurn(CheckedStages):
    """Steps d and e swapped."""

    def turn(self, batch):
        self.read(batch + 1, self.forward[batch + 1])
        self.write(batch, self.backward[batch])
        self.hand_over(batch + 1)


class TurnsEverything(CheckedStages):
    """The turn updates a batch's rows without the masks: those it does not share a second time."""

    def turn(self, batch):
        self.write(batch, self.rows[batch] - self.backward[batch])
        super().turn(batch)


class ShipsBeforeTurn(CheckedStages):
    """Vectors handed over before the rows in conflict are fresh."""

    def look_up_free(self, batch):
        super().look_up_free(batch)
        self.hand_over(batch)


def conflicts(rows):
    """Two batches in a row share one."""
    return any(a & b for a, b in pairwise(rows))


MUTATIONS = {
    NothingConflicts: conflicts,
    ForwardAfterStamping: conflicts,
    BackwardBeforeStamping: conflicts,
    BackwardRestamped: lambda rows: any(a & b & c for a, b, c in zip(rows, rows[1:], rows[2:], strict=False)),
    LooksUpBeforeUpdateFree: lambda rows: any(
        (a - b) & c for a, b, c in zip(rows, rows[1:], rows[2:], strict=False)
    ),
    SkipsUpdateFree: lambda rows: any(a - b for a, b in pairwise(rows)),
    LooksUpBeforeTurn: conflicts,
    TurnsEverything: lambda rows: any(a - b for a, b in pairwise(rows)),
    ShipsBeforeTurn: lambda rows: len(rows) > 1,
}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.__name__)
def test_broken_stages_are_caught(mutation):
    @settings(max_examples=40)
    @given(streams(2), FIRSTS)
    def check(batches, first):
        assume(MUTATIONS[mutation](batches))
        with pytest.raises(Violation):
            run_checked(mutation(batches, EXACT, first))

    check()


@pytest.mark.parametrize(
    "mutation", [m for m in MUTATIONS if m is not ShipsBeforeTurn], ids=lambda m: m.__name__
)
def test_broken_stages_are_harmless_where_their_rule_does_not_matter(mutation):
    """So the checker found the mutation, and not the way it is made."""

    @settings(max_examples=40)
    @given(streams(), FIRSTS)
    def check(batches, first):
        assume(not MUTATIONS[mutation](batches))
        run_checked(mutation(batches, EXACT, first))

    check()


# Any two batches in a row share a row, and so do the batches around any batch, which that one does not touch.
ROWS = [{0, 1}, {0, 2}] * 3

# Neighbours in a schedule that may change places, and how many batches the second one is ahead: ids go ahead as far as
# there are permits, a gradient may be fetched before it is used, and that is all.
COMMUTE = {
    0: {("look_up", "plan", 1), ("plan", "take_gradient", -1)},
    1: {
        ("look_up", "plan", 1),
        ("look_up", "take_gradient", -1),
        ("update", "plan", 2),
        ("update", "take_gradient", 1),
    },
    2: {
        ("look_up", "plan", 1),
        ("look_up", "take_gradient", -2),
        ("update", "plan", 3),
        ("update", "take_gradient", 1),
    },
    "exact": {
        ("look_up", "announce", 1),
        ("look_up_free", "announce", 1),
        ("announce", "take_gradient", -2),
        ("look_up_free", "take_gradient", -1),
        ("update_free", "take_gradient", 1),
    },
}


def calls(staleness) -> list[tuple[str, int]]:
    log = run_checked(CheckedStages(ROWS, parse(staleness))).log
    return [c for c in log if not (c[0] == "plan" and staleness == "exact")]


def replay(order, staleness):
    def schedule(stages, *_):
        for name, batch in order:
            getattr(stages, name)(batch)

    run_checked(CheckedStages(ROWS, parse(staleness)), schedule)


def caught(order, staleness) -> bool:
    try:
        replay(order, staleness)
    except Violation:
        return True
    return False


@pytest.mark.parametrize("staleness", COMMUTE)
def test_a_stage_too_few_or_too_many_is_caught(staleness):
    order = calls(staleness)
    replay(order, staleness)
    for i, call in enumerate(order):
        assert caught(order[:i] + order[i + 1 :], staleness), f"without {call}"
        assert caught([*order[:i], call, *order[i:]], staleness), f"twice {call}"


@pytest.mark.parametrize("staleness", COMMUTE)
def test_stages_that_change_places_are_caught(staleness):
    order = calls(staleness)
    harmless = set()
    for i, (one, two) in enumerate(pairwise(order)):
        if not caught([*order[:i], two, one, *order[i + 2 :]], staleness):
            harmless.add((one[0], two[0], two[1] - one[1]))
    assert harmless == COMMUTE[staleness]


@pytest.mark.parametrize("lag", [0, 1, 2, 4])
@pytest.mark.parametrize("promised", [0, 1, 2, 4, "exact"])
def test_a_wrong_lag_is_caught(lag, promised):
    def schedule(stages, _, first):
        run(stages, Staleness(lag), first)

    promised = parse(promised)
    stages = CheckedStages([{0}] * 8, promised)
    if lag == promised.lag:
        run_checked(stages, schedule)
    else:
        with pytest.raises(Violation):
            run_checked(stages, schedule)


def test_a_schedule_that_ends_early_is_caught():
    def schedule(stages, staleness, first):
        stages.plan(first)
        stages.look_up(first)

    with pytest.raises(Violation, match="planned"):
        run_checked(CheckedStages(ROWS, parse(0)), schedule)
    with pytest.raises(Violation, match="gradients"):
        run_checked(CheckedStages(ROWS[:1], parse(0)), schedule)


@pytest.mark.parametrize(("value", "lag", "depth", "ahead"), [(0, 0, 0, 1), (3, 3, 3, 3), ("exact", 0, 1, 2)])
def test_staleness(value, lag, depth, ahead):
    staleness = parse(value)
    assert (staleness.lag, staleness.depth, staleness.look_ahead) == (lag, depth, ahead)
    assert str(staleness) == str(value)
    assert parse(staleness) is staleness


@pytest.mark.parametrize("value", [-1, 1.0, True, None, "1", "EXACT"])
def test_staleness_refused(value):
    with pytest.raises(ValueError, match=r"`staleness` must be .*Received: staleness="):
        parse(value)
