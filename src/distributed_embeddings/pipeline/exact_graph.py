"""The embedding graph's stages of exact mode: of rows that two batches in a row share, and of all others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from distributed_embeddings.ops import conflict
from distributed_embeddings.ops.lanes import LaneGradients
from distributed_embeddings.pipeline.embedding_graph import UPDATE, EmbeddingGraph, Flat, Part
from distributed_embeddings.pipeline.flat_function import FlatFunction
from distributed_embeddings.pipeline.sites import PipelinedSite
from distributed_embeddings.pipeline.tensors import Form, flatten, specs_of
from distributed_embeddings.sharding import partial
from distributed_embeddings.sharding.partial import Conflicts

_STAMP = tf.TensorSpec([], tf.int64)
_WIRE = 3  # of a plan at each site: lane_rows, rows, counts


class ExactGraph(EmbeddingGraph):
    """`plan`, `look_up` and `update` of whole batches as in `EmbeddingGraph`, and of parts. b: any batch.

    A plan's wire is what its rows' owners and askers need of it: `wire`. Conflicts (forward: of b with b - 1;
    backward: with b + 1) are known to owners when b is announced, and to those who asked (masks) when b's free rows
    are looked up.

    announce(stamp, *wire b, *wire b-1) → forward b, backward b-1.
    look_up_free(*wire b, *forward b, *wire b-1, *backward b-1) → free vectors b, masks b, masks b-1.
    turn(*plan b, *backward b, *masks b, rate, step, scale, *gradients, *plan b+1, *forward b+1, *masks b+1, *free
    vectors b+1): update what b and b + 1 share, look it up → gradients of all replies of b, weight b+1, outputs b+1.
    update_free(*wire b, *backward b, *masks b, *gradients of replies, rate, step).
    ahead: update_free b-1, look_up_free b+1, and plan and announce of b+2 in one.
    turn_whole(*plan b, rate, step, scale, *gradients, *plan b+1): update b, look b+1 up → weight b+1, outputs b+1.
    """

    def __init__(self, *arguments: Any, may_skip: bool = False) -> None:
        """may_skip: whether a step's gradients may turn out not to count, as with loss scaling."""
        super().__init__(*arguments)
        self._stamps = [partial.make_stamps(site.blocks) for site in self.sites]
        self._stamp = 0
        count = len(self.sites)
        outputs = list(self.plan.outputs)
        position = {id(t): i for i, t in enumerate(outputs)}
        self._wire_at = [
            position[id(t)] for p in self.plans(outputs) for t in (p.lane_rows, p.rows, p.counts)
        ]
        wire = specs_of(self.wire(outputs))
        self._announce_traced = FlatFunction(self._announce, [_STAMP, *wire, *wire])
        half = specs_of(self._announce_traced.outputs)[: self._conflicts.size]
        masks = [tf.TensorSpec([None], tf.bool)] * count
        floats = [tf.TensorSpec([None], tf.float32)] * count
        self.look_up_free = FlatFunction(self._look_up_free, [*wire, *half, *wire, *half])
        plan = self.plan_specs
        turn = [*plan, *half, *masks, *UPDATE, *self.upstream_specs, *plan, *half, *masks, *floats]
        self.turn = FlatFunction(lambda *flat: self._turn(True, *flat), turn)
        self.turn_without_update = (
            FlatFunction(lambda *flat: self._turn(False, *flat), turn) if may_skip else None
        )
        self.turn_whole = FlatFunction(self._turn_whole, [*plan, *UPDATE, *self.upstream_specs, *plan])
        update = [*wire, *half, *masks, *floats, *UPDATE[:2]]
        self.update_free = FlatFunction(self._update_free, update)
        ahead = [*self.sample_specs, _STAMP, *update, *wire, *half, *wire, *half]
        self._ahead_traced = FlatFunction(self._ahead, ahead)

    def begin(self) -> None:
        """A new stream: its first batch conflicts with none."""
        self._stamp += 1

    def announce(self, plan: Flat, previous: Flat | None) -> tuple[Flat, Flat]:
        """Stamp a batch; previous: None at the begin of a stream. Returns forward and backward."""
        own = self.wire(plan)
        before = _no_rows(own) if previous is None else self.wire(previous)
        flat = self._announce_traced(self._next_stamp(), *own, *before)
        return flat[: self._conflicts.size], flat[self._conflicts.size :]

    def ahead(self, sample: Sequence[Any], update: Sequence[Any], following: Sequence[Any]) -> list[Flat]:
        """See the class. update, following: what `update_free` and `look_up_free` take. Returns the new batch's plan;
        free vectors, masks of b + 1 and masks of b, as one list; forward of the new batch; backward of b + 1."""
        flat = self._ahead_traced(*sample, self._next_stamp(), *update, *following)
        sizes = [self.plan_size, 3 * len(self.sites), self._conflicts.size, self._conflicts.size]
        parts, start = [], 0
        for size in sizes:
            parts.append(flat[start : start + size])
            start += size
        return parts

    def conflict_share(self, conflicts: Flat) -> tuple[int, int]:
        """Conflicting rows and all rows asked of this rank."""
        parts = self._conflicts.pack(conflicts)
        return sum(int(c.rows.shape[0]) for c in parts), sum(int(c.mask.shape[0]) for c in parts)

    def wire(self, plan: Sequence[Any]) -> Flat:
        """The wire of a plan."""
        return [plan[i] for i in self._wire_at]

    def _next_stamp(self) -> tf.Tensor:
        self._stamp += 1
        return tf.constant(self._stamp, tf.int64)

    def _announce(self, stamp: tf.Tensor, *wires: Any) -> Flat:
        now, before = _wires(wires[: len(wires) // 2]), _wires(wires[len(wires) // 2 :])
        forward, backward = [], []
        for stamps, (_, rows, counts), (_, *previous) in zip(self._stamps, now, before, strict=True):
            ahead, behind = partial.announce(stamps, rows, counts, stamp, (previous[0], previous[1]))
            forward.append(ahead)
            backward.append(behind)
        self._conflicts = Form(forward)
        return [*flatten(forward), *flatten(backward)]

    def _look_up_free(self, *flat: Any) -> Flat:
        half = len(flat) // 2
        now, forward = self._wire_and_conflicts(flat[:half])
        before, backward = self._wire_and_conflicts(flat[half:])
        parts: list[Part] = []
        for k, site in enumerate(self.sites):
            parts.append(self.answer(site, *forward[k].part(False)))
            parts.append(partial.tell(now[k][2], forward[k].mask, before[k][2], backward[k].mask))
        got = self.exchange(parts, "vectors and conflicts")
        merged, masks, masks_before = [], [], []
        for k, site in enumerate(self.sites):
            (vectors, _), (told, _) = got[2 * k : 2 * k + 2]
            mask, mask_before = partial.understand(site.lookup, told, now[k][0], before[k][0])
            vectors = tf.cast(vectors, tf.float32)
            merged.append(partial.merge_replies(site.lookup, now[k][0], mask, vectors, False))
            masks.append(mask)
            masks_before.append(mask_before)
        return [*merged, *masks, *masks_before]

    def _turn(self, counts: bool, *flat: Any) -> Flat:
        """counts: whether the gradients do."""
        sites = len(self.sites)
        old, backward, masks, rest = self._batch(flat)
        (rate, step, scale), rest = rest[:3], rest[3:]
        upstream, rest = self.by_site(rest[: len(self.upstream_specs)]), rest[len(self.upstream_specs) :]
        new, forward, new_masks, merged = self._batch(rest)
        gradients = [
            self.reply_gradients(site, old[k], upstream[k], scale) for k, site in enumerate(self.sites)
        ]
        parts = [
            self._part_of_gradients(site, old[k].lane_rows, masks[k], gradients[k], True)
            for k, site in enumerate(self.sites)
        ]
        got = self.exchange(parts, "gradients of conflicting rows") if counts else [None] * sites
        answers = []
        for k, site in enumerate(self.sites):
            asked = forward[k].part(True)
            if got[k] is None:
                answers.append(self.answer(site, *asked))
            else:
                lanes = self.lane_gradients(site, backward[k].part(True), got[k][0])
                answers.append(self._update_and_look_up(site, lanes, rate, step, *asked))
        replies = self.exchange(answers, "conflicting vectors")
        outputs: Flat = []
        for k, site in enumerate(self.sites):
            vectors = tf.cast(replies[k][0], tf.float32)
            whole = partial.merge_replies(
                site.lookup, new[k].lane_rows, new_masks[k], vectors, True, merged[k]
            )
            outputs += self.outputs(site, new[k], whole)
        return [*gradients, self.weight(new), *outputs]

    def _turn_whole(self, *flat: Any) -> Flat:
        split = len(flat) - self.plan_size
        self._update(*flat[:split])
        return self._look_up(*flat[split:])

    def _update_free(self, *flat: Any) -> Flat:
        parts, arguments = self._free_gradients(flat)
        self._apply_free(arguments, self.exchange(parts, "gradients of free rows"))
        return []

    def _ahead(self, *flat: Any) -> Flat:
        sample, flat = flat[: len(self.sample_specs)], flat[len(self.sample_specs) :]
        stamp, flat = flat[0], flat[1:]
        follow = 2 * (_WIRE * len(self.sites) + self._conflicts.size)
        update, following = flat[:-follow], flat[-follow:]
        asked = self._ask(sample)
        parts, arguments = self._free_gradients(update)
        messages = [(q.message, q.splits) for _, q in asked]
        got = self.exchange([*messages, *parts], "ids and gradients of free rows")
        self._apply_free(arguments, got[len(messages) :])
        looked_up = self._look_up_free(*following)
        plan = flatten(self._understand(asked, got[: len(messages)]))
        before = following[: _WIRE * len(self.sites)]  # of the batch whose free rows these are
        return [*plan, *looked_up, *self._announce(stamp, *self.wire(plan), *before)]

    def _free_gradients(self, flat: Sequence[Any]) -> tuple[list[Part], list[Any]]:
        """The parts to send, and what `_apply_free` needs."""
        sites = len(self.sites)
        wires, backward = self._wire_and_conflicts(flat)
        rest = flat[_WIRE * sites + self._conflicts.size :]
        masks, gradients, (rate, step) = rest[:sites], rest[sites : 2 * sites], rest[2 * sites :]
        parts = [
            self._part_of_gradients(site, wires[k][0], masks[k], gradients[k], False)
            for k, site in enumerate(self.sites)
        ]
        return parts, [backward, rate, step]

    def _apply_free(self, arguments: list[Any], received: Sequence[Part]) -> None:
        backward, rate, step = arguments
        for site, conflicts, (got, _) in zip(self.sites, backward, received, strict=True):
            self.apply(site, self.lane_gradients(site, conflicts.part(False), got), rate, step)

    def _part_of_gradients(
        self, site: PipelinedSite, lane_rows: tf.Tensor, mask: tf.Tensor, gradients: tf.Tensor, which: bool
    ) -> Part:
        part, splits = partial.part_of_gradients(site.lookup, lane_rows, mask, gradients, which)
        return site.lookup.to_wire(part), splits

    def _update_and_look_up(
        self,
        site: PipelinedSite,
        gradients: LaneGradients,
        rate: tf.Tensor,
        step: tf.Tensor,
        rows: tf.Tensor,
        counts: tf.Tensor,
    ) -> Part:
        """One kernel where there is one: the same rows are updated and read."""
        rule = self.routed.rule
        fused = site.variables and self.routed.updates(site.variables[0])
        fused = fused and not self.routed.couples(site.layer.plan)
        if fused and conflict.can_fuse(site.blocks, rule.kernel()):
            targets = [self.routed.target(v) for v in site.variables]
            vectors, splits = conflict.update_and_look_up(
                gradients, targets, rule.kernel(), rule.rates(rate, step), step, rows, counts
            )
            return site.lookup.to_wire(vectors), splits
        self.apply(site, gradients, rate, step)
        return self.answer(site, rows, counts)

    def _batch(self, flat: Sequence[Any]) -> tuple[Any, list[Conflicts], Sequence[Any], Sequence[Any]]:
        """Plans, conflicts and masks that `flat` begins with, and the rest of it."""
        size, half, sites = self.plan_size, self._conflicts.size, len(self.sites)
        conflicts = self._conflicts.pack(flat[size : size + half])
        end = size + half + sites
        return self.plans(flat), conflicts, flat[size + half : end], flat[end:]

    def _wire_and_conflicts(self, flat: Sequence[Any]) -> tuple[list[Any], list[Conflicts]]:
        wire = _WIRE * len(self.sites)
        return _wires(flat[:wire]), self._conflicts.pack(flat[wire : wire + self._conflicts.size])


def _wires(flat: Sequence[Any]) -> list[Any]:
    """(lane_rows, rows, counts) of every site."""
    return [tuple(flat[i : i + _WIRE]) for i in range(0, len(flat), _WIRE)]


def _no_rows(wire: Flat) -> Flat:
    """The wire of a batch without rows."""
    return [t[:0] if k % _WIRE == 1 else tf.zeros_like(t) for k, t in enumerate(wire)]
