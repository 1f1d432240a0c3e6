"""`EmbeddingPipeline`: a training loop of one's own over two graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import tensorflow as tf

from distributed_embeddings.layers.optimizer import DistributedOptimizer
from distributed_embeddings.pipeline.core import READING, Stream, TwoGraphs, ask_guards, drained
from distributed_embeddings.pipeline.meter import Observer
from distributed_embeddings.pipeline.report import Report, make_report
from distributed_embeddings.pipeline.staleness import parse


@dataclass(frozen=True)
class StepResult:
    """One step. batch: its global id. real: whether this rank had samples; result: what the step returned (the local
    mean loss, float32 scalar, for a pipeline made from a loss)."""

    batch: int
    real: bool
    result: Any


class EmbeddingPipeline:
    """Trains a Keras model with `DistributedEmbedding` layers, embedding work beside dense work.

    loss_fn(labels, outputs): a scalar, the mean over the batch. optimizer: a DistributedOptimizer, or what one wraps.
    dataset: batches (features, labels), a tf.data.Dataset or an iterable with `element_spec`; every rank its own part.
    staleness: 0, "exact" (bitwise the same), or k: a lookup reads all updates but the last k. look_ahead: batches read
    ahead of the main graph. byte_budget: of what they hold. step: instead of loss_fn, `step(*element)`: forward,
    backward, and the optimizer's apply. observer(graph, stage, batch): called before each stage, in its thread.

    Iterate it: one `StepResult` a batch, as many on every rank; iterating again goes through the data set again.
    Collective. Raises what went wrong in either graph, on every rank.
    """

    def __init__(
        self,
        model: Any,
        loss_fn: Callable[[Any, Any], Any] | None,
        optimizer: Any,
        dataset: Any,
        staleness: int | Literal["exact"] = "exact",
        *,
        look_ahead: int | None = None,
        byte_budget: int | None = None,
        step: Callable[..., Any] | None = None,
        observer: Observer | None = None,
    ) -> None:
        if (loss_fn is None) == (step is None):
            raise ValueError("one of `loss_fn` and `step` must be given. Received: both or none")
        if not isinstance(optimizer, DistributedOptimizer):
            optimizer = DistributedOptimizer(optimizer)
        self.optimizer = optimizer
        self._model, self._dataset = model, dataset
        self.graphs = TwoGraphs(
            step or make_step(model, loss_fn, optimizer),
            dataset.element_spec,
            model,
            optimizer,
            parse(staleness),
            look_ahead=look_ahead,
            byte_budget=byte_budget,
            observer=observer,
        )
        for name in READING:
            if hasattr(type(model), name):
                object.__setattr__(model, name, drained(model, name, self._before_read))

    def _before_read(self) -> None:
        ask_guards(self._model, self.optimizer)

    def __iter__(self) -> Iterator[StepResult]:
        return self.run(self._dataset)

    def run(self, dataset: Iterable[Any]) -> Iterator[StepResult]:
        """Train on batches of the form of the first data set."""
        stream = self.graphs.open(dataset)
        try:
            yield from _results(stream)
        finally:
            stream.close()

    def drain(self) -> None:
        """Wait until every update is in the tables. Before reading them by other means than layer and optimizer."""
        self.graphs.drain()

    def report(self, unpipelined_ms: float | None = None) -> Report:
        """What overlapped, and what binds. unpipelined_ms: a measured step without the pipeline; else it is the sum of
        both graphs."""
        return make_report(self.graphs, unpipelined_ms)

    def write_trace(self, path: Any) -> None:
        """A Chrome trace of both graphs on all ranks, written by rank 0. Collective."""
        self.graphs.write_trace(path)

    def state(self) -> dict[str, int]:
        """Where training is: `next_batch`, the next global batch id, and `batches`, those of this pass."""
        stream = self.graphs.stream
        return {"next_batch": 0, "batches": 0} if stream is None else stream.dataset.state()

    def close(self) -> None:
        """End the current pass, drained. Collective."""
        if self.graphs.stream is not None:
            self.graphs.stream.close()


def _results(stream: Stream) -> Iterator[StepResult]:
    while (done := stream.step()) is not None:
        sample, result = done
        yield StepResult(sample.batch, sample.real, result)


def make_step(model: Any, loss_fn: Callable[[Any, Any], Any], optimizer: Any) -> Callable[..., Any]:
    """(features, labels) → the local mean loss, float32 scalar."""

    def step(features: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.add_n([loss_fn(labels, model(features, training=True)), *model.losses])
            objective = optimizer.scale_loss(loss)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(objective, variables), variables, strict=True))
        return loss

    return step
