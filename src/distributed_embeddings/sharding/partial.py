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
from distributed_embeddings.sharding.staged import StagedLookup

Asked = tuple[tf.Tensor, tf.Tensor]
"""Rows and counts asked of this rank, as in `LookupPlan`."""


NEVER = -2
"""The stamp of a row that no batch has announced: batch 0 looks for -1."""


class Conflicts(NamedTuple):
    """Which rows of a batch conflict with one neighbour.

    mask: bool, of the rows asked of this rank. free_rows, free_counts, rows, counts: those rows in two parts, the
    conflicting second; int64 by (source, lane), as in `LookupPlan`.
    """

    mask: tf.Tensor
    free_rows: tf.Tensor
    free_counts: tf.Tensor
    rows: tf.Tensor
    counts: tf.Tensor

    def part(self, conflicting: bool) -> Asked:
        """Rows and counts of one part."""
        return (self.rows, self.counts) if conflicting else (self.free_rows, self.free_counts)


def make_stamps(blocks: Sequence[Block]) -> list[tf.Variable]:
    """A stamp a row, int32 [rows], for every block: 4 bytes a row."""
    return [
        tf.Variable(tf.fill([b.num_rows], NEVER), trainable=False, name=f"stamps_{i}", dtype=tf.int32)
        for i, b in enumerate(blocks)
    ]


def announce(
    stamps: Sequence[tf.Variable], rows: tf.Tensor, counts: tf.Tensor, stamp: tf.Tensor, previous: Asked
) -> tuple[Conflicts, Conflicts]:
    """Stamp the rows asked of this rank. Returns their conflicts with the batch before, and that one's with these.

    stamp: int64 scalar, one more than that of `previous`, the rows and counts before.
    """
    forward, backward = conflict.announce(stamps, rows, counts, stamp, *previous)
    return _conflicts((rows, counts), forward), _conflicts(previous, backward)


def _conflicts(asked: Asked, mask: tf.Tensor) -> Conflicts:
    parts = conflict.split_lanes(*asked, mask)
    return Conflicts(
        mask, parts.free_rows, parts.free_counts, parts.conflicting_rows, parts.conflicting_counts
    )


def tell(
    counts: tf.Tensor, forward: tf.Tensor, counts_before: tf.Tensor, backward: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """The masks of a batch (`forward`) and of the one before (`backward`), bool by source, for those who asked: bytes,
    and how many go to each rank."""
    return conflict.pack_masks(forward, tf.reduce_sum(counts, 1), backward, tf.reduce_sum(counts_before, 1))


def understand(
    lookup: StagedLookup, told: tf.Tensor, lane_rows: tf.Tensor, lane_rows_before: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """The masks of the rows this rank asked for, bool by lane: of a batch, and of the one before."""
    return conflict.unpack_masks(told, lookup.rows_by_rank(lane_rows), lookup.rows_by_rank(lane_rows_before))


def merge_replies(
    lookup: StagedLookup,
    lane_rows: tf.Tensor,
    mask: tf.Tensor,
    part: tf.Tensor,
    conflicting: bool,
    into: tf.Tensor | None = None,
) -> tf.Tensor:
    """Put a part's vectors where they belong among the replies, flat float32 by lane. into: with the other part."""
    return conflict.spread(part, mask, lane_rows, lookup.widths, conflicting, into)


def part_of_gradients(
    lookup: StagedLookup, lane_rows: tf.Tensor, mask: tf.Tensor, gradients: tf.Tensor, conflicting: bool
) -> tuple[tf.Tensor, tf.Tensor]:
    """Of gradients of replies, flat float32 by lane, those of one part, and how many floats go to each owner."""
    return conflict.compact(
        gradients, mask, lane_rows, lookup.widths, lookup.lane_ranks, lookup.comm.size, conflicting
    )
