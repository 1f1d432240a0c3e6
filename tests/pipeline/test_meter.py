"""Spans, numbers and the Chrome trace of a pretend run; the report on spans whose times are known."""

from __future__ import annotations

import json
import math
import threading
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace

import pytest
from threads import LONG, started

from distributed_embeddings.pipeline.meter import Meter, Span, events, median_ms
from distributed_embeddings.pipeline.report import make_report
from distributed_embeddings.pipeline.schedule import run
from distributed_embeddings.pipeline.staleness import parse

MS = 1_000_000
THREADS = {"embedding": 1, "main": 2}


# The meter


def pretend(meter: Meter, graph: str, stages: list[str], batches: int, turn: threading.Semaphore) -> None:
    for batch in range(batches):
        for stage in stages:
            with turn, meter.span(graph, stage, batch):
                meter.mark(graph, "mark", batch)


@pytest.fixture
def ran() -> Meter:
    meter, turn = Meter(), threading.Semaphore(2)
    sides = [
        started(pretend, meter, "embedding", ["plan", "look up"], 5, turn),
        started(pretend, meter, "main", ["step"], 5, turn),
    ]
    for side in sides:
        side.result(LONG)
    return meter


def test_spans_of_two_threads(ran):
    for graph, stages in (("embedding", ["plan", "look up"]), ("main", ["step"])):
        spans = [s for s in ran.spans() if s.graph == graph and s.stage != "mark"]
        assert [(s.batch, s.stage) for s in spans] == [(b, stage) for b in range(5) for stage in stages]
        for before, after in pairwise(spans):
            assert before.start <= before.end <= after.start
    for mark in (s for s in ran.spans() if s.stage == "mark"):
        assert mark.start == mark.end
        assert any(
            s.start <= mark.start <= s.end and s.batch == mark.batch and s.graph == mark.graph
            for s in ran.spans()
            if s.stage != "mark"
        )


def check_trace(path, ranks) -> list[dict]:
    """A trace by the format's rules. Returns the stages."""
    trace = json.loads(path.read_text())
    assert set(trace) == {"traceEvents"}
    names, stages = {}, []
    for event in trace["traceEvents"]:
        assert event["pid"] in ranks
        if event["ph"] == "M":
            names[event["name"], event["pid"], event.get("tid")] = event["args"]["name"]
        else:
            assert event["ph"] == "X"
            assert event["tid"] in THREADS.values()
            assert event["ts"] > 0 and event["dur"] >= 0
            stages.append(event)
    for rank in ranks:
        assert names["process_name", rank, None] == f"rank {rank}"
        for graph, tid in THREADS.items():
            assert names["thread_name", rank, tid] == f"{graph} graph"
    return stages


@pytest.mark.parametrize("rank", [0, 3])
def test_trace_of_one_rank(ran, rank, tmp_path):
    ran.write_trace(tmp_path / "trace.json", rank)
    stages = check_trace(tmp_path / "trace.json", {rank})
    assert len(stages) == len(ran.spans()) == 30
    for event, span in zip(stages, ran.spans(), strict=True):
        assert (event["name"], event["tid"]) == (span.stage, THREADS[span.graph])
        assert event["args"] == {"batch": span.batch}
        assert event["ts"] == span.start / 1e3  # microseconds
        assert event["dur"] == (span.end - span.start) / 1e3


def test_trace_of_all_ranks(ran, tmp_path):
    other = [Span("main", "step", 0, 5000, 9000)]
    ran.write_trace(tmp_path / "trace.json", 0, [ran.spans(), other, []])
    stages = check_trace(tmp_path / "trace.json", {0, 1, 2})
    assert [e["pid"] for e in stages] == [0] * 30 + [1]
    assert (stages[-1]["ts"], stages[-1]["dur"]) == (5.0, 4.0)


def test_events_of_nothing_still_name_the_rank():
    assert [e["name"] for e in events(7, [])] == ["process_name", "thread_name", "thread_name"]


def test_the_observer_is_asked_before_each_stage():
    seen = []

    def observe(graph, stage, batch):
        seen.append((graph, stage, batch, len(meter.spans())))
        if stage == "turn":
            raise OSError("a fault put in")

    meter = Meter(observe)
    with meter.span("embedding", "plan", 4):
        assert seen == [("embedding", "plan", 4, 0)]
    with pytest.raises(OSError, match="a fault put in"), meter.span("embedding", "turn", 5):
        raise AssertionError("the stage ran")
    assert [s.stage for s in meter.spans()] == ["plan"]


def test_a_stage_that_fails_is_noted():
    meter = Meter()
    with pytest.raises(KeyError), meter.span("main", "step", 0):
        raise KeyError
    assert [(s.stage, s.batch) for s in meter.spans()] == [("step", 0)]


