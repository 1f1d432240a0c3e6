"""The embedding graph's thread: runs the stages of a stream in the order of its schedule."""

from __future__ import annotations

import threading
import time
from typing import Any

import tensorflow as tf

from distributed_embeddings.comm import Communicator
from distributed_embeddings.pipeline import schedule
from distributed_embeddings.pipeline.choice import SplitChoice
from distributed_embeddings.pipeline.dataset import PipelineDataset
from distributed_embeddings.pipeline.embedding_graph import EmbeddingGraph
from distributed_embeddings.pipeline.exact_graph import ExactGraph
from distributed_embeddings.pipeline.exchange_manager import ExchangeManager, State, nbytes
from distributed_embeddings.pipeline.failure import AbortLatch
from distributed_embeddings.pipeline.hold import Hold
from distributed_embeddings.pipeline.meter import Meter
from distributed_embeddings.pipeline.queues import CANCELLED, HandOverQueue
from distributed_embeddings.pipeline.staleness import Staleness

GRAPH = "embedding"


class Cancelled(Exception):
    """The stream was given up while it waited for a gradient."""


class StageRunner:
    """`schedule.Stages` over real functions, tensors kept in the exchange manager."""

    def __init__(
        self,
        graph: EmbeddingGraph,
        dataset: PipelineDataset,
        manager: ExchangeManager,
        vectors: HandOverQueue,
        gradients: HandOverQueue,
        meter: Meter,
        choice: SplitChoice | None = None,
    ) -> None:
        """choice: without one every batch is split."""
        self._choice = choice
        self._turned = 0.0  # when the last step's vectors were handed over
        self._graph, self._dataset, self._manager = graph, dataset, manager
        self._gradients, self._meter = gradients, meter
        self._previous: int | None = None
        self.hold = Hold(vectors, meter, GRAPH)
        self._lock = threading.Condition()
        self._known = -1  # batches up to here exist or not as `_last` says
        self._last: int | None = None
        if isinstance(graph, ExactGraph):
            graph.begin()

    def note_existence(self, batch: int, exists: bool) -> None:
        """Tell the main graph whether any rank has this batch."""
        with self._lock:
            self._known = max(self._known, batch)
            if not exists:
                self._last = batch - 1
            self._lock.notify_all()

    def exists(self, batch: int, latch: AbortLatch) -> bool:
        """Whether any rank has this batch; waits until that is known."""
        with self._lock:
            while self._known < batch and self._last is None:
                latch.check()
                self._lock.wait(0.2)
            return self._last is None or batch <= self._last

    def plan(self, batch: int) -> bool:
        sample = self._read(batch)
        with self._meter.span(GRAPH, "plan", batch):
            plan = self._graph.plan(*sample)
        return self._planned(batch, plan)

    def announce(self, batch: int) -> bool:
        more = self.plan(batch)
        before = None if self._previous is None else self._manager.fetch(self._previous, "plan")
        with self._meter.span(GRAPH, "announce", batch):
            forward, backward = self._graph.announce(self._manager.fetch(batch, "plan"), before)
        self._announced(batch, forward, backward)
        return more

    def look_up(self, batch: int) -> None:
        with self._meter.span(GRAPH, "look up", batch):
            outputs = self._graph.look_up(*self._manager.fetch(batch, "plan"))
        self._manager.drop(batch, "forward")
        self._hand_over(batch, outputs)

    def look_up_free(self, batch: int) -> None:
        with self._meter.span(GRAPH, "look up free rows", batch):
            found = self._graph.look_up_free(*self._both_sides(batch))
        self._looked_up_free(batch, list(found))

    def advance(self, batch: int, ahead: int) -> bool:
        rate, step, finite, scale, *upstream = self._manager.fetch(batch, "gradient", last=True)
        if not bool(finite):
            self._retire(batch)
            more = self.plan(ahead)
            self.look_up(ahead)
            return more
        sample = self._read(ahead)
        plan = self._manager.fetch(batch, "plan", last=True)
        with self._meter.span(GRAPH, "update, plan and look up", batch):
            result = self._graph.advance(*sample, *plan, rate, step, scale, *upstream)
        self._retire(batch)
        more = self._planned(ahead, result[: self._graph.plan_size])
        self._hand_over(ahead, result[self._graph.plan_size :])
        return more

    def ahead(self, batch: int) -> bool:
        fetch = self._manager.fetch
        if not bool(fetch(batch - 1, "rest")[2]):
            self.update_free(batch - 1)
            self.look_up_free(batch + 1)
            return self.announce(batch + 2)
        sample = self._read(batch + 2)
        with self._meter.span(GRAPH, "update and look up free rows, plan", batch):
            found = self._graph.ahead(sample, self._free_update(batch - 1), self._both_sides(batch + 1))
        plan, looked_up, forward, backward = found
        self._retire(batch - 1)
        self._looked_up_free(batch + 1, looked_up)
        more = self._planned(batch + 2, plan)
        self._announced(batch + 2, forward, backward)
        return more

    def splits(self, batch: int) -> bool:
        split = not self._graph.agreed(self._manager.fetch(batch + 1, "plan"))
        self._meter.count("split", float(split))
        return split

    def take_gradient(self, batch: int) -> None:
        self.hold.note_gradient(self._gradients.size() > 0)
        with self._meter.span(GRAPH, "wait for gradient", batch):
            got, *gradient = self._gradients.take()
        if int(got) == CANCELLED:
            raise Cancelled
        if int(got) != batch:
            raise RuntimeError(f"the gradient of batch {batch} must come next. Received: batch {int(got)}")
        self._manager.advance(batch, State.TAKEN)
        self._manager.advance(batch, State.GRAD)
        self._manager.store(batch, "gradient", gradient)

    def update(self, batch: int) -> None:
        rate, step, finite, scale, *upstream = self._manager.fetch(batch, "gradient", last=True)
        plan = self._manager.fetch(batch, "plan", last=True)
        with self._meter.span(GRAPH, "update", batch):
            if bool(finite):
                self._graph.update(*plan, rate, step, scale, *upstream)
        self._retire(batch)

    def update_free(self, batch: int) -> None:
        counts = bool(self._manager.fetch(batch, "rest")[2])
        with self._meter.span(GRAPH, "update free rows", batch):
            if counts:
                self._graph.update_free(*self._free_update(batch))
        self._retire(batch)

    def turn(self, batch: int) -> None:
        fetch, following = self._manager.fetch, batch + 1
        rate, step, finite, scale, *upstream = fetch(batch, "gradient", last=True)
        turn = self._graph.turn if bool(finite) else self._graph.turn_without_update
        with self._meter.span(GRAPH, "turn", batch):
            result = turn(
                *fetch(batch, "plan"),
                *fetch(batch, "backward"),
                *fetch(batch, "masks backward"),
                rate,
                step,
                scale,
                *upstream,
                *fetch(following, "plan"),
                *fetch(following, "forward", last=True),
                *fetch(following, "masks forward", last=True),
                *fetch(following, "merged", last=True),
            )
        self._note_step(batch)
        sites = len(self._graph.sites)
        self._manager.store(batch, "replies", list(result[:sites]))
        self._manager.store(batch, "rest", [rate, step, finite])
        self._manager.advance(batch, State.CONFLICT_APPLIED)
        self._hand_over(following, result[sites:])

    def turn_whole(self, batch: int) -> None:
        fetch, following = self._manager.fetch, batch + 1
        rate, step, finite, scale, *upstream = fetch(batch, "gradient", last=True)
        if bool(finite):
            plan = fetch(batch, "plan", last=True)
            with self._meter.span(GRAPH, "update and look up", batch):
                outputs = self._graph.turn_whole(
                    *plan, rate, step, scale, *upstream, *fetch(following, "plan")
                )
            self._manager.drop(following, "forward")
            self._retire(batch)
            self._hand_over(following, outputs)
        else:
            self._retire(batch)
            self.look_up(following)
        self._note_step(batch)

    def _note_step(self, batch: int) -> None:
        now = time.perf_counter()
        if self._choice is not None and self._turned:
            self._choice.note(batch, now - self._turned)
        self._turned = now

    def _read(self, batch: int) -> list[Any]:
        """The sample that a plan is made of, behind what this rank tells with it: of the step before, for that one's
        plan is everywhere by then."""
        with self._meter.span(GRAPH, "read", batch):
            sample = self._dataset.next_embedding()
        whole = self._choice is not None and self._choice.wants_whole(batch - 1)
        return [tf.constant(not sample.last), tf.constant(whole), *sample.part]

    def _planned(self, batch: int, plan: list[Any]) -> bool:
        # Not before: where one function ends a batch and plans another, the first has just given its permit back.
        self._manager.open(batch)
        self._manager.store(batch, "plan", plan)
        self._manager.advance(batch, State.PLANNED)
        more = self._graph.more(plan)
        self.note_existence(batch + 1, more)
        return more

    def _announced(self, batch: int, forward: list[Any], backward: list[Any]) -> None:
        self._manager.store(batch, "forward", forward)
        if self._previous is not None:
            self._manager.store(self._previous, "backward", backward)
            shared, rows = self._graph.conflict_share(forward)
            self._meter.count("conflict_share", shared / rows if rows else 0.0)
        self._previous = batch

    def _both_sides(self, batch: int) -> list[Any]:
        """What the look-up of a batch's free rows takes."""
        fetch, wire = self._manager.fetch, self._graph.wire
        now = [*wire(fetch(batch, "plan")), *fetch(batch, "forward")]
        return [*now, *wire(fetch(batch - 1, "plan")), *fetch(batch - 1, "backward")]

    def _looked_up_free(self, batch: int, found: list[Any]) -> None:
        sites = len(self._graph.sites)
        self._manager.store(batch, "merged", found[:sites])
        self._manager.store(batch, "masks forward", found[sites : 2 * sites])
        self._manager.store(batch - 1, "masks backward", found[2 * sites :])
        self._manager.advance(batch, State.FREE_READY)

    def _free_update(self, batch: int) -> list[Any]:
        """What the update of a batch's free rows takes; its last use."""
        fetch = self._manager.fetch
        rate, step, _ = fetch(batch, "rest", last=True)
        wire = self._graph.wire(fetch(batch, "plan", last=True))
        conflicts = [
            *fetch(batch, "backward", last=True),
            *fetch(batch, "masks backward", last=True),
        ]
        return [*wire, *conflicts, *fetch(batch, "replies", last=True), rate, step]

    def _hand_over(self, batch: int, outputs: Any) -> None:
        weight, *vectors = outputs
        self._meter.count("vector_bytes", sum(map(nbytes, vectors)))
        self._manager.advance(batch, State.READY)
        self._meter.mark(GRAPH, "ready", batch)
        with self._meter.span(GRAPH, "hand over", batch):
            self.hold.put(batch, [tf.constant(batch, tf.int64), weight, *vectors])

    def _retire(self, batch: int) -> None:
        self._manager.drop(batch, "plan", "forward", "backward", "masks backward", "replies", "rest")
        self._manager.advance(batch, State.RETIRED)


