"""Plain-TensorFlow twins of the kernels: what they are tested against, and what runs on GPUs and without a compiler.

The twin of a row rule is its `RowOptimizer.update`; of the dot interaction, `ops.interaction`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from distributed_embeddings.ops.bags import Bags, pool
from distributed_embeddings.ops.block import Block
from distributed_embeddings.ops.features import Feature, GroupedTable
from distributed_embeddings.ops.ids import (
    CheckedFeature,
    check_and_clip,
    describe,
    invalid_mask,
    zero_or_clip,
)
from distributed_embeddings.ops.take import take


def look_up(
    blocks: Sequence[Block], tables: Sequence[GroupedTable], features: Sequence[Feature], invalid_ids: str
) -> tuple[list[Any], tf.Tensor]:
    """Twin of DembLookup: see `ops.lookup.look_up`."""
    named = [CheckedFeature(f.name, tables[f.table].name, tables[f.table].vocabulary_size) for f in features]
    bags = [f.bags for f in features]
    checks = []
    if invalid_ids == "raise":
        bad, valid = check_and_clip(bags, named)
        counts = tf.zeros([len(features)], tf.int64)
        text = tf.cond(bad, lambda: describe(bags, named, 0), lambda: tf.constant(""))
        assertion = tf.debugging.Assert(tf.logical_not(bad), [text], summarize=1)
        checks = [] if assertion is None else [assertion]
    else:
        valid, counts = zero_or_clip(bags, named, invalid_ids)
    with tf.control_dependencies(checks):
        valid = [replace(b, ids=tf.identity(b.ids)) for b in valid]
        outputs: dict[int, Any] = {}
        for t, block in enumerate(blocks):
            outputs.update(
                _look_up_table(block, {i: f for i, f in enumerate(features) if f.table == t}, valid)
            )
    return [outputs[i] for i in range(len(features))], counts


def _look_up_table(block: Block, features: dict[int, Feature], bags: Sequence[Bags]) -> dict[int, Any]:
    """Each row is gathered once, so that the table's gradient has unique rows, as the kernel's has."""
    if not features:
        return {}
    ids = [bags[i].ids for i in features]
    rows, where = tf.unique(tf.concat(ids, 0), out_idx=tf.int64)
    vectors = tf.cast(block.gather(rows), tf.float32)
    parts = tf.split(where, tf.stack([tf.size(i, tf.int64) for i in ids]), num=len(ids))
    return {
        i: pool(take(vectors, part), bags[i], feature.combiner)
        for (i, feature), part in zip(features.items(), parts, strict=True)
    }


def sum_slices(rows: tf.Tensor, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Twin of DembSumSlices: unique rows int64 [u], in the order in which they are first seen (the kernel's rise), and
    their sums, of rows int64 [n] and values float32 [n, …]."""
    # Measured on CPU for 4k to 100k ids x 16 to 128 columns: unique + unsorted sum is as fast as or faster
    # than sort + gather + sorted sum. int64 positions cost nothing beside int32 ones.
    unique, position = tf.unique(rows, out_idx=tf.int64)
    return unique, tf.math.unsorted_segment_sum(values, position, tf.size(unique, out_type=tf.int64))


