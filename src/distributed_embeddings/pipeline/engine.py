"""The embedding graph's thread: runs the stages of a stream in the order of its schedule."""

from __future__ import annotations

import threading
from typing import Any

import tensorflow as tf

from distributed_embeddings.comm import Communicator
from distributed_embeddings.pipeline import schedule
from distributed_embeddings.pipeline.dataset import PipelineDataset
from distributed_embeddings.pipeline.embedding_graph import EmbeddingGraph, ExactGraph
from distributed_embeddings.pipeline.exchange_manager import ExchangeManager, State, nbytes
from distributed_embeddings.pipeline.failure import AbortLatch
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
    ) -> None:
        self._graph, self._dataset, self._manager = graph, dataset, manager
        self._vectors, self._gradients, self._meter = vectors, gradients, meter
        self._previous: int | None = None
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
        with self._meter.span(GRAPH, "read", batch):
            sample = self._dataset.next_embedding()
        self._manager.open(batch)
        with self._meter.span(GRAPH, "plan", batch):
            plan = list(self._graph.plan(tf.constant(not sample.last), *sample.part))
        self._manager.store(batch, "plan", plan)
        self._manager.advance(batch, State.PLANNED)
        more = self._graph.more(plan)
        self.note_existence(batch + 1, more)
        return more

    def announce(self, batch: int) -> bool:
        more = self.plan(batch)
        plan = self._manager.fetch(batch, "plan")
        before = None if self._previous is None else self._manager.fetch(self._previous, "plan")
        with self._meter.span(GRAPH, "announce", batch):
            forward, backward = self._graph.announce(plan, before)
        self._manager.store(batch, "forward", forward)
        if self._previous is not None:
            self._manager.store(self._previous, "backward", backward)
            shared, rows = self._graph.conflict_share(forward)
            self._meter.count("conflict_share", shared / rows if rows else 0.0)
        self._previous = batch
        return more

    def look_up(self, batch: int) -> None:
        with self._meter.span(GRAPH, "look up", batch):
            outputs = self._graph.look_up(*self._manager.fetch(batch, "plan"))
        self._manager.drop(batch, "forward")
        self._hand_over(batch, outputs)

    def look_up_free(self, batch: int) -> None:
        fetch = self._manager.fetch
        with self._meter.span(GRAPH, "look up free rows", batch):
            merged = self._graph.look_up_free(*fetch(batch, "plan"), *fetch(batch, "forward"))
        self._manager.store(batch, "merged", list(merged))
        self._manager.advance(batch, State.FREE_READY)

    def take_gradient(self, batch: int) -> None:
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
        fetch = self._manager.fetch
        rate, step, finite = fetch(batch, "rest", last=True)
        gradients = fetch(batch, "replies", last=True)
        plan, backward = fetch(batch, "plan", last=True), fetch(batch, "backward", last=True)
        with self._meter.span(GRAPH, "update free rows", batch):
            if bool(finite):
                self._graph.update_free(*plan, *backward, *gradients, rate, step)
        self._retire(batch)

    def turn(self, batch: int) -> None:
        fetch, following = self._manager.fetch, batch + 1
        rate, step, finite, scale, *upstream = fetch(batch, "gradient", last=True)
        turn = self._graph.turn if bool(finite) else self._graph.turn_without_update
        with self._meter.span(GRAPH, "turn", batch):
            result = turn(
                *fetch(batch, "plan"),
                *fetch(batch, "backward"),
                rate,
                step,
                scale,
                *upstream,
                *fetch(following, "plan"),
                *fetch(following, "forward", last=True),
                *fetch(following, "merged", last=True),
            )
        sites = len(self._graph.sites)
        self._manager.store(batch, "replies", list(result[:sites]))
        self._manager.store(batch, "rest", [rate, step, finite])
        self._manager.advance(batch, State.CONFLICT_APPLIED)
        self._hand_over(following, result[sites:])

    def _hand_over(self, batch: int, outputs: Any) -> None:
        weight, *vectors = outputs
        self._meter.count("vector_bytes", sum(map(nbytes, vectors)))
        self._manager.advance(batch, State.READY)
        self._meter.mark(GRAPH, "ready", batch)
        with self._meter.span(GRAPH, "hand over", batch):
            self._vectors.put([tf.constant(batch, tf.int64), weight, *vectors])

    def _retire(self, batch: int) -> None:
        self._manager.drop(batch, "forward", "backward")
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