def test_numbers():
    meter = Meter()
    assert meter.numbers("conflict_share") == []
    for value in (0.5, 0.25):
        meter.count("conflict_share", value)
    assert meter.numbers("conflict_share") == [0.5, 0.25]
    assert median_ms([1 * MS, 9 * MS, 2 * MS]) == 2.0
    assert math.isnan(median_ms([]))


# The report: a clock that only stages move, for the schedules that the embedding graph really runs.


@dataclass
class Pretend:
    """Stages that take the times given, beside a main graph that takes `main`, and `gradient` of it to its gradient.

    times: milliseconds by stage, under the names of the spans; between: from a stage to the one behind it."""

    times: dict[str, int]
    main: int
    gradient: int
    batches: int
    between: int = 0
    meter: Meter = field(default_factory=Meter)
    now: int = 10**6
    main_free: int = 10**6
    emitted: dict[int, int] = field(default_factory=dict)

    def note(self, graph: str, stage: str, batch: int, start: int, end: int) -> None:
        self.meter._spans.append(Span(graph, stage, batch, start * MS, end * MS))

    def spend(self, stage: str, batch: int, until: int | None = None) -> None:
        end = self.now + self.times[stage] if until is None else max(self.now, until)
        self.note("embedding", stage, batch, self.now, end)
        self.now = end + self.between

    def hand_over(self, batch: int) -> None:
        self.spend("ready", batch, self.now)
        begin = max(self.main_free, self.now)
        self.note("embedding", "released", batch, self.now, self.now)
        self.spend("hand over", batch, self.now + self.times.get("hand over", 0))
        self.emitted[batch] = begin + self.gradient
        self.note("main", "step", batch, self.main_free, begin + self.main)
        self.main_free = begin + self.main

    def plan(self, batch):
        self.spend("read", batch)
        self.spend("plan", batch)
        return batch + 1 < self.batches

    def announce(self, batch):
        more = self.plan(batch)
        self.spend("announce", batch)
        return more

    def look_up(self, batch):
        self.spend("look up", batch)
        self.hand_over(batch)

    def look_up_free(self, batch):
        self.spend("look up free rows", batch)

    def take_gradient(self, batch):
        self.spend("wait for gradient", batch, self.emitted[batch])

    def update(self, batch):
        self.spend("update", batch)

    def splits(self, batch):
        return True

    def update_free(self, batch):
        self.spend("update free rows", batch)

    def advance(self, batch, ahead):
        self.update(batch)
        more = self.plan(ahead)
        self.look_up(ahead)
        return more

    def ahead(self, batch):
        self.update_free(batch - 1)
        self.look_up_free(batch + 1)
        return self.announce(batch + 2)

    def turn(self, batch):
        self.spend("turn", batch)
        self.hand_over(batch + 1)


WHOLE = {"read": 1, "plan": 4, "look up": 6, "update": 9}
PARTS = {**WHOLE, "announce": 2, "look up free rows": 5, "update free rows": 7, "turn": 3}
EXACT_EG = 1 + 4 + 2 + 5 + 7 + 3
UP_TO = "the main graph up to its gradient, then "


def report(
    staleness,
    main,
    gradient,
    *,
    batches=40,
    streams=1,
    unpipelined=None,
    times=PARTS,
    manager=None,
    between=0,
):
    pretend = Pretend(times, main, gradient, 0, between)
    for share in (0.2, 0.3):
        pretend.meter.count("conflict_share", share)
        pretend.meter.count("vector_bytes", share * 1e7)
    for split in (1, 1, 1, 0) if staleness == "exact" else ():
        pretend.meter.count("split", split)
    for stream in range(streams):
        pretend.batches = (stream + 1) * batches
        run(pretend, parse(staleness), stream * batches)
        pretend.now = pretend.main_free = max(pretend.now, pretend.main_free)
    stream = None if manager is None else SimpleNamespace(manager=manager)
    graphs = SimpleNamespace(
        meter=pretend.meter, stream=stream, staleness=parse(staleness), mode=str(staleness)
    )
    return make_report(graphs, unpipelined)


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize(
    ("staleness", "main", "gradient", "embedding", "critical", "bound", "binds"),
    [
        ("exact", 50, 40, EXACT_EG, 3, 50, "the main graph"),
        ("exact", 50, 49, EXACT_EG, 3, 52, UP_TO + "the conflicting rows"),
        ("exact", 15, 10, EXACT_EG, 3, EXACT_EG, "the embedding graph"),
        ("exact", 10, 10, EXACT_EG, 3, EXACT_EG, "the embedding graph"),
        (0, 50, 30, 20, 15, 50, "the main graph"),
        (0, 50, 45, 20, 15, 60, UP_TO + "all rows"),
        (0, 4, 3, 20, 15, 20, "the embedding graph"),
        (1, 50, 49, 20, 0, 50, "the main graph"),
        (1, 15, 15, 20, 0, 20, "the embedding graph"),
        (3, 30, 5, 20, 0, 30, "the main graph"),
        (3, 3, 2, 20, 0, 20, "the embedding graph"),
    ],
)
def test_known_times(staleness, main, gradient, embedding, critical, bound, binds, streams):
    """A schedule that runs on a clock of its own takes as long as the bound says, and not a moment more."""
    found = report(staleness, main, gradient, streams=streams)
    assert found.steps == 40 * streams - 3  # the first ones are not counted
    assert found.t_pipe == pytest.approx(bound)
    assert found.bound_ms == pytest.approx(bound)
    assert found.binds == binds
    assert (found.embedding, found.main, found.critical) == pytest.approx((embedding, main, critical))
    assert (found.t_sync, found.t_sync_measured) == (pytest.approx(embedding + main), False)
    gain = min(embedding, main)
    assert found.efficiency == pytest.approx((embedding + main - bound) / gain)


