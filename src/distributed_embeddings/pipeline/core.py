"""Both graphs of one model, and the streams of batches that run through them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from distributed_embeddings import comm
from distributed_embeddings.layers.even_batches import empty_batch
from distributed_embeddings.layers.optimizer import DistributedOptimizer
from distributed_embeddings.pipeline.choice import SplitChoice
from distributed_embeddings.pipeline.dataset import PipelineDataset, Sample
from distributed_embeddings.pipeline.embedding_graph import EmbeddingGraph
from distributed_embeddings.pipeline.engine import EmbeddingThread, StageRunner
from distributed_embeddings.pipeline.exact_graph import ExactGraph
from distributed_embeddings.pipeline.exchange_manager import ExchangeManager
from distributed_embeddings.pipeline.failure import AbortLatch, PipelineGuard
from distributed_embeddings.pipeline.local_graph import LocalGraph
from distributed_embeddings.pipeline.main_graph import MainGraph
from distributed_embeddings.pipeline.meter import Meter, Observer, Span
from distributed_embeddings.pipeline.queues import GRADIENT_HEAD, VECTOR_HEAD, HandOverQueue
from distributed_embeddings.pipeline.recording import Extraction, Recorder
from distributed_embeddings.pipeline.sites import PipelinedSite, is_exchanged
from distributed_embeddings.pipeline.staleness import Staleness
from distributed_embeddings.pipeline.tensors import Form, any_batch, flatten

JOIN_SECONDS = 60.0
READING = ("make_test_function", "make_predict_function")
"""What Keras calls at the begin of every evaluation and prediction."""


class TwoGraphs:
    """A step cut in two. step: of an element's parts, as positional arguments: forward, backward, apply.

    element_spec: of the elements, a tuple. lane: the embedding graph's communicator, where there is one already.
    Building is collective and traces all functions. Raises ValueError where nothing of the model can be pipelined, and
    where several workers' graphs would share one thread of TensorFlow.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        element_spec: tuple[Any, ...],
        model: Any,
        optimizer: DistributedOptimizer,
        staleness: Staleness,
        *,
        look_ahead: int | None = None,
        byte_budget: int | None = None,
        observer: Observer | None = None,
        lane: Any = None,
    ) -> None:
        self._communicator = comm.current()
        alone = is_alone(self._communicator)
        self.mode = str(staleness)
        if alone and staleness.exact:  # the same bits, and no exchange that exact's overlap would hide
            staleness, self.mode = Staleness(), f"{self.mode} (run as 0: one worker)"
        self.staleness, self.meter, self.latch = staleness, Meter(observer), AbortLatch()
        self.look_ahead = max(look_ahead or 4, staleness.look_ahead)
        self.byte_budget = byte_budget
        _require_threads(self._communicator.size)
        self._spec = tf.nest.map_structure(any_batch, element_spec)
        # Of specs and not of values: a sparse tensor made like another would take over its number of rows.
        self._form = Form(self._spec)
        specs = flatten(self._spec)

        def flat_step(*flat: Any) -> Any:
            return step(*self._form.pack(flat))

        recorder = Recorder()
        recorded = recorder.trace(flat_step, specs)
        found = [s for s in recorder.usable(recorded.graph, model.trainable_variables) if is_exchanged(s)]
        if not found:
            raise ValueError(
                "the model must have a DistributedEmbedding layer that can be pipelined. Received: "
                f"{recorder.refused or 'none, or only data-parallel tables, which stay in the main graph'}"
            )
        self.refused = recorder.refused
        self.lane = lane or self._communicator.duplicate("embedding graph")
        self.sites = [PipelinedSite.of(site, self.lane) for site in found]
        self._make_queues()
        routed = optimizer.routed
        self.main = MainGraph(
            flat_step, specs, self.sites, routed, self.vectors, self.gradients, self._communicator.size > 1
        )
        extraction = Extraction(recorded, found)
        self.embedding_inputs = extraction.inputs
        arguments = (self.sites, extraction, specs, self.lane, routed)
        self.embedding: EmbeddingGraph
        if alone:
            self.embedding = LocalGraph(*arguments, scaled=optimizer.scales_loss)
        elif staleness.exact:
            self.embedding = ExactGraph(*arguments, may_skip=optimizer.scales_loss)
        else:
            self.embedding = EmbeddingGraph(*arguments)
        if staleness.lag:
            self.embedding.make_advance()
        self.next_batch = 0
        self.choice = SplitChoice() if staleness.exact else None
        self.stream: Stream | None = None
        self._set_guards(routed)

    def _set_guards(self, routed: Any) -> None:
        """Before the tables and the slots. Raises DirtyTablesError where a failed pipeline left them."""
        names = {
            site.layer: [f"table '{name}'" for name in site.layer.table_names] for site in self.sites
        } | {routed: ["optimizer slots"] if routed.rule.slots else []}
        guards = []
        for holder, told in names.items():
            if isinstance(holder.guard, PipelineGuard) and holder.guard.dirty:
                holder.guard.before_read("the tables" if holder is not routed else "the optimizer's slots")
            guards.append(PipelineGuard(self.latch, told, self.drain, self._in_flight))
        for holder, guard in zip(names, guards, strict=True):
            holder.guard = guard

    def _in_flight(self) -> bool:
        return self.stream is not None and not self.stream.ended

    def _make_queues(self) -> None:
        vectors = [spec for site in self.sites for spec in site.specs]
        upstream = [site.specs[i] for site in self.sites for i in site.vectors]
        capacity = self.staleness.depth + 2
        self.vectors = HandOverQueue([*VECTOR_HEAD, *vectors], capacity, "vectors")
        self.gradients = HandOverQueue([*GRADIENT_HEAD, *upstream], capacity, "gradients")
        for queue in (self.vectors, self.gradients):
            self.latch.on_abort(queue.close)

    def open(self, source: Iterable[Any]) -> Stream:
        """Begin a stream of elements; the one before has ended. Collective."""
        if self.stream is not None:
            self.stream.close()
        self.latch.check()
        self.stream = Stream(self, source)
        return self.stream

    def parts(self, element: Any) -> list[Any]:
        """An element's tensors, flat."""
        return flatten(element)

    def empty(self) -> Any:
        """An element of no samples."""
        return tf.nest.map_structure(empty_batch, self._spec)

    def drain(self) -> None:
        """Wait until every gradient that was handed over has been applied. Raises what went wrong."""
        if self.stream is not None:
            self.stream.drain()
        self.latch.check()

    def write_trace(self, path: Any) -> None:
        """Spans of all ranks as a Chrome trace, by rank 0. Collective."""
        everybodys = gather_spans(self._communicator, self.meter.spans())
        if self._communicator.rank == 0:
            self.meter.write_trace(Path(path), 0, everybodys)

    def fail(self, error: BaseException) -> BaseException:
        """The main graph failed. Returns what to raise: the first failure of either graph."""
        told = self._communicator.raised(error)
        self.latch.trip("main", self._communicator.explain(error))
        # Before waiting for the thread: it may be in an exchange that others come to only when they know.
        if not told:
            self._communicator.tell_failure(self.latch.describe(self._communicator.rank))
        if self.stream is not None:
            self.stream.abort()
        return self.latch.error or error


