"""Row statistics of tables cut by columns: a rule that looks at a whole row needs the parts the other ranks hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from distributed_embeddings.comm import Communicator
from distributed_embeddings.planner import Placement, ShardingPlan, ShardingType


@dataclass(frozen=True)
class PartialStatistic:
    """A rank's part of one statistic a touched row. table: its index among the coupled tables. rows: unique, int64 [u].
    values: float32 [u, 1], sums over this rank's columns."""

    table: int
    rows: tf.Tensor
    values: tf.Tensor


def coupled_placements(plans: Sequence[ShardingPlan]) -> list[Placement]:
    """The tables cut by columns, in an order that is the same on all ranks."""
    return [
        p
        for plan in plans
        for p in plan.placements
        if p.sharding is ShardingType.COLUMN_WISE and len(p.shards) > 1
    ]


def complete(
    comm: Communicator, placements: Sequence[Placement], parts: Sequence[PartialStatistic]
) -> list[tf.Tensor]:
    """The sums over all columns, [u, 1] each, for `parts` in order. Collective: one gather for all tables.

    All shards of a table see the same ids, so the same rows; they are compared in the order of the rows.
    """
    orders = [tf.argsort(part.rows) for part in parts]
    mine = {
        part.table: tf.gather(part.values[:, 0], order) for part, order in zip(parts, orders, strict=True)
    }
    zero = tf.zeros([0], tf.float32)
    pieces = [mine.get(t, zero) for t in range(len(placements))]
    counts, _ = comm.all_gather(
        tf.stack([tf.size(p, tf.int64) for p in pieces])[None], phase="row statistics sizes"
    )
    flat, _ = comm.all_gather(tf.concat(pieces, 0), phase="row statistics")
    tables = len(placements)
    split = tf.split(flat, tf.reshape(counts, [-1]), num=comm.size * tables)
    completed = []
    for part, order in zip(parts, orders, strict=True):
        ranks = [shard.rank for shard in placements[part.table].shards]
        total = tf.add_n([split[rank * tables + part.table] for rank in ranks])
        completed.append(tf.gather(total, tf.math.invert_permutation(order))[:, None])
    return completed
