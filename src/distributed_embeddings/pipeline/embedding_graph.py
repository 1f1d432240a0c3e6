"""The embedding graph's stages as functions over flat lists of tensors: traced once, run by one thread alone.

A call of a function and an exchange both cost more than what little they carry, so stages that follow each other in
every step are one function, and what they send goes in one exchange.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from distributed_embeddings.comm import Communicator
from distributed_embeddings.layers.routing import RoutedOptimizer
from distributed_embeddings.ops.lanes import LaneGradients
from distributed_embeddings.ops.pending import slices
from distributed_embeddings.pipeline.flat_function import FlatFunction
from distributed_embeddings.pipeline.recording import Extraction
from distributed_embeddings.pipeline.sites import PipelinedSite
from distributed_embeddings.pipeline.tensors import Form, flatten, specs_of
from distributed_embeddings.sharding.batch_weight import of_rank
from distributed_embeddings.sharding.staged import LookupPlan, Question

Flat = list[tf.Tensor]
Part = tuple[tf.Tensor, tf.Tensor]
"""Values and splits of an exchange."""

# Learning rate, step, what the loss was multiplied by.
UPDATE = (tf.TensorSpec([], tf.float32), tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.float32))
_MORE = _VOTE = tf.TensorSpec([], tf.bool)


class EmbeddingGraph:
    """Stages for every staleness but the exact one (`ExactGraph`), where there are several workers (one: `LocalGraph`).

    sites: all pipelined lookups. extraction: what makes their ids of a sample's `extraction.inputs`. communicator: the
    embedding graph's own. Plans, vectors and gradients are flat lists over all sites.

    plan(more, vote, *sample) → plan. look_up(*plan) → weight of this rank's batch, *outputs. update(*plan, rate, step,
    scale, *gradients) → nothing. advance(more, vote, *sample, *plan, rate, step, scale, *gradients): `update` of one
    batch, then `plan` and `look_up` of another → plan, weight, outputs.
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
        self.sample_specs = [_MORE, _VOTE, *(specs[i] for i in extraction.inputs)]
        self.upstream_specs = [site.specs[i] for site in sites for i in site.vectors]
        self.plan = FlatFunction(self._plan, self.sample_specs)
        self.plan_specs = specs_of(self.plan.outputs)
        self._more_at, self._agreed_at = self._positions()
        self.look_up = FlatFunction(self._look_up, self.plan_specs)
        self.update = FlatFunction(self._update, [*self.plan_specs, *UPDATE, *self.upstream_specs])
        self.advance: Any = None

    def make_advance(self) -> None:
        """Trace `advance`, which only a lag needs."""
        whole = [*self.sample_specs, *self.plan_specs, *UPDATE, *self.upstream_specs]
        self.advance = FlatFunction(self._advance, whole)

    @property
    def plan_size(self) -> int:
        """Tensors of a plan."""
        return len(self.plan_specs)

    def more(self, plan: Sequence[Any]) -> bool:
        """Whether any rank has a batch behind the plan's."""
        return bool(plan[self._more_at])

    def agreed(self, plan: Sequence[Any]) -> bool:
        """Whether most ranks voted yes with the plan."""
        return bool(plan[self._agreed_at])

    def _positions(self) -> tuple[int, int]:
        """Of `more` and `agreed` in a plan."""
        outputs = list(self.plan.outputs)
        first, at = self.plans(outputs)[0], {id(t): i for i, t in enumerate(outputs)}
        return at[id(first.more)], at[id(first.agreed)]

    def plans(self, flat: Sequence[Any]) -> list[LookupPlan]:
        """The plans of all sites that `flat` begins with."""
        return self._form.pack(flat[: self._form.size])

    # Stages.

    def _plan(self, *sample: Any) -> Flat:
        asked = self._ask(sample)
        return flatten(self._understand(asked, self.exchange(_messages(asked), "ids")))

    def _look_up(self, *flat: Any) -> Flat:
        plans = self.plans(flat)
        return self._looked_up(plans)

    def _update(self, *flat: Any) -> Flat:
        plans, (rate, step, scale, *upstream) = self.plans(flat), flat[self._form.size :]
        parts = self._gradient_parts(plans, scale, upstream)
        self._apply_whole(plans, self.exchange(parts, "gradients of vectors"), rate, step)
        return []

    def _advance(self, *flat: Any) -> Flat:
        sample, rest = flat[: len(self.sample_specs)], flat[len(self.sample_specs) :]
        old, (rate, step, scale, *upstream) = self.plans(rest), rest[self._form.size :]
        asked = self._ask(sample)
        parts = [*_messages(asked), *self._gradient_parts(old, scale, upstream)]
        got = self.exchange(parts, "ids and gradients of vectors")
        self._apply_whole(old, got[len(asked) :], rate, step)
        plans = self._understand(asked, got[: len(asked)])
        return [*flatten(plans), *self._looked_up(plans)]

    # What stages are made of.

    def exchange(self, parts: Sequence[Part], phase: str) -> list[Part]:
        """All parts in one exchange."""
        return self.communicator.all_to_all_parts(parts, phase=phase)

    def _ask(self, sample: Sequence[Any]) -> list[tuple[Any, Question]]:
        """Of every site its bags and what it asks."""
        more, vote, *part = sample
        asked = []
        for site, (ids, weights) in zip(self.sites, self._extraction(part), strict=True):
            layer = site.layer
            count = None if layer.invalid_ids == "raise" else layer.count_invalid
            bags = layer.bags(ids, weights)
            asked.append((bags, site.lookup.ask(bags, more, vote, count)))
        return asked

    def _understand(
        self, asked: Sequence[tuple[Any, Question]], received: Sequence[Part]
    ) -> list[LookupPlan]:
        plans = [
            site.lookup.understand(bags, question, *got)
            for site, (bags, question), got in zip(self.sites, asked, received, strict=True)
        ]
        self._form = Form(plans)
        return plans

    def _looked_up(self, plans: Sequence[LookupPlan]) -> Flat:
        parts = [self.answer(s, p.rows, p.counts) for s, p in zip(self.sites, plans, strict=True)]
        replies = self.exchange(parts, "vectors")
        outputs = [
            self.outputs(site, plan, got)
            for site, plan, (got, _) in zip(self.sites, plans, replies, strict=True)
        ]
        return [self.weight(plans), *[t for out in outputs for t in out]]

    def weight(self, plans: Sequence[LookupPlan]) -> tf.Tensor:
        """Of this rank's batch in the global one."""
        return of_rank(plans[0].batch_sizes, self.communicator.rank)

    def answer(self, site: PipelinedSite, rows: tf.Tensor, counts: tf.Tensor) -> Part:
        """This rank's rows for all ranks, as they travel."""
        vectors, splits = site.lookup.answer(site.blocks, rows, counts)
        return site.lookup.to_wire(vectors), splits

    def outputs(self, site: PipelinedSite, plan: LookupPlan, replies: tf.Tensor) -> Flat:
        """The site's outputs, flat, of replies as they came."""
        return flatten(site.lookup.outputs(plan, tf.cast(replies, tf.float32)))

    def reply_gradients(
        self, site: PipelinedSite, plan: LookupPlan, upstream: Flat, scale: tf.Tensor
    ) -> tf.Tensor:
        """Gradients of the site's replies, for the global batch."""
        gradients = site.lookup.reply_gradients(plan, [tf.cast(g, tf.float32) for g in upstream])
        return site.lookup.scaled(plan, gradients, scale)

    def _gradient_parts(
        self, plans: Sequence[LookupPlan], scale: tf.Tensor, upstream: Sequence[Any]
    ) -> list[Part]:
        return [
            (
                site.lookup.to_wire(self.reply_gradients(site, plan, own, scale)),
                site.lookup.reply_splits(plan.lane_rows),
            )
            for site, plan, own in zip(self.sites, plans, self.by_site(upstream), strict=True)
        ]

    def by_site(self, upstream: Sequence[Any]) -> list[Flat]:
        """Gradients of vectors, site by site."""
        parts, start = [], 0
        for site in self.sites:
            count = len(site.vectors)
            parts.append(list(upstream[start : start + count]))
            start += count
        return parts

    def _apply_whole(
        self, plans: Sequence[LookupPlan], received: Sequence[Part], rate: tf.Tensor, step: tf.Tensor
    ) -> None:
        for site, plan, (got, _) in zip(self.sites, plans, received, strict=True):
            self.apply(site, self.lane_gradients(site, (plan.rows, plan.counts), got), rate, step)

    def lane_gradients(self, site: PipelinedSite, asked: Part, received: tf.Tensor) -> LaneGradients:
        """Gradients as they came of the rows that were asked."""
        return site.lookup.lane_gradients(site.blocks, *asked, tf.cast(received, tf.float32))

    def apply(self, site: PipelinedSite, gradients: LaneGradients, rate: tf.Tensor, step: tf.Tensor) -> None:
        """Update the site's tables."""
        if site.variables and not self.routed.updates(site.variables[0]):
            return  # a frozen layer
        by_table = slices(gradients) if site.variables else []
        self.routed.apply_slices(by_table, site.variables, rate, step, self.communicator, site.layer.plan)


def _messages(asked: Sequence[tuple[Any, Question]]) -> list[Part]:
    return [(question.message, question.splits) for _, question in asked]