class Stream:
    """One pass over elements, numbered on from where the last stream ended."""

    def __init__(self, graphs: TwoGraphs, source: Iterable[Any]) -> None:
        self._graphs = graphs
        first = graphs.next_batch
        self.dataset = make_dataset(graphs, source)
        self.manager = ExchangeManager(graphs.staleness.depth)
        graphs.latch.on_abort(self._wake)
        self._runner = StageRunner(
            graphs.embedding,
            self.dataset,
            self.manager,
            graphs.vectors,
            graphs.gradients,
            graphs.meter,
            graphs.choice,
        )
        self._runner.hold.begin(graphs.lane)
        self._thread = EmbeddingThread(
            self._runner, graphs.staleness, first, self.dataset, graphs.lane, graphs.latch
        )
        self._batch = self._first = first
        self.ended = False

    def step(self) -> tuple[Sample, Any] | None:
        """Run the next batch. Returns the main graph's part of it, without tensors, and what the step returned; None at
        the end. Raises the first failure of either graph."""
        graphs = self._graphs
        if self.ended:
            return None
        try:
            graphs.latch.check()
            if not self._runner.exists(self._batch, graphs.latch):
                self.drain()
                self._end()
                return None
            sample = self.dataset.next_main()
            with graphs.meter.span("main", "step", sample.batch):
                batch, result = graphs.main(sample.part)
            if batch != sample.batch:
                raise RuntimeError(f"vectors of batch {sample.batch} must come next. Received: batch {batch}")
        except BaseException as error:
            failure = graphs.fail(error)
            if failure is error:
                raise
            raise failure from error
        self._batch += 1
        graphs.next_batch = self._batch
        return sample._replace(part=[]), result

    def drain(self) -> None:
        """See `TwoGraphs.drain`."""
        if not self.ended and self._batch > self._first:
            self.manager.wait_retired(self._batch - 1)

    def close(self) -> None:
        """End the stream, drained; batches that were read ahead are dropped. Collective."""
        if self.ended:
            return
        if self._graphs.latch.tripped:
            self.ended = True
            return
        self.drain()
        self._graphs.gradients.cancel()
        self._end()

    def _end(self) -> None:
        self._thread.join(JOIN_SECONDS)
        self._runner.hold.end(self._graphs.lane)
        self._graphs.latch.check()
        self._graphs.vectors.clear()
        self._graphs.gradients.clear()
        self.manager.discard()
        self._graphs.latch.forget(self._wake)
        self.ended = True

    def abort(self) -> None:
        """End the stream after a failure."""
        self.ended = True
        deadline = time.monotonic() + JOIN_SECONDS
        while self._thread.alive and time.monotonic() < deadline:
            time.sleep(0.01)
        self._runner.hold.end(self._graphs.lane)

    def _wake(self) -> None:
        error = self._graphs.latch.error
        if error is not None:
            self.manager.abort(error)
            self.dataset.abort(error)