class EmbeddingThread:
    """Runs one stream to its end, its cancellation or its failure."""

    def __init__(
        self,
        runner: StageRunner,
        staleness: Staleness,
        first: int,
        dataset: PipelineDataset,
        communicator: Communicator,
        latch: AbortLatch,
    ) -> None:
        self._runner, self._staleness, self._first = runner, staleness, first
        self._dataset, self._communicator, self._latch = dataset, communicator, latch
        self._thread = threading.Thread(target=self._run, name="demb-embedding-graph", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, seconds: float) -> None:
        """Wait for the end. Raises TimeoutError."""
        self._thread.join(seconds)
        if self._thread.is_alive():
            raise TimeoutError(f"the embedding graph has not ended within {seconds:g} s")

    def _run(self) -> None:
        try:
            if self._anybody_has_data():
                schedule.run(self._runner, self._staleness, self._first)
        except Cancelled:
            return
        except BaseException as error:
            self._fail(error)

    def _anybody_has_data(self) -> bool:
        mine = tf.constant([int(self._dataset.has_next)], tf.int32)
        found = self._communicator.all_reduce(mine, "max", phase="first batch")
        exists = bool(found[0])
        self._runner.note_existence(self._first, exists)
        return exists

    def _fail(self, error: BaseException) -> None:
        told = self._communicator.raised(error)
        cause = self._communicator.explain(error)
        if cause is not error:
            cause.__cause__ = error
        self._latch.trip(GRAPH, cause)
        if not told:  # every rank is to leave this lane by one operation that fails
            self._communicator.tell_failure(self._latch.describe(self._communicator.rank))
