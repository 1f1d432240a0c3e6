"""First trace of a step: which lookups there are, and whether their ids can be had without the rest of the step."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import wrap_function
from tensorflow.python.framework import op_def_registry

from distributed_embeddings.layers.hand_over import handed_over
from distributed_embeddings.layers.symbolic import placeholder_output
from distributed_embeddings.pipeline.tensors import Form, flatten

# Stateful by name, but the same question always has the same answer.
_HARMLESS = (
    "Assert",
    "LookupTableFindV2",
    "LookupTableSizeV2",
    "Placeholder",
    "PlaceholderWithDefault",
    "ReadVariableOp",
    "ResourceGather",
    "ResourceGatherNd",
)


@dataclass(frozen=True)
class Site:
    """One lookup of a step. ids, weights: tensors of the trace. outputs: what stood in for its vectors."""

    layer: Any
    ids: list[Any]
    weights: list[Any]
    outputs: list[Any]

    def flat(self) -> list[tf.Tensor]:
        """Its ids and weights."""
        return flatten([self.ids, self.weights])


class Recorder:
    """Notes every lookup of a trace; zeros stand in for the vectors."""

    def __init__(self) -> None:
        self.sites: list[Site] = []
        self.refused: dict[str, str] = {}  # layer → why it stays in the main graph
        self._graph: Any = None
        self._mark: Any = None

    def trace(self, step: Callable[..., Any], specs: Sequence[Any]) -> Any:
        """Trace `step` of flat inputs; returns the concrete function, which is never run."""

        def traced(*flat: Any) -> Any:
            # A step that creates variables is traced twice.
            self._graph, self.sites, self.refused = tf.compat.v1.get_default_graph(), [], {}
            self._mark = tf.zeros([])
            with handed_over(self):
                return step(*flat)

        return tf.function(traced, input_signature=list(specs)).get_concrete_function()

    @tf.autograph.experimental.do_not_convert
    def on_lookup(self, layer: Any, ids: Sequence[Any], weights: Sequence[Any]) -> list[Any] | None:
        combiners = {t.name: (t.embedding_dim, t.combiner) for t in layer.plan.tables}
        features = [f for f in layer.plan.features if f.name in layer.local_inputs]
        outputs = [
            placeholder_output(x, *combiners[f.table], "float32") for x, f in zip(ids, features, strict=True)
        ]
        # What comes out of a condition or a loop depends on what went in: there, vectors are known by the mark.
        outputs = [o + self._mark for o in outputs]
        site = Site(layer, list(ids), list(weights), outputs)
        reason = self._why_not(layer)
        if reason:
            self.refused[layer.name] = reason
        self.sites.append(site)
        if len(features) < len(layer.plan.features):
            return layer._placeholders(dict(zip(layer.local_inputs, ids, strict=True)))
        return outputs

    def _why_not(self, layer: Any) -> str:
        if any(s.layer is layer for s in self.sites):
            return (
                "it is called more than once in a step, and all ids of a step must be known before its update"
            )
        if not layer.dp_input and layer.plan.world_size > 1:
            return "dp_input=False: its owners pool, and have no samples of their own to hand over"
        if tf.compat.v1.get_default_graph() is not self._graph:
            return "it is called inside a condition or a loop of the graph"
        return ""

    def covers(self, plan: Any) -> bool:
        return any(s.layer.plan is plan for s in self.sites)

    def gradients(self) -> list[tf.Tensor]:
        return []

    def decide(self, finite: tf.Tensor, scale: tf.Tensor) -> None:
        """Nothing is handed over in this trace."""

    def usable(self, graph: Any, trainable: Sequence[Any]) -> list[Site]:
        """The sites that can be cut off. Warns of each of the others, with the path of its ids."""
        checker = _Checker(graph, trainable, [[self._mark], *(flatten(s.outputs) for s in self.sites)])
        usable = []
        for site in self.sites:
            name = site.layer.name
            if name not in self.refused:
                reason = checker.why_not(site)
                if reason:
                    self.refused[name] = reason
        for site in self.sites:
            if site.layer.name in self.refused:
                continue
            usable.append(site)
        for name, reason in self.refused.items():
            warnings.warn(
                f"layer '{name}' stays in the main graph and is not pipelined: {reason}.", stacklevel=2
            )
        return usable


class _Checker:
    """Looks for what ids must not depend on."""

    def __init__(self, graph: Any, trainable: Sequence[Any], outputs: Sequence[Sequence[tf.Tensor]]) -> None:
        # Not the splits of ragged vectors: those are the ids' own.
        vectors = [t for tensors in outputs for t in tensors if t.dtype.is_floating]
        self._outputs = {t.op for t in vectors}
        self._functions = {f.signature.name: f for f in graph.as_graph_def().library.function}
        names = {id(_handle(v)): str(v.name) for v in trainable}
        inner = {t.op: names.get(id(outer), "") for outer, t in graph.captures}
        self._trainable = {op: name for op, name in inner.items() if name}
        self._changed = {
            i.op
            for op in graph.get_operations()
            for i in op.inputs
            if i.dtype == tf.resource and self._side_effects(op)
        }

    def why_not(self, site: Site) -> str:
        features = [f.name for f in site.layer.plan.features]
        for name, ids, weights in zip(features, site.ids, site.weights, strict=True):
            for tensor in flatten([ids, weights]):
                path = self._path(tensor.op)
                if path:
                    chain = " <- ".join(op.name for op in path)
                    return f"the ids of feature '{name}' depend on {self._what(path[-1])}: {chain}"
        return ""

    def _path(self, start: Any) -> list[Any]:
        """The ops from the ids back to the first that they must not depend on; [] where there is none."""
        came_from: dict[Any, Any] = {start: None}
        queue = [start]
        while queue:
            op = queue.pop(0)
            if self._what(op):
                path = [op]
                while came_from[path[-1]] is not None:
                    path.append(came_from[path[-1]])
                return path[::-1]
            for before in [*(t.op for t in op.inputs), *op.control_inputs]:
                if before not in came_from:
                    came_from[before] = op
                    queue.append(before)
        return []

    def _what(self, op: Any) -> str:
        if op in self._outputs:
            return "vectors of a lookup"
        if op in self._trainable:
            return f"the trainable variable '{self._trainable[op]}'"
        if op in self._changed:
            return "a variable that the step changes"
        effects = self._side_effects(op)
        return f"an operation with side effects or chance, {', '.join(effects)}" if effects else ""

    def _side_effects(self, op: Any) -> list[str]:
        """Types of what an op does that is not harmless, itself or in the functions that it calls."""
        nodes, found, seen = [op.node_def], set(), set()
        while nodes:
            node = nodes.pop()
            called = _called(node)
            for name in called - seen:
                nodes += self._functions[name].node_def
            seen |= called
            if not called and node.op not in _HARMLESS and _is_stateful(node.op):
                found.add(node.op)
        return sorted(found)


def _called(node: Any) -> set[str]:
    """Names of the functions that a node runs."""
    values = node.attr.values()
    return {f.name for v in values for f in ([v.func] if v.HasField("func") else v.list.func)}


def _is_stateful(op_type: str) -> bool:
    definition = op_def_registry.get(op_type)
    return definition is not None and definition.is_stateful


def _handle(variable: Any) -> Any:
    value = getattr(variable, "value", variable)
    value = value if isinstance(value, tf.Variable) else getattr(variable, "_value", value)
    return getattr(value, "handle", None)


class Extraction:
    """The part of a traced step that makes the ids, as a function of its own."""

    def __init__(self, concrete: Any, sites: Sequence[Site]) -> None:
        graph = concrete.graph
        self.forms = [Form([s.ids, s.weights]) for s in sites]
        fetches = [t for s in sites for t in s.flat()]
        captured = {id(t) for t in graph.internal_captures}
        arguments = [t for t in graph.inputs if id(t) not in captured]
        needed = ancestors([t.op for t in fetches])
        self.inputs = [i for i, t in enumerate(arguments) if t.op in needed]
        feeds = [arguments[i] for i in self.inputs]
        whole = wrap_function.WrappedFunction(graph, wrap_function.VariableHolder())
        # An id that is an input itself is no fetch: it is passed on.
        position = {id(f): i for i, f in enumerate(feeds)}
        self._passed = {k: position[id(t)] for k, t in enumerate(fetches) if id(t) in position}
        rest = [t for k, t in enumerate(fetches) if k not in self._passed]
        self._pruned = whole.prune(feeds, rest) if rest else None
        self._count = len(fetches)

    def __call__(self, part: Sequence[tf.Tensor]) -> list[tuple[list[Any], list[Any]]]:
        """(ids, weights) of every site from the inputs it needs, `inputs`."""
        made = iter(self._pruned(*part) if self._pruned is not None else ())
        flat = [part[self._passed[k]] if k in self._passed else next(made) for k in range(self._count)]
        result = []
        for form in self.forms:
            ids, weights = form.pack(flat[: form.size])
            flat = flat[form.size :]
            result.append((ids, weights))
        return result


def ancestors(ops: Sequence[Any]) -> set[Any]:
    """The ops and all that they need, control inputs too."""
    found, queue = set(ops), list(ops)
    while queue:
        op = queue.pop()
        for before in [*(t.op for t in op.inputs), *op.control_inputs]:
            if before not in found:
                found.add(before)
                queue.append(before)
    return found
