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
from distributed_embeddings.ops.bags import Bags, combiner_scale, pool, sum_bags, unpooled
from distributed_embeddings.ops.ids import describe
from distributed_embeddings.ops.rows import gather_rows
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
from distributed_embeddings.sharding.row_wise import local_rows
from distributed_embeddings.sharding.sharded_lookup import (
    LookupSettings,
    Tables,
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
    given = [bags[i] for i in order]
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
        own = dict(zip(order, valid, strict=True))
        # A weight's gradient would be one rank's whole global batch, another rank's nothing: none is better than half.
        own = {
            i: replace(b, weights=None if b.weights is None else tf.stop_gradient(b.weights))
            for i, b in own.items()
        }
        return _Answer(comm, layout, tables, own, inner_shapes, parts).run(settings)


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
    """One call after its inputs were found valid. parts: int64 [N], samples a rank."""

    comm: Communicator
    layout: Layout
    tables: Tables
    bags: Mapping[int, Bags]
    inner_shapes: Sequence[tuple[int, ...]]
    parts: tf.Tensor

    def run(self, settings: LookupSettings) -> list[Any]:
        weight = batch_weight.record(self.parts, self.comm.rank)
        replies = {
            lane: (self._look_up(lane), self.parts * self._per_sample(lane))
            for lane in self.layout.lanes_of(self.comm.rank)
        }
        mine = self.parts[self.comm.rank]
        vectors = exchange_vectors(
            self.comm,
            self.layout,
            replies,
            {lane: mine * self._per_sample(lane) for lane in self.layout.lanes},
            self.tables.anchor,
            wire_dtype=settings.wire_dtype,
            gradient_scale=weight / self.comm.size,
        )
        by_feature: dict[int, list[Lane]] = {}
        for lane in self.layout.lanes:
            by_feature.setdefault(lane.features[0], []).append(lane)
        return [
            self._assemble(i, by_feature[i], vectors) if i in by_feature else self._replicated(i)
            for i in range(len(self.layout.plan.features))
        ]

    def _table(self, feature: int) -> TableSpec:
        name = self.layout.plan.features[feature].table
        return next(t for t in self.layout.plan.tables if t.name == name)

    def _per_sample(self, lane: Lane) -> int:
        return 1 if lane.pooled else prod(self.inner_shapes[lane.features[0]])

    def _look_up(self, lane: Lane) -> tf.Tensor:
        """Pooled and scaled [B, width], or [ids, width] with zeros for ids whose rows are elsewhere."""
        bags, table = self.bags[lane.features[0]], self.tables.shards[lane.shard]
        ids, own = bags.ids, None
        if len(lane.shard.rows) < self._table(lane.features[0]).vocabulary_size:
            own = tf.where(on_shard(ids, lane.shard))[:, 0]
            ids = local_rows(tf.gather(ids, own), lane.shard)
        vectors = tf.cast(gather_rows(table, ids), tf.float32)
        if own is not None:
            # Scattered, not masked: a foreign id must not touch a row here, not even with a zero gradient.
            shape = tf.stack([tf.size(bags.ids, tf.int64), tf.constant(len(lane.shard.columns), tf.int64)])
            vectors = tf.scatter_nd(own[:, None], vectors, shape)
        combiner = self._table(lane.features[0]).combiner
        if lane.pooled and combiner is not None:
            return sum_bags(vectors, bags) * combiner_scale(bags, combiner)
        return unpooled(vectors, replace(bags, unpooled=lambda v: v))

    def _assemble(self, feature: int, lanes: Sequence[Lane], vectors: Mapping[Lane, tf.Tensor]) -> tf.Tensor:
        slices = [
            vectors[lane]
            for lane in sorted(lanes, key=lambda lane: (lane.shard.columns.start, lane.shard.rows.start))
        ]
        whole_rows = len(lanes[0].shard.rows) == self._table(feature).vocabulary_size
        joined = tf.concat(slices, 1) if whole_rows else tf.add_n(slices)
        if self._table(feature).combiner is not None:
            return joined
        return tf.reshape(joined, [-1, *self.inner_shapes[feature], self._table(feature).embedding_dim])

    def _replicated(self, feature: int) -> Any:
        """A data-parallel table: this rank's part of the global batch, looked up here."""
        bags = self.bags[feature]
        start = tf.reduce_sum(self.parts[: self.comm.rank])
        stop = start + self.parts[self.comm.rank]
        vectors = gather_rows(self.tables.replicas[self._table(feature).name], bags.ids)
        whole = pool(tf.cast(vectors, tf.float32), bags, self._table(feature).combiner)
        return whole[start:stop]


def on_shard(ids: tf.Tensor, shard: Shard) -> tf.Tensor:
    """True where a row of the table lives on the shard: int64 [n] → bool [n]."""
    rows = shard.rows
    inside = tf.logical_and(ids >= rows.start, ids < rows.stop)
    return tf.logical_and(inside, tf.math.floormod(ids - rows.start, rows.step) == 0)
