"""The lookup from model-parallel input: a rank gets the GLOBAL batch of just the features whose shards it holds.

No id travels. Owners pool (they see whole bags), cut the result by destination, and send it; the batch is dealt to the
ranks in contiguous parts that differ by one sample at most.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import tensorflow as tf

from distributed_embeddings.comm import Communicator
from distributed_embeddings.ops.bags import Bags, combiner_scale, unpooled
from distributed_embeddings.ops.ids import describe
from distributed_embeddings.planner import (
    Lane,
    Layout,
    Pooling,
    Shard,
    ShardingPlan,
    ShardingType,
    TableSpec,
    make_layout,
)
from distributed_embeddings.sharding import batch_weight
from distributed_embeddings.sharding.agreement import raise_together
from distributed_embeddings.sharding.exchange import exchange_vectors
from distributed_embeddings.sharding.lookup import answer
from distributed_embeddings.sharding.row_wise import local_rows
from distributed_embeddings.sharding.sharded_lookup import (
    LookupSettings,
    Tables,
    add_replicated,
    checked_features,
    valid_bags,
)


def owner_pooled_layout(plan: ShardingPlan) -> Layout:
    """The plan's lanes with every bag pooled where its rows are: the only way when the destination has no ids."""
    placements = tuple(replace(p, pooling=Pooling.OWNER) for p in plan.placements)
    return make_layout(replace(plan, placements=placements))


def local_features(layout: Layout, rank: int) -> tuple[int, ...]:
    """The features a rank must be given: those with a shard there, and those of data-parallel tables."""
    replicated = {p.table for p in layout.plan.placements if p.sharding is ShardingType.DATA_PARALLEL}
    mine = {f for lane in layout.lanes_of(rank) for f in lane.features}
    return tuple(i for i, f in enumerate(layout.plan.features) if i in mine or f.table in replicated)


def part_of_batch(batch_size: tf.Tensor, size: int) -> tf.Tensor:
    """Samples a rank, int64 [size]: rank r has [r·B/size, (r+1)·B/size), as the readers of `data` deal a batch."""
    cuts = tf.range(size + 1, dtype=tf.int64) * batch_size // size
    return cuts[1:] - cuts[:-1]


def model_parallel_lookup(
    comm: Communicator,
    layout: Layout,
    tables: Tables,
    bags: Mapping[int, Bags],
    inner_shapes: Sequence[tuple[int, ...]],
    settings: LookupSettings,
    count_invalid: Callable[[tf.Tensor], None] | None = None,
) -> list[Any]:
    """Outputs of all features for this rank's part of the batch, in feature order.

    layout: from `owner_pooled_layout`. bags: feature index → the global batch, for `local_features(layout, rank)`.
    inner_shapes: static shape of a sample's ids for every feature without combiner; others are not read.
    """
    all_features = checked_features(layout.plan)
    order = sorted(bags)

    def counter(counts: tf.Tensor) -> None:
        if count_invalid is not None:
            count_invalid(tf.scatter_nd(tf.constant(order)[:, None], counts, [len(all_features)]))

    features = [all_features[i] for i in order]
    given = [_without_weights_gradients(bags[i]) for i in order]
    bad, valid = tf.constant(False), []
    if given:
        bad, valid = valid_bags(given, features, settings.invalid_ids, counter)
    batch = given[0].batch_size if given else tf.constant(-1, tf.int64)
    statuses, batch_size = _announce(comm, bad, batch)
    checked = raise_together(
        comm,
        tf.reduce_any(statuses != 0),
        lambda: describe(given, features, comm.rank) if given else tf.constant(""),
    )
    with tf.control_dependencies([checked]):
        parts = part_of_batch(tf.identity(batch_size), comm.size)
        by_feature = dict(zip(order, valid, strict=True))
        call = _Answer(comm, layout, tables, by_feature, dict(zip(order, given, strict=True)), parts)
        return call.run(inner_shapes, settings)


def _without_weights_gradients(bags: Bags) -> Bags:
    """A weight's gradient would be one rank's whole global batch, another rank's nothing: none is better than half."""
    return replace(bags, weights=None if bags.weights is None else tf.stop_gradient(bags.weights))


