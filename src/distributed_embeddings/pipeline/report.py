"""What a pipeline gained, by its own measurements."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from distributed_embeddings.pipeline.engine import GRAPH
from distributed_embeddings.pipeline.meter import Span, median_ms
from distributed_embeddings.pipeline.staleness import Staleness

if TYPE_CHECKING:
    from distributed_embeddings.pipeline.core import TwoGraphs

_WAITS = ("wait for gradient", "ready", "hand over", "released")
_FIRST_STEPS = 3  # not counted: memory is fresh, threads start
_NO_WAIT = 0.05  # of the way to a gradient: to fetch one that is there takes time, too


@dataclass(frozen=True)
class Report:
    """Medians over the steps of this rank, milliseconds.

    t_sync: a step without the pipeline (estimated: the sum of both graphs, where it was not measured). critical: of the
    embedding graph's work what must wait for the main graph's gradient. gradient_after: from a step's vectors to its
    gradient; 0 where that was there before the embedding graph came for it. waited_for_vectors: of a main step.
    split_share: of exact steps, those that treat conflicting rows apart.
    """

    staleness: str
    steps: int
    t_sync: float
    t_sync_measured: bool
    t_pipe: float
    embedding: float
    main: float
    critical: float
    gradient_after: float
    waited_for_vectors: float
    waited_for_gradient: float
    conflict_share: float
    split_share: float
    vector_bytes: float
    peak_entries: int
    peak_bytes: int
    stages: dict[str, float]

    @property
    def bound_ms(self) -> float:
        """The shortest step that this staleness allows."""
        return max(self._way_to_vectors, self.main)

    @property
    def binds(self) -> str:
        """Which term the bound is."""
        if self.bound_ms == self.main:
            return "the main graph"
        if self._way_to_vectors == self.embedding:
            return "the embedding graph"
        split = self.staleness == "exact" and self.split_share > 0.5
        rows = "the conflicting rows" if split else "all rows"
        return f"the main graph up to its gradient, then {rows}"

    @property
    def _way_to_vectors(self) -> float:
        """From one step's vectors to the next one's."""
        if not self.critical:
            return self.embedding
        return max(self.embedding, self.gradient_after + self.critical)

    @property
    def efficiency(self) -> float:
        """(T_sync - T_pipe) / (T_sync - max(EG, MG)); NaN where there is nothing to gain."""
        gain = self.t_sync - max(self.embedding, self.main)
        return (self.t_sync - self.t_pipe) / gain if gain > 0 else float("nan")

    def __str__(self) -> str:
        if self.steps < 2:
            return (
                f"pipeline, staleness {self.staleness}: too few steps to report on; the first {_FIRST_STEPS} do not "
                "count, and 2 more are needed"
            )
        ms = "{:9.2f} ms".format
        split = f"steps split {self.split_share:.0%}, " if self.staleness == "exact" else ""
        measured = "measured" if self.t_sync_measured else "estimated: EG + MG"
        lines = [
            f"pipeline, staleness {self.staleness}, {self.steps} steps (medians of this rank)",
            f"  T_sync  step without the pipeline {ms(self.t_sync)}  ({measured})",
            f"  T_pipe  step                      {ms(self.t_pipe)}",
            f"  EG      embedding graph           {ms(self.embedding)}",
            f"  MG      main graph                {ms(self.main)}",
            f"  c       behind the gradient       {ms(self.critical)}",
            f"  bound   shortest step             {ms(self.bound_ms)}  ({self.binds})",
            f"  T_sync / T_pipe {self.t_sync / self.t_pipe:.2f}, T_sync / bound {self.t_sync / self.bound_ms:.2f}, "
            f"overlap efficiency {self.efficiency:.2f}",
            f"  waits: main for vectors {self.waited_for_vectors:.2f} ms, embedding for gradient "
            f"{self.waited_for_gradient:.2f} ms",
            f"  conflicting rows {self.conflict_share:.1%}, {split}vectors a step "
            f"{self.vector_bytes / 1e6:.2f} MB, at most "
            f"{self.peak_entries} batches and {self.peak_bytes / 1e6:.2f} MB at once",
            "  stages: " + ", ".join(f"{name} {value:.2f}" for name, value in self.stages.items()) + " ms",
        ]
        return "\n".join(lines)


def make_report(graphs: TwoGraphs, unpipelined_ms: float | None) -> Report:
    """From the meter's spans."""
    meter, stream = graphs.meter, graphs.stream
    spans = meter.spans()
    steps = sorted((s for s in spans if s.graph == "main"), key=lambda s: s.batch)[_FIRST_STEPS:]
    work = [s for s in spans if s.graph == GRAPH and s.stage not in _WAITS]
    counted = {s.batch for s in steps}
    by_stage: dict[str, list[float]] = {}
    for s in work:
        if s.batch in counted:
            by_stage.setdefault(s.stage, []).append(s.end - s.start)
    # Others are of a stream's first or last batch.
    stages = {name: median_ms(v) for name, v in by_stage.items() if 2 * len(v) > len(steps)}
    waits = _vector_waits(steps, spans)
    starts = [s.start for s in steps]
    t_pipe = median_ms([b - a for a, b in pairwise(starts)])
    main = median_ms([s.end - s.start - waits.get(s.batch, 0) for s in steps])
    embedding = sum(stages.values()) if stages else float("nan")
    gradient_waits = [s.end - s.start for s in spans if s.stage == "wait for gradient" and s.batch in counted]
    shares = meter.numbers("conflict_share")
    split = meter.numbers("split")
    sizes = meter.numbers("vector_bytes")
    return Report(
        staleness=graphs.mode,
        steps=len(steps),
        t_sync=embedding + main if unpipelined_ms is None else unpipelined_ms,
        t_sync_measured=unpipelined_ms is not None,
        t_pipe=t_pipe,
        embedding=embedding,
        main=main,
        critical=sum(stages.get(name, 0.0) for name in _behind_gradient(graphs.staleness)),
        gradient_after=median_ms(_gradient_times(steps, spans)),
        waited_for_vectors=median_ms([float(w) for w in waits.values()]),
        waited_for_gradient=median_ms([float(w) for w in gradient_waits]),
        conflict_share=sum(shares) / len(shares) if shares else 0.0,
        split_share=sum(split) / len(split) if split else 0.0,
        vector_bytes=sum(sizes) / len(sizes) if sizes else 0.0,
        peak_entries=0 if stream is None else stream.manager.peak_entries,
        peak_bytes=0 if stream is None else stream.manager.peak_bytes,
        stages=stages,
    )


