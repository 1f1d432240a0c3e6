"""The embedding graph's stages as functions over flat lists of tensors: traced once, run by one thread alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from distributed_embeddings.comm import Communicator
from distributed_embeddings.layers.routing import RoutedOptimizer
from distributed_embeddings.ops import conflict
from distributed_embeddings.ops.lanes import LaneGradients
from distributed_embeddings.pipeline.recording import Extraction
from distributed_embeddings.pipeline.sites import PipelinedSite
from distributed_embeddings.pipeline.tensors import Form, flatten, specs_of
from distributed_embeddings.sharding import partial
from distributed_embeddings.sharding.batch_weight import of_rank
from distributed_embeddings.sharding.staged import LookupPlan

Flat = list[tf.Tensor]

# Learning rate, step, what the loss was multiplied by.
_UPDATE = (tf.TensorSpec([], tf.float32), tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.float32))


class EmbeddingGraph:
    """Stages for every staleness but the exact one (`ExactGraph`).

    sites: all pipelined lookups. extraction: what makes their ids of a sample's `extraction.inputs`. communicator: the
    embedding graph's own. Plans, vectors and gradients are flat lists over all sites.
    """

    def __init__(
        self,
        sites: Sequence[PipelinedSite],
        extraction: Extraction,
        specs: Sequence[tf.TensorSpec],
        communicator: Communicator,
        routed: RoutedOptimizer,
    ) -> None:
        self.sites, self.communicator, self.routed = sites, communicator, routed
        self._extraction = extraction
        inputs = [specs[i] for i in extraction.inputs]
        self.plan = _traced(self._plan, [tf.TensorSpec([], tf.bool), *inputs])
        self._plan_specs = specs_of(self.plan.outputs)
        self._vector_specs = [spec for site in sites for spec in site.specs]
        self._upstream_specs = [site.specs[i] for site in sites for i in site.vectors]
        self.look_up = _traced(self._look_up, self._plan_specs)
        self.update = _traced(self._update, [*self._plan_specs, *_UPDATE, *self._upstream_specs])

    def more(self, plan: Flat) -> bool:
        """Whether any rank has a batch behind the plan's."""
        return bool(self._plans(plan)[0].more)

    def _plans(self, flat: Sequence[Any]) -> list[LookupPlan]:
        return self._form.pack(flat[: self._form.size])

    def _plan(self, more: tf.Tensor, *part: Any) -> Flat:
        plans = []
        for site, (ids, weights) in zip(self.sites, self._extraction(part), strict=True):
            layer = site.layer
            count = None if layer.invalid_ids == "raise" else layer.count_invalid
            plans.append(site.lookup.plan(layer.bags(ids, weights), more, count))
        self._form = Form(plans)
        return flatten(plans)

    def _look_up(self, *flat: Any) -> Flat:
        """The weight of this rank's batch, and the outputs of all sites."""
        plans = self._plans(flat)
        outputs = [
            self._outputs(site, plan, site.lookup.send_replies(*self._answer(site, plan.rows, plan.counts)))
            for site, plan in zip(self.sites, plans, strict=True)
        ]
        return [self._weight(plans), *[t for out in outputs for t in out]]

    def _update(self, *flat: Any) -> Flat:
        plans, rest = self._plans(flat), flat[self._form.size :]
        rate, step, scale, *upstream = rest
        for site, plan, own in zip(self.sites, plans, self._by_vectors(upstream), strict=True):
            gradients = self._reply_gradients(site, plan, own, scale)
            received = site.lookup.send_gradients(gradients, site.lookup.reply_splits(plan.lane_rows))
            lanes = site.lookup.lane_gradients(site.blocks, plan.rows, plan.counts, received)
            self._apply(site, lanes, rate, step)
        return []

    def _weight(self, plans: Sequence[LookupPlan]) -> tf.Tensor:
        return of_rank(plans[0].batch_sizes, self.communicator.rank)

    def _answer(self, site: PipelinedSite, rows: tf.Tensor, counts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return site.lookup.answer(site.blocks, rows, counts)

    def _outputs(self, site: PipelinedSite, plan: LookupPlan, replies: tf.Tensor) -> Flat:
        return flatten(site.lookup.outputs(plan, replies))

    def _reply_gradients(
        self, site: PipelinedSite, plan: LookupPlan, upstream: Flat, scale: tf.Tensor
    ) -> tf.Tensor:
        gradients = site.lookup.reply_gradients(plan, [tf.cast(g, tf.float32) for g in upstream])
        return site.lookup.scaled(plan, gradients) / scale

    def _by_vectors(self, upstream: Sequence[Any]) -> list[Flat]:
        parts, start = [], 0
        for site in self.sites:
            count = len(site.vectors)
            parts.append(list(upstream[start : start + count]))
            start += count
        return parts

    def _apply(self, site: PipelinedSite, gradients: LaneGradients, rate: tf.Tensor, step: tf.Tensor) -> None:
        if site.variables and not self.routed.updates(site.variables[0]):
            return  # a frozen layer
        self.routed.apply_pending(gradients, site.variables, rate, step, self.communicator, site.layer.plan)


class ExactGraph(EmbeddingGraph):
    """The stages of exact mode: of rows that two batches in a row share, and of all others."""

    def __init__(self, *arguments: Any, may_skip: bool = False) -> None:
        """may_skip: whether a step's gradients may turn out not to count, as with loss scaling."""
        super().__init__(*arguments)
        self._stamps = [partial.make_stamps(site.blocks) for site in self.sites]
        self._stamp = 0
        outputs = list(self.plan.outputs)
        positions = {id(t): i for i, t in enumerate(outputs)}
        self._wire_positions = [positions[id(t)] for p in self._plans(outputs) for t in _wire(p)]
        wires = specs_of(self.wire(outputs))
        self._announced = _traced(self._announce, [tf.TensorSpec([], tf.int64), *wires, *wires])
        half = specs_of(self._announced.outputs)[: self._conflict_form.size]
        self.look_up_free = _traced(self._look_up_free, [*self._plan_specs, *half])
        merged = specs_of(self.look_up_free.outputs)
        plan = self._plan_specs
        turn = [*plan, *half, *_UPDATE, *self._upstream_specs, *plan, *half, *merged]
        self.turn = _traced(lambda *flat: self._turn(True, *flat), turn)
        self.turn_without_update = _traced(lambda *flat: self._turn(False, *flat), turn) if may_skip else None
        flats = [tf.TensorSpec([None], tf.float32)] * len(self.sites)
        self.update_free = _traced(self._update_free, [*plan, *half, *flats, *_UPDATE[:2]])

    def begin(self) -> None:
        """A new stream: its first batch conflicts with none."""
        self._stamp += 1

    def announce(self, plan: Flat, previous: Flat | None) -> tuple[Flat, Flat]:
        """Stamp a batch. Returns its conflicts with the batch before and that one's with this; previous: None at the
        begin of a stream."""
        own = self.wire(plan)
        before = self._no_wire(own) if previous is None else self.wire(previous)
        self._stamp += 1
        flat = list(self._announced(tf.constant(self._stamp, tf.int64), *own, *before))
        return flat[: self._conflict_form.size], flat[self._conflict_form.size :]

    def conflict_share(self, conflicts: Flat) -> tuple[int, int]:
        """Conflicting rows and all rows asked of this rank."""
        parts = self._conflict_form.pack(conflicts)
        shared = sum(int(c.rows.shape[0]) for c in parts)
        return shared, shared + sum(int(c.free_rows.shape[0]) for c in parts)

    def wire(self, plan: Sequence[Any]) -> Flat:
        """Of a plan what `announce` needs."""
        return [plan[i] for i in self._wire_positions]

    def _no_wire(self, wire: Flat) -> Flat:
        """Of a batch without rows."""
        return [t[:0] if k % 3 == 1 else tf.zeros_like(t) for k, t in enumerate(wire)]

    def _announce(self, stamp: tf.Tensor, *wires: Any) -> Flat:
        half = len(wires) // 2
        forward, backward = [], []
        for k, site in enumerate(self.sites):
            now = _Wire(*wires[3 * k : 3 * k + 3])
            before = _Wire(*wires[half + 3 * k : half + 3 * k + 3])
            ahead, behind = partial.announce(site.lookup, self._stamps[k], now, stamp, before)
            forward.append(ahead)
            backward.append(behind)
        self._conflict_form = Form(forward)
        return [*flatten(forward), *flatten(backward)]

    def _look_up_free(self, *flat: Any) -> Flat:
        plans, conflicts = self._plans(flat), self._conflict_form.pack(flat[self._form.size :])
        merged = []
        for site, plan, own in zip(self.sites, plans, conflicts, strict=True):
            received = site.lookup.send_replies(*self._answer(site, *own.part(False)))
            merged.append(partial.merge_replies(site.lookup, plan, own, received, False))
        return merged

    def _turn(self, counts: bool, *flat: Any) -> Flat:
        """Gradients of replies of all sites, then what `look_up` gives for the batch behind. counts: whether the
        gradients do."""
        size, half = self._form.size, self._conflict_form.size
        plans, backward = self._plans(flat), self._conflict_form.pack(flat[size : size + half])
        rate, step, scale, *rest = flat[size + half :]
        upstream, rest = rest[: len(self._upstream_specs)], rest[len(self._upstream_specs) :]
        following, forward = self._plans(rest), self._conflict_form.pack(rest[size : size + half])
        merged = rest[size + half :]
        gradients, outputs = [], []
        for k, (site, own) in enumerate(zip(self.sites, self._by_vectors(upstream), strict=True)):
            flat_gradients = self._reply_gradients(site, plans[k], own, scale)
            if counts:
                lanes = partial.send_part_of_gradients(
                    site.lookup, site.blocks, plans[k], backward[k], flat_gradients, True
                )
                answer = self._update_and_look_up(site, lanes, rate, step, *forward[k].part(True))
            else:
                answer = self._answer(site, *forward[k].part(True))
            received = site.lookup.send_replies(*answer)
            replies = partial.merge_replies(site.lookup, following[k], forward[k], received, True, merged[k])
            gradients.append(flat_gradients)
            outputs += self._outputs(site, following[k], replies)
        return [*gradients, self._weight(following), *outputs]

    def _update_and_look_up(
        self,
        site: PipelinedSite,
        gradients: LaneGradients,
        rate: tf.Tensor,
        step: tf.Tensor,
        rows: tf.Tensor,
        counts: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """One kernel where there is one: the same rows are updated and read."""
        rule = self.routed.rule
        fused = site.variables and self.routed.updates(site.variables[0])
        fused = fused and not self.routed.couples(site.layer.plan)
        if fused and conflict.can_fuse(site.blocks, rule.kernel()):
            targets = [self.routed.target(v) for v in site.variables]
            return conflict.update_and_look_up(
                gradients, targets, rule.kernel(), rule.rates(rate, step), step, rows, counts
            )
        self._apply(site, gradients, rate, step)
        return self._answer(site, rows, counts)

    def _update_free(self, *flat: Any) -> Flat:
        size, half, count = self._form.size, self._conflict_form.size, len(self.sites)
        plans, backward = self._plans(flat), self._conflict_form.pack(flat[size : size + half])
        rest = flat[size + half :]
        rate, step = rest[count:]
        for site, plan, own, gradients in zip(self.sites, plans, backward, rest[:count], strict=True):
            lanes = partial.send_part_of_gradients(site.lookup, site.blocks, plan, own, gradients, False)
            self._apply(site, lanes, rate, step)
        return []


class _Wire:
    """The part of a LookupPlan that `partial.announce` reads."""

    def __init__(self, lane_rows: tf.Tensor, rows: tf.Tensor, counts: tf.Tensor) -> None:
        self.lane_rows, self.rows, self.counts = lane_rows, rows, counts


def _wire(plan: LookupPlan) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    return plan.lane_rows, plan.rows, plan.counts


def _traced(function: Any, specs: Sequence[tf.TensorSpec]) -> Any:
    """The concrete function of flat inputs. Traced at once: a trace beside a running step would share Keras's state."""
    return tf.function(function, input_signature=list(specs), autograph=False).get_concrete_function()