def _announce(comm: Communicator, bad: tf.Tensor, batch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Every rank's status, and the batch size that all ranks with inputs agree on (a rank without inputs says -1)."""
    head = tf.stack([tf.cast(bad, tf.int64), batch])[None]
    heads, _ = comm.all_gather(head, phase="lengths")
    size = tf.reduce_max(heads[:, 1])
    claimed = tf.where(heads[:, 1] < 0, size, heads[:, 1])
    text = "with dp_input=False every rank must be given the same global batch. Batch sizes by rank:"
    check = tf.debugging.Assert(tf.reduce_all(claimed == size), [text, heads[:, 1]], summarize=1024)
    with tf.control_dependencies([check] if check is not None else []):
        return heads[:, 0], tf.maximum(size, 0)


@dataclass(frozen=True)
class _Answer:
    """One call after its inputs were checked. bags: with valid ids alone; given: as they came; both by feature index.
    parts: int64 [N], samples a rank."""

    comm: Communicator
    layout: Layout
    tables: Tables
    bags: Mapping[int, Bags]
    given: Mapping[int, Bags]
    parts: tf.Tensor

    def run(self, inner_shapes: Sequence[tuple[int, ...]], settings: LookupSettings) -> list[Any]:
        plan, rank = self.layout.plan, self.comm.rank
        weight = batch_weight.record(self.parts, rank)
        per_sample = {
            lane: 1 if lane.pooled else prod(inner_shapes[lane.features[0]]) for lane in self.layout.lanes
        }
        answers = self._answers(self.layout.lanes_of(rank))
        vectors = exchange_vectors(
            self.comm,
            self.layout,
            {lane: (v, self.parts * per_sample[lane]) for lane, v in answers.items()},
            {lane: self.parts[rank] * count for lane, count in per_sample.items()},
            self.tables.anchor,
            wire_dtype=settings.wire_dtype,
            gradient_scale=weight / self.comm.size,
        )
        outputs: dict[int, Any] = {}
        for i in range(len(plan.features)):
            if lanes := self.layout.sources(i):
                outputs[i] = self._joined(lanes, vectors, inner_shapes[i])
        exchanged = set(outputs)
        add_replicated(plan, self.tables, self.given, settings.invalid_ids, outputs)
        start = tf.reduce_sum(self.parts[:rank])
        mine = slice(start, start + self.parts[rank])
        return [v if i in exchanged else v[mine] for i, v in sorted(outputs.items())]

    def _table(self, lane: Lane) -> TableSpec:
        return next(t for t in self.layout.plan.tables if t.name == lane.shard.table)

    def _cut_by_rows(self, lane: Lane) -> bool:
        return len(lane.shard.rows) < self._table(lane).vocabulary_size

    def _answers(self, lanes: Sequence[Lane]) -> dict[Lane, tf.Tensor]:
        """Pooled and scaled [B, width], or [ids, width] with zeros for ids whose rows are elsewhere."""
        asked = {}
        for lane in lanes:
            own = self.bags[lane.features[0]]
            if self._cut_by_rows(lane):
                # Dropped: a foreign id must not touch a row here, not even with a zero gradient.
                kept = own.keep(on_shard(own.ids, lane.shard))
                own = replace(kept, ids=local_rows(kept.ids, lane.shard))
            asked[lane] = own
        vectors = answer(self.tables.shards, asked)
        answers = {}
        for lane, found in vectors.items():
            combiner = self._table(lane).combiner
            if lane.pooled and combiner is not None:
                answers[lane] = found * combiner_scale(self.bags[lane.features[0]], combiner)
            else:
                answers[lane] = unpooled(found, replace(asked[lane], unpooled=tf.identity))
        return answers

    def _joined(
        self, lanes: Sequence[Lane], vectors: Mapping[Lane, tf.Tensor], inner_shape: tuple[int, ...]
    ) -> tf.Tensor:
        slices, table = [vectors[lane] for lane in lanes], self._table(lanes[0])
        joined = tf.add_n(slices) if self._cut_by_rows(lanes[0]) else tf.concat(slices, 1)
        return joined if lanes[0].pooled else tf.reshape(joined, [-1, *inner_shape, table.embedding_dim])


def on_shard(ids: tf.Tensor, shard: Shard) -> tf.Tensor:
    """True where a row of the table lives on the shard: int64 [n] → bool [n]."""
    rows = shard.rows
    inside = tf.logical_and(ids >= rows.start, ids < rows.stop)
    return tf.logical_and(inside, tf.math.floormod(ids - rows.start, rows.step) == 0)