def _behind_gradient(staleness: Staleness) -> tuple[str, ...]:
    """The stages between a step's gradient and the next one's vectors."""
    if staleness.lag:
        return ()
    return ("turn", "update and look up") if staleness.exact else ("update", "look up")


def _ready(spans: list[Span]) -> dict[int, int]:
    """When each batch's vectors were given: a short step has ended before the other thread is back from the queue."""
    return {s.batch: s.start for s in spans if s.stage == "released"}


def _vector_waits(steps: list[Span], spans: list[Span]) -> dict[int, int]:
    """Nanoseconds that each main step was without its vectors."""
    ready = _ready(spans)
    return {s.batch: max(0, min(ready[s.batch], s.end) - s.start) for s in steps if s.batch in ready}


def _gradient_times(steps: list[Span], spans: list[Span]) -> list[float]:
    """Nanoseconds from a main step's vectors (or its begin, where they were there before) to its gradient; 0 where the
    embedding graph did not wait for that, and cannot tell."""
    ready = _ready(spans)
    waits = {s.batch: s for s in spans if s.stage == "wait for gradient"}
    times = []
    for step in steps:
        if step.batch in ready and step.batch in waits:
            wait = waits[step.batch]
            time = wait.end - max(step.start, ready[step.batch])
            times.append(float(time) if wait.end - wait.start > time * _NO_WAIT else 0.0)
    return times
