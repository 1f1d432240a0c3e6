"""The main graph: the step with vectors handed over in the place of lookups, and their gradients handed back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from distributed_embeddings.layers.hand_over import handed_over
from distributed_embeddings.layers.routing import RoutedOptimizer
from distributed_embeddings.pipeline.flat_function import FlatFunction
from distributed_embeddings.pipeline.queues import HandOverQueue
from distributed_embeddings.pipeline.recording import ancestors
from distributed_embeddings.pipeline.sites import PipelinedSite, split_by_site
from distributed_embeddings.pipeline.tensors import Form, flatten
from distributed_embeddings.sharding import add_replicated, batch_weight_variable


class MainGraph:
    """One training step of the dense network.

    step: of flat inputs of `specs`: forward, backward, and the optimizer's apply. It takes the vectors of its batch
    from `vectors` before their first use, and puts their gradients into `gradients` as soon as they exist.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        specs: Sequence[tf.TensorSpec],
        sites: Sequence[PipelinedSite],
        routed: RoutedOptimizer,
        vectors: HandOverQueue,
        gradients: HandOverQueue,
        exchanges: bool,
    ) -> None:
        # A trainable variable without elements: through it a tape comes to the vectors' gradients.
        self._probe = tf.Variable(tf.zeros([0]), trainable=True, name="vectors_handed_over")
        self._sites, self._routed = sites, routed
        self._vectors, self._gradients, self._exchanges = vectors, gradients, exchanges
        self._step = step
        self._function = FlatFunction(self._traced, specs, autograph=True)
        self.inputs = self._used_inputs(len(specs))
        # Inputs that nothing in the step reads.
        shapes = [[0 if d is None else d for d in s.shape] for s in specs]
        self._unused = [tf.zeros(n, s.dtype) for n, s in zip(shapes, specs, strict=True)]

    def __call__(self, part: Sequence[tf.Tensor]) -> tuple[int, Any]:
        """Run a step; part: the inputs `inputs`. Returns the batch it was for, and what the step returns."""
        flat = list(self._unused)
        for i, tensor in zip(self.inputs, part, strict=True):
            flat[i] = tensor
        batch, *result = self._function(*flat)
        return int(batch), self._result.pack(result)

    def _traced(self, *flat: Any) -> Any:
        batch, weight, *vectors = self._vectors.take()
        if self._exchanges:  # else there is one worker, and its weight is 1
            batch_weight_variable().assign(weight)
        hand_over = _Substitute(self._sites, vectors, self._probe, self._routed)
        with handed_over(hand_over):
            result = self._step(*flat)
        self._gradients.put([batch, *hand_over.handed_back()])
        self._result = Form(result)
        return [batch, *map(tf.convert_to_tensor, flatten(result))]

    def _used_inputs(self, count: int) -> list[int]:
        graph = self._function.graph
        needed = ancestors([*(t.op for t in graph.outputs), *graph.control_outputs])
        return [i for i, t in enumerate(graph.inputs[:count]) if t.op in needed]


class _Substitute:
    """Vectors for lookups, in one trace."""

    def __init__(
        self,
        sites: Sequence[PipelinedSite],
        vectors: Sequence[tf.Tensor],
        probe: tf.Variable,
        routed: RoutedOptimizer,
    ) -> None:
        self._sites, self._probe, self._routed = sites, probe, routed
        self._given = split_by_site(sites, vectors)
        self._back: list[list[tf.Tensor] | None] = [None] * len(sites)
        self._rate_and_step: tuple[tf.Tensor, tf.Tensor] | None = None
        self._decision = tf.constant(True), tf.constant(1.0)

    @tf.autograph.experimental.do_not_convert
    def on_lookup(self, layer: Any, ids: Sequence[Any], weights: Sequence[Any]) -> list[Any] | None:
        index = next((k for k, site in enumerate(self._sites) if site.layer is layer), None)
        if index is None:
            return None
        site, flat = self._sites[index], list(self._given[index])
        watched = self._watched(index, [flat[i] for i in site.vectors])
        for i, tensor in zip(site.vectors, watched, strict=True):
            flat[i] = tensor
        outputs = {
            i: _like_ids(out, ids[i]) for i, out in zip(site.lookup.routed, site.form.pack(flat), strict=True)
        }
        plan = layer.plan
        if len(outputs) < len(plan.features):
            # Tables that every rank has are looked up here. Their ids were checked with the others, before they came.
            bags = dict(enumerate(layer.bags(ids, weights)))
            add_replicated(plan, layer.tables.for_lookup(), bags, layer.invalid_ids, outputs)
        return [outputs[i] for i in range(len(plan.features))]

    def _watched(self, index: int, vectors: list[tf.Tensor]) -> list[tf.Tensor]:
        """The vectors; their gradients are noted when a tape comes by."""

        @tf.custom_gradient
        def through(probe: tf.Tensor, *given: tf.Tensor):
            def gradient(*upstream: tf.Tensor):
                self._note(index, list(upstream))
                return [tf.zeros_like(probe), *[None] * len(given)]

            return [tf.identity(v) for v in given], gradient

        return through(tf.convert_to_tensor(self._probe), *vectors)

    def _note(self, index: int, upstream: list[tf.Tensor]) -> None:
        if self._back[index] is not None:
            raise ValueError(
                f"the vectors of layer '{self._sites[index].layer.name}' have one gradient in a step of the pipeline. "
                "Received: a second tape over the same lookup."
            )
        self._back[index] = upstream
        if self._rate_and_step is None:
            # Before the optimizer advances them; they go with the batch.
            self._rate_and_step = self._routed.rate_and_step()

    def covers(self, plan: Any) -> bool:
        return any(s.layer.plan is plan for s in self._sites)

    def gradients(self) -> list[tf.Tensor]:
        return [g for grads in self._back if grads is not None for g in grads]

    def decide(self, finite: tf.Tensor, scale: tf.Tensor) -> None:
        self._decision = finite, scale

    def handed_back(self) -> list[tf.Tensor]:
        """Everything behind the batch id that the embedding graph gets."""
        missing = [s.layer.name for s, back in zip(self._sites, self._back, strict=True) if back is None]
        if missing or self._rate_and_step is None:
            raise ValueError(
                "every pipelined layer's vectors must have a gradient in the step. Received none for: "
                f"{missing}. The step must take gradients of a loss that depends on them, inside the traced function."
            )
        finite, scale = self._decision
        return [*self._rate_and_step, finite, tf.cast(scale, tf.float32), *self.gradients()]


def _like_ids(output: Any, ids: Any) -> Any:
    """Ragged outputs have the splits' dtype of the ids, as without the pipeline."""
    if isinstance(output, tf.RaggedTensor) and isinstance(ids, tf.RaggedTensor):
        return output.with_row_splits_dtype(ids.row_splits.dtype)
    return output