def look_up_lanes(
    blocks: Sequence[Block], lane_tables: Sequence[int], rows: tf.Tensor, counts: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Twin of DembLookupLanes: see `ops.lanes.look_up_lanes`."""
    sources, lanes = counts.shape
    pieces = tf.split(rows, tf.reshape(counts, [-1]), num=sources * lanes)
    vectors, splits = [], []
    for source in range(sources):
        own = []
        for lane, table in enumerate(lane_tables):
            found = blocks[table].gather(pieces[source * lanes + lane])
            own.append(tf.reshape(tf.cast(found, tf.float32), [-1]))
        vectors += own
        splits.append(tf.add_n([tf.size(v, tf.int64) for v in own]))
    return tf.concat(vectors, 0), tf.stack(splits)


def sum_lanes(
    rows: tf.Tensor, counts: tf.Tensor, grads: tf.Tensor, lane_tables: Sequence[int], dims: Sequence[int]
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Twin of DembSumLanes: unique rows and their sums by table, of gradients in the order of the wire."""
    sources, lanes = counts.shape
    num = sources * lanes
    widths = tf.constant([dims[t] for t in lane_tables] * sources, tf.int64)
    sizes = tf.reshape(counts, [-1])
    row_parts, grad_parts = tf.split(rows, sizes, num=num), tf.split(grads, sizes * widths, num=num)
    found = []
    for table, dim in enumerate(dims):
        mine = [s * lanes + k for s in range(sources) for k, t in enumerate(lane_tables) if t == table]
        own = tf.concat([tf.reshape(grad_parts[i], [-1, dim]) for i in mine], 0)
        found.append(sum_slices(tf.concat([row_parts[i] for i in mine], 0), own))
    return [r for r, _ in found], [s for _, s in found]


def route(tables: Sequence[Any], features: Sequence[Feature], invalid_ids: str) -> Any:
    """Twin of DembRoute: see `ops.routing.route`."""
    named = [CheckedFeature(f.name, str(f.table), tables[f.table].num_rows) for f in features]
    masks = [invalid_mask(f.bags.ids, n.vocabulary_size) for f, n in zip(features, named, strict=True)]
    invalid = tf.stack([tf.math.count_nonzero(m) for m in masks])
    sizes = tf.stack([f.bags.batch_size for f in features])
    wrong = tf.reduce_any(sizes != sizes[0])
    if invalid_ids == "raise":
        wrong = tf.logical_or(wrong, tf.reduce_any(invalid > 0))
    rows: list[list[tf.Tensor]] = []
    inverse: list[tf.Tensor] = [tf.zeros([0], tf.int64)] * len(features)
    for t, table in enumerate(tables):
        members = [i for i, f in enumerate(features) if f.table == t]
        rows.append([])
        if table.num_shards and members:
            ids = [tf.clip_by_value(features[i].bags.ids, 0, table.num_rows - 1) for i in members]
            kept = [tf.ones_like(masks[i]) if invalid_ids == "clip" else ~masks[i] for i in members]
            rows[t], where = _route_table(table, tf.concat(ids, 0), tf.concat(kept, 0))
            parts = tf.split(where, tf.stack([tf.size(i, tf.int64) for i in ids]), num=len(ids))
            for i, part in zip(members, parts, strict=True):
                inverse[i] = tf.reshape(part, tf.shape(features[i].bags.given))
    return rows, inverse, invalid, wrong


def _route_table(table: Any, ids: tf.Tensor, kept: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Each shard's rows, and where each id's row is among all of them; -1 where it is not kept."""
    shards = table.num_shards
    if table.cyclic:
        room = -(-table.num_rows // shards)
        keys = ids % shards * room + ids // shards
        ends = [(s + 1) * room for s in range(shards)]
    else:
        keys, ends = ids, list(table.shard_ends)
    unique, _ = tf.unique(tf.sort(tf.boolean_mask(keys, kept)))
    cuts = tf.searchsorted(unique, tf.constant(ends, tf.int64), out_type=tf.int64)
    starts = [0, *ends[:-1]]
    parts = tf.split(unique, cuts - tf.concat([[0], cuts[:-1]], 0), num=shards)
    where = tf.where(kept, tf.searchsorted(unique, keys, out_type=tf.int64), tf.constant(-1, tf.int64))
    return [part - start for part, start in zip(parts, starts, strict=True)], where


def assemble(
    replies: tf.Tensor,
    lane_rows: tf.Tensor,
    lanes: Sequence[Any],
    dims: Sequence[int],
    features: Sequence[Feature],
) -> list[Any]:
    """Twin of DembAssemble: see `ops.routing.assemble`; the features' `given` ids are positions."""
    widths = tf.constant([len(lane.columns) for lane in lanes], tf.int64)
    flat = tf.split(replies, lane_rows * widths, num=len(lanes))
    tables = []
    for t in range(len(dims)):
        own = sorted((k for k, lane in enumerate(lanes) if lane.table == t), key=lambda k: lanes[k].shard)
        parts = [tf.reshape(flat[k], [-1, len(lanes[k].columns)]) for k in own]
        by_rows = bool(own) and len(lanes[own[0]].columns) == dims[t]
        tables.append(tf.concat(parts, 0 if by_rows else 1) if parts else tf.zeros([0, dims[t]]))
    outputs = []
    for feature in features:
        positions = tf.reshape(feature.bags.given, [-1])
        bags = replace(feature.bags, ids=positions)
        bags = bags.keep(positions >= 0)
        outputs.append(pool(take(tables[feature.table], bags.ids), bags, feature.combiner))
    return outputs
