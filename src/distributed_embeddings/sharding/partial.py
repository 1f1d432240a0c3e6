"""Rows of a batch that a neighbouring batch has too, and lookups and gradients of the one part without the other.

A row that batches b and b + 1 share conflicts: what b + 1 reads of it must have b's update. All other rows of b + 1 can
be looked up, and all others of b updated, beside the work on b itself. Owners find out by a stamp a row, the last batch
that announced it, and tell the ranks that asked by a bit a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from distributed_embeddings.ops import conflict
from distributed_embeddings.ops.block import Block
from distributed_embeddings.ops.lanes import LaneGradients
from distributed_embeddings.sharding.staged import LookupPlan, StagedLookup


class Conflicts(NamedTuple):
    """Which rows of a batch conflict with one neighbour.

    asked: bool, of the rows this rank asked for, by lane. free_rows, free_counts, rows, counts: the rows asked of this
    rank in two parts, the conflicting second; int64 by (source, lane), as in `LookupPlan`.
    """

    asked: tf.Tensor
    free_rows: tf.Tensor
    free_counts: tf.Tensor
    rows: tf.Tensor
    counts: tf.Tensor

    def part(self, conflicting: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """Rows and counts of one part."""
        return (self.rows, self.counts) if conflicting else (self.free_rows, self.free_counts)


def make_stamps(blocks: Sequence[Block]) -> list[tf.Variable]:
    """A stamp a row, int32 [rows], for every block: 4 bytes a row."""
    return [
        tf.Variable(tf.fill([b.num_rows], NEVER), trainable=False, name=f"stamps_{i}", dtype=tf.int32)
        for i, b in enumerate(blocks)
    ]


NEVER = -2
"""The stamp of a row that no batch has announced: batch 0 looks for -1."""


def announce(
    lookup: StagedLookup,
    stamps: Sequence[tf.Variable],
    plan: LookupPlan,
    stamp: tf.Tensor,
    previous: LookupPlan,
) -> tuple[Conflicts, Conflicts]:
    """Stamp a batch's rows. Returns its conflicts with the batch before, and that one's with this.

    stamp: int64 scalar, one more than that of `previous`. Collective: one exchange of bits.
    """
    forward, backward = conflict.announce(
        stamps, plan.rows, plan.counts, stamp, previous.rows, previous.counts
    )
    told, splits = conflict.pack_masks(
        forward, tf.reduce_sum(plan.counts, 1), backward, tf.reduce_sum(previous.counts, 1)
    )
    received, _ = lookup.comm.all_to_all(told, splits, phase="conflicts")
    asked, asked_before = conflict.unpack_masks(
        received, _by_rank(lookup, plan.lane_rows), _by_rank(lookup, previous.lane_rows)
    )
    return _conflicts(plan, forward, asked), _conflicts(previous, backward, asked_before)


def _conflicts(plan: LookupPlan, mask: tf.Tensor, asked: tf.Tensor) -> Conflicts:
    parts = conflict.split_lanes(plan.rows, plan.counts, mask)
    return Conflicts(
        asked, parts.free_rows, parts.free_counts, parts.conflicting_rows, parts.conflicting_counts
    )


def _by_rank(lookup: StagedLookup, lane_rows: tf.Tensor) -> tf.Tensor:
    """Rows asked of every rank, int64 [N]."""
    ranks = tf.constant(lookup.lane_ranks, tf.int32)
    return tf.math.unsorted_segment_sum(lane_rows, ranks, lookup.comm.size)


def merge_replies(
    lookup: StagedLookup,
    plan: LookupPlan,
    conflicts: Conflicts,
    part: tf.Tensor,
    conflicting: bool,
    into: tf.Tensor | None = None,
) -> tf.Tensor:
    """Put a part's vectors where they belong among the replies, flat float32 by lane. into: with the other part."""
    return conflict.spread(part, conflicts.asked, plan.lane_rows, lookup.widths, conflicting, into)


def send_part_of_gradients(
    lookup: StagedLookup,
    blocks: Sequence[Block],
    plan: LookupPlan,
    conflicts: Conflicts,
    gradients: tf.Tensor,
    conflicting: bool,
) -> LaneGradients:
    """Gradients of replies, flat float32 by lane, of one part to their owners. Collective."""
    part, splits = conflict.compact(
        gradients,
        conflicts.asked,
        plan.lane_rows,
        lookup.widths,
        lookup.lane_ranks,
        lookup.comm.size,
        conflicting,
    )
    received = lookup.send_gradients(part, splits)
    return lookup.lane_gradients(blocks, *conflicts.part(conflicting), received)