def is_alone(communicator: Any) -> bool:
    """Whether there is nobody to exchange anything with."""
    return communicator.size == 1


def _require_threads(workers: int) -> None:
    """An exchange holds a thread of TensorFlow's while it waits; the other graph needs one, too."""
    threads = tf.config.threading.get_inter_op_parallelism_threads()
    name = "tf.config.threading.set_inter_op_parallelism_threads"
    if not threads:
        threads, name = int(os.environ.get("TF_NUM_INTEROP_THREADS") or 0), "TF_NUM_INTEROP_THREADS"
    if not threads:  # TensorFlow's own choice
        threads, name = len(os.sched_getaffinity(0)), "the number of this process's cores"
    if workers > 1 and threads == 1:
        raise ValueError(
            "two graphs that wait for other workers need two or more inter-op threads, else both wait for ever. "
            f"Received: 1 by {name}. Set TF_NUM_INTEROP_THREADS=2."
        )


def ask_guards(model: Any, optimizer: DistributedOptimizer) -> None:
    """Wait until tables and slots of a model may be read. Raises DirtyTablesError."""
    holders = [*model._flatten_layers(), optimizer.routed]
    for guard in [getattr(holder, "guard", None) for holder in holders]:
        if guard is not None:
            guard.before_read("the tables")


def drained(model: Any, name: str, before_read: Callable[[], None]) -> Callable[..., Any]:
    """The model's own method of READING, behind `before_read`; to be put on the instance."""

    def make(*args: Any, **kwargs: Any) -> Any:
        before_read()
        return getattr(type(model), name)(model, *args, **kwargs)

    return make


def make_dataset(graphs: TwoGraphs, source: Iterable[Any]) -> PipelineDataset:
    """Elements for both graphs, numbered from the next batch on."""
    inputs, main_inputs = graphs.embedding_inputs, graphs.main.inputs
    return PipelineDataset(
        source,
        lambda e: pick(graphs.parts(e), inputs),
        lambda e: pick(graphs.parts(e), main_inputs),
        graphs.empty,
        graphs.look_ahead,
        graphs.byte_budget,
        graphs.next_batch,
        graphs.staleness.look_ahead,
    )


def gather_spans(communicator: Any, mine: list[Span]) -> list[list[Span]]:
    """Every rank's spans, by rank. Collective."""
    text = json.dumps([[s.graph, s.stage, s.batch, s.start, s.end] for s in mine])
    data, sizes = communicator.all_gather(tf.io.decode_raw(tf.constant(text), tf.uint8), phase="trace")
    raw, start, found = data.numpy().tobytes(), 0, []
    for size in sizes.numpy().tolist():
        found.append([Span(*fields) for fields in json.loads(raw[start : start + size])])
        start += size
    return found


def pick(tensors: Sequence[Any], which: Sequence[int]) -> list[Any]:
    """Some of the tensors."""
    return [tensors[i] for i in which]