def test_stages_of_a_streams_ends_do_not_count():
    """One whole update at the end, and one whole lookup at the begin, of every stream."""
    found = report("exact", 50, 40, streams=4, times={**PARTS, "update": 1000, "look up": 1000})
    assert set(found.stages) == set(PARTS) - {"update", "look up"}
    assert found.embedding == pytest.approx(EXACT_EG)


def test_a_gradient_that_was_there_before_does_not_bind():
    """The embedding graph comes for it late: because of its own work, and what lies between its stages."""
    found = report("exact", 15, 10, between=1)
    assert found.t_pipe > found.bound_ms == EXACT_EG
    assert found.binds == "the embedding graph"
    assert found.gradient_after == 0


def test_a_step_may_end_before_its_vectors_hand_over():
    """Where the embedding graph's thread comes back late."""
    found = report(1, 2, 2, times={**PARTS, "hand over": 3})
    assert (found.main, found.embedding, found.t_pipe) == pytest.approx((2, 20, 23))
    assert found.waited_for_vectors == pytest.approx(21)


def test_stages_and_waits():
    found = report("exact", 50, 40)
    assert found.stages == pytest.approx({k: v for k, v in PARTS.items() if k not in ("update", "look up")})
    assert found.gradient_after == pytest.approx(40)
    assert found.waited_for_vectors == 0
    assert found.waited_for_gradient == pytest.approx(50 - EXACT_EG)
    found = report("exact", 50, 49)
    assert found.waited_for_vectors == pytest.approx(2)


def test_a_measured_step_without_the_pipeline():
    found = report("exact", 50, 40, unpipelined=80.0)
    assert (found.t_sync, found.t_sync_measured) == (80.0, True)
    assert found.efficiency == pytest.approx((80 - 50) / (80 - 50))
    assert "T_sync / T_pipe 1.60, T_sync / bound 1.60, overlap efficiency 1.00" in str(found)
    found = report("exact", 50, 49, unpipelined=80.0)
    assert found.efficiency == pytest.approx((80 - 52) / (80 - 50))
    assert math.isnan(report("exact", 50, 49, unpipelined=40.0).efficiency)  # nothing to gain


def test_the_text_has_every_number():
    manager = SimpleNamespace(peak_entries=3, peak_bytes=2_500_000)
    text = str(report("exact", 50, 49, unpipelined=80.0, manager=manager))
    for line in (
        "pipeline, staleness exact, 37 steps",
        "T_sync  step without the pipeline     80.00 ms  (measured)",
        "T_pipe  step                          52.00 ms",
        "EG      embedding graph               22.00 ms",
        "MG      main graph                    50.00 ms",
        "c       behind the gradient            3.00 ms",
        f"bound   shortest step                 52.00 ms  ({UP_TO}the conflicting rows)",
        "conflicting rows 25.0%, steps split 75%, vectors a step 2.50 MB, at most 3 batches and 2.50 MB at once",
        "turn 3.00",
    ):
        assert line in text
    assert "(estimated: EG + MG)" in str(report("exact", 50, 49))
    assert "split" not in str(report(1, 50, 49))


@pytest.mark.parametrize("batches", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("staleness", [0, 2, "exact"])
def test_short_runs_say_that_they_are(staleness, batches):
    found = report(staleness, 50, 40, batches=batches)
    assert found.steps == max(0, batches - 3)
    assert math.isnan(found.t_pipe) == (batches < 5)
    if batches < 4:
        assert all(
            map(math.isnan, (found.embedding, found.main, found.t_sync, found.bound_ms, found.efficiency))
        )
    few = f"pipeline, staleness {staleness}: too few steps to report on; the first 3 do not count, and 2 more"
    assert (few in str(found)) == (batches < 5)
