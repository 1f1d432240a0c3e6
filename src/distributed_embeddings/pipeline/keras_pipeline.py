"""`pipeline(model)`: plain `fit` over two graphs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import tensorflow as tf

from distributed_embeddings.layers.optimizer import DistributedOptimizer
from distributed_embeddings.pipeline.core import READING, Stream, TwoGraphs, ask_guards, drained
from distributed_embeddings.pipeline.meter import Observer
from distributed_embeddings.pipeline.report import Report, make_report
from distributed_embeddings.pipeline.staleness import parse
from distributed_embeddings.pipeline.tensors import any_batch

_ATTRIBUTE = "_embedding_pipeline"


def pipeline(
    model: Any,
    staleness: int | Literal["exact"] = "exact",
    *,
    look_ahead: int | None = None,
    byte_budget: int | None = None,
    observer: Observer | None = None,
) -> KerasPipeline:
    """Let `fit` and `train_on_batch` of a compiled model run embedding work beside dense work.

    staleness, look_ahead, byte_budget, observer: see `EmbeddingPipeline`. Evaluation, prediction and saving wait until
    all updates are in the tables. Calling it again replaces the pipeline. Raises ValueError for a model without
    DistributedOptimizer, or compiled with what a pipeline cannot do.
    """
    _check(model)
    before = getattr(model, _ATTRIBUTE, None)
    if before is not None:
        before.remove()
    return KerasPipeline(
        model,
        {
            "staleness": parse(staleness),
            "look_ahead": look_ahead,
            "byte_budget": byte_budget,
            "observer": observer,
        },
    )


def _check(model: Any) -> None:
    optimizer = getattr(model, "optimizer", None)
    if not isinstance(optimizer, DistributedOptimizer):
        raise ValueError(
            "`model` must be compiled with a dmp.DistributedOptimizer, which updates tables by rows. "
            f"Received: optimizer {type(optimizer).__name__}"
        )
    if model.run_eagerly:
        raise ValueError("`model` must not be compiled with run_eagerly=True: the step is cut as a graph.")
    if model.steps_per_execution != 1:
        raise ValueError(
            "`model` must be compiled with steps_per_execution=1: the pipeline overlaps steps itself. "
            f"Received: steps_per_execution={model.steps_per_execution}"
        )


class KerasPipeline:
    """What `pipeline` returns: report, trace, drain, and the way back. The graphs are made at the first step."""

    def __init__(self, model: Any, options: dict[str, Any]) -> None:
        self._model, self._options = model, options
        self._graphs: TwoGraphs | None = None
        self._spec: Any = None
        self._lane: Any = None
        self._stream: Stream | None = None
        self._iterator: Any = None
        # On the instance, before the class's own: `fit` finds them there.
        object.__setattr__(model, _ATTRIBUTE, self)
        for name, value in self._replacements().items():
            object.__setattr__(model, name, value)
        model.train_function = None

    def _replacements(self) -> dict[str, Any]:
        return {
            "fit": self._fit,
            "make_train_function": self._make_train_function,
            **{name: drained(self._model, name, self._before_read) for name in READING},
        }

    def remove(self) -> None:
        """Back to `fit` without pipeline. Collective."""
        self._close()
        for name in [*self._replacements(), _ATTRIBUTE]:
            object.__delattr__(self._model, name)
        self._model.train_function = None

    def drain(self) -> None:
        """Wait until every update is in the tables. Before reading them by other means than layer and optimizer."""
        if self._graphs is not None:
            self._graphs.drain()

    def report(self, unpipelined_ms: float | None = None) -> Report:
        """See `EmbeddingPipeline.report`."""
        return make_report(self._made(), unpipelined_ms)

    def write_trace(self, path: Any) -> None:
        """See `EmbeddingPipeline.write_trace`. Collective."""
        self._made().write_trace(path)

    def _made(self) -> TwoGraphs:
        if self._graphs is None:
            raise RuntimeError("there is nothing to report before the first step of `fit`")
        return self._graphs

    def _fit(self, *args: Any, **kwargs: Any) -> Any:
        try:
            history = type(self._model).fit(self._model, *args, **kwargs)
        except BaseException as error:
            # A callback's error leaves batches under way, here and on the other ranks.
            if self._graphs is not None and not self._graphs.latch.tripped:
                self._graphs.fail(error)
            raise
        self._close()
        return history

    def _forget(self) -> None:
        """Drop the graphs; the next step makes new ones."""
        if self._graphs is not None:
            self._lane = None if self._graphs.latch.tripped else self._graphs.lane
        self._graphs, self._spec = None, None

    def _close(self) -> None:
        stream, self._stream, self._iterator = self._stream, None, None
        if stream is not None:
            stream.close()

    def _before_read(self) -> None:
        ask_guards(self._model, self._model.optimizer)

    def _make_train_function(self, force: bool = False) -> Any:
        if self._model.train_function is None or force:
            # Also after `compile`: loss and optimizer may be others.
            self._close()
            _check(self._model)
            self._forget()
            self._model.train_function = self._train
        return self._model.train_function

    def _train(self, iterator: Any) -> Any:
        """One step of `fit`: its logs. Ends as TensorFlow's iterators do."""
        stream = self._stream_of(iterator)
        while (done := stream.step()) is not None:
            sample, logs = done
            if sample.real:
                if sample.last:
                    self._run_empty_batches(stream)
                return logs
        raise tf.errors.OutOfRangeError(None, None, "the data set has ended on all ranks")

    def _run_empty_batches(self, stream: Stream) -> None:
        """The others' batches, of which this rank has none: `fit` does not know of them, nor do its metrics."""
        variables = self._model.metrics_variables
        kept = [v.numpy() for v in variables]
        while stream.step() is not None:
            pass
        for variable, value in zip(variables, kept, strict=True):
            variable.assign(value)

    def _stream_of(self, iterator: Any) -> Stream:
        if iterator is self._iterator and self._stream is not None:
            return self._stream
        self._close()
        source, spec = iterator, getattr(iterator, "element_spec", None)
        if spec is None:  # `train_on_batch`: one element of arrays
            source, spec = _as_tensors(iterator)
        spec = tf.nest.map_structure(any_batch, spec)
        if self._spec is not None and spec != self._spec:  # with sample weights, or without them now
            self._forget()
        if self._graphs is None:
            model, options = self._model, {**self._options, "lane": self._lane}
            self._graphs = TwoGraphs(
                lambda *element: model.train_step(element), spec, model, model.optimizer, **options
            )
            self._spec = spec
        self._iterator, self._stream = iterator, self._graphs.open(source)
        return self._stream


def _as_tensors(elements: Iterator[Any]) -> tuple[Iterator[Any], Any]:
    """Elements of arrays as elements of tensors, and the spec of the first. What is None at the end is left out."""
    element = next(elements)
    while element[-1] is None:
        element = element[:-1]
    first = tf.nest.map_structure(tf.convert_to_tensor, element)
    return iter([first]), tf.nest.map_structure(tf.type_spec_from_value, first)
