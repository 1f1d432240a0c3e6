"""The owner's side of the lanes: rows out of the shards, summed by bag where the owner pools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from distributed_embeddings.ops.bags import Bags
from distributed_embeddings.ops.block import Block
from distributed_embeddings.ops.features import Feature, GroupedTable
from distributed_embeddings.ops.lanes import look_up_lanes
from distributed_embeddings.ops.lookup import look_up
from distributed_embeddings.planner import Lane, Shard


def answer(shards: Mapping[Shard, Block], asked: Mapping[Lane, Bags]) -> dict[Lane, tf.Tensor]:
    """Vectors of lanes, float32: sums of bags [bags, width] where the owner pools, else [ids, width].

    asked: rows of the lanes' shards; all pooled lanes have as many bags. Two ops, however many lanes there are.
    """
    pooled = [lane for lane in asked if lane.pooled]
    single = [lane for lane in asked if not lane.pooled]
    return {**_sums(shards, pooled, asked), **_rows(shards, single, asked)}


def _sums(
    shards: Mapping[Shard, Block], lanes: Sequence[Lane], asked: Mapping[Lane, Bags]
) -> dict[Lane, tf.Tensor]:
    if not lanes:
        return {}
    used, tables = _tables(lanes)
    blocks = [shards[shard] for shard in used]
    grouped = [GroupedTable(s.table, b.num_rows, b.width) for s, b in zip(used, blocks, strict=True)]
    features = [
        Feature(f"of lane {lane.slot}", table, "sum", asked[lane].regiven())
        for lane, table in zip(lanes, tables, strict=True)
    ]
    sums, _ = look_up(blocks, grouped, features)
    return dict(zip(lanes, sums, strict=True))


def _rows(
    shards: Mapping[Shard, Block], lanes: Sequence[Lane], asked: Mapping[Lane, Bags]
) -> dict[Lane, tf.Tensor]:
    if not lanes:
        return {}
    used, tables = _tables(lanes)
    rows = tf.concat([asked[lane].ids for lane in lanes], 0)
    counts = tf.stack([tf.size(asked[lane].ids, tf.int64) for lane in lanes])
    vectors, _ = look_up_lanes([shards[shard] for shard in used], tables, rows, counts[None])
    widths = [len(lane.shard.columns) for lane in lanes]
    parts = tf.split(vectors, counts * tf.constant(widths, tf.int64), num=len(lanes))
    return {
        lane: tf.reshape(part, [-1, width]) for lane, part, width in zip(lanes, parts, widths, strict=True)
    }


def _tables(lanes: Sequence[Lane]) -> tuple[list[Shard], list[int]]:
    """The shards that lanes read, each once, and which of them each lane reads."""
    used = list(dict.fromkeys(lane.shard for lane in lanes))
    return used, [used.index(lane.shard) for lane in lanes]
