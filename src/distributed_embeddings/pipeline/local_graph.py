"""The embedding graph of one worker alone: nothing travels, so rows are neither made unique nor asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from distributed_embeddings.ops.bags import Bags
from distributed_embeddings.ops.ids import describe
from distributed_embeddings.ops.lookup import gradients_of, look_up
from distributed_embeddings.pipeline.embedding_graph import EmbeddingGraph, Flat
from distributed_embeddings.pipeline.sites import PipelinedSite
from distributed_embeddings.pipeline.tensors import Form, flatten
from distributed_embeddings.sharding.agreement import raise_together
from distributed_embeddings.sharding.local import local_features
from distributed_embeddings.sharding.sharded_lookup import checked_features, valid_bags
from distributed_embeddings.sharding.staged import in_form, weights_in_form


class LocalPlan(NamedTuple):
    """What one batch looks up. ids, weights: of every routed feature, in the form in which they were given; weights
    None where it has none. The rest as in `LookupPlan`."""

    ids: list[Any]
    weights: list[Any]
    batch_sizes: tf.Tensor
    more: tf.Tensor
    agreed: tf.Tensor


class LocalGraph(EmbeddingGraph):
    """Lookup and update are those of a step without pipeline. For any staleness but the exact one, which is 0 here."""

    def __init__(self, *arguments: Any, scaled: bool = False) -> None:
        """scaled: whether gradients are those of a loss that was multiplied."""
        self._scaled = scaled
        super().__init__(*arguments)

    def _plan(self, *sample: Any) -> Flat:
        more, vote, *part = sample
        plans = []
        for site, (ids, weights) in zip(self.sites, self._extraction(part), strict=True):
            bags = site.layer.bags(ids, weights)
            self._check_all(site, bags)
            routed = [bags[i] for i in site.lookup.routed]
            plans.append(
                LocalPlan(
                    ids=[in_form(b, b.given) for b in routed],
                    weights=[weights_in_form(b) for b in routed],
                    batch_sizes=tf.reshape(routed[0].batch_size, [1]),
                    more=tf.identity(more),
                    agreed=tf.identity(vote),
                )
            )
        self._form = Form(plans)
        return flatten(plans)

    def _check_all(self, site: PipelinedSite, bags: Sequence[Bags]) -> None:
        """The main graph, which looks data-parallel tables up, counts on this graph to check their ids."""
        if _looks_all_up(site):
            return  # and sees them all
        layer, features = site.layer, checked_features(site.layer.plan)
        count = None if layer.invalid_ids == "raise" else layer.count_invalid
        wrong, _ = valid_bags(bags, features, layer.invalid_ids, count)
        raise_together(self.communicator, wrong, lambda: describe(bags, features, 0))

    def _look_up(self, *flat: Any) -> Flat:
        plans = self.plans(flat)
        outputs: Flat = []
        for site, plan in zip(self.sites, plans, strict=True):
            _, arguments = _lookup_of(site, plan)
            found, invalid = look_up(*arguments)
            if site.layer.invalid_ids != "raise" and _looks_all_up(site):
                site.layer.count_invalid(invalid)
            outputs += flatten(found)
        return [self.weight(plans), *outputs]

    def _update(self, *flat: Any) -> Flat:
        plans, (rate, step, scale, *upstream) = self.plans(flat), flat[self._form.size :]
        for site, plan, own in zip(self.sites, plans, self.by_site(upstream), strict=True):
            variables, arguments = _lookup_of(site, plan)
            if not self.routed.updates(variables[0]):
                continue  # a frozen layer
            grads = [tf.cast(g, tf.float32) for g in own]
            if self._scaled:
                grads = [g / scale for g in grads]
            gradients = gradients_of(*arguments, grads)
            self.routed.apply_slices(gradients, variables, rate, step, self.communicator, site.layer.plan)
        return []

    def _advance(self, *flat: Any) -> Flat:
        split = len(self.sample_specs)
        plan = self._plan(*flat[:split])
        self._update(*flat[split:])
        return [*plan, *self._look_up(*plan)]


def _looks_all_up(site: PipelinedSite) -> bool:
    return len(site.lookup.routed) == len(site.layer.plan.features)


def _lookup_of(site: PipelinedSite, plan: LocalPlan) -> tuple[list[Any], tuple[Any, ...]]:
    """The tables' variables, and what `look_up` takes."""
    bags = site.lookup.bags(plan.ids, plan.weights)
    used, tables, features = local_features(site.layer.plan, bags)
    by_table = {v.shard.table: v for v in site.layer.tables.variables}
    variables = [by_table[t.name] for t in used]
    return variables, ([v.block for v in variables], tables, features, site.layer.invalid_ids)
