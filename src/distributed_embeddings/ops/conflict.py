"""Rows that two batches in succession ask, so that the second batch's lookups can run before the first one's update.

A row of batch t that batch t + 1 asks too is in conflict: its vector must wait for the gradient of t; every other one
can be sent at once. The owner of a shard finds the conflicts by a stamp a row, `announce`, answers the rows in two
parts, `split_lanes`, and tells those who asked, `pack_masks`. They take their vectors apart and put them together by
what they are told, `compact` and `spread`. `update_and_look_up` updates by t and answers t + 1 at once. No op here
has a gradient. Twins: `ops.conflict_reference`.

Rows and vectors lie as in `ops.lanes`; conflicting rows are those that `announce` calls forward (of this batch, in the
batch before it) or backward (of the batch before, in this one).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from distributed_embeddings.ops import conflict_reference as reference
from distributed_embeddings.ops import kernels
from distributed_embeddings.ops.block import Block
from distributed_embeddings.ops.lanes import LaneGradients
from distributed_embeddings.ops.updates import RuleKernel, UpdateTarget, rule_arguments


def announce(
    stamps: Sequence[tf.Variable],
    rows: tf.Tensor,
    counts: tf.Tensor,
    batch: tf.Tensor | int,
    previous_rows: tf.Tensor,
    previous_counts: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Which rows of this batch were asked in the one before, bool [n], and which of the one before in this, bool [m].

    stamps: for every lane an int32 variable [rows of its block], the last batch that asked for the row; it changes in
    place. rows: int64 [n], by source rank, then lane. counts: int64 [ranks, lanes], rows in each. batch: int64 scalar,
    this batch's number, one more than at the call before; stamps take it modulo 2^32, and start with a number that is
    no batch's. previous_rows int64 [m], previous_counts: those of the call before.
    Raises InvalidArgumentError for a row outside of its block (the kernel: before it has stamped any), counts that do
    not add up, and a variable that is two lanes'.
    """
    batch = tf.cast(batch, tf.int64)
    use_kernel = all(kernels.enabled_for(s) for s in stamps) if stamps else kernels.enabled_for(rows)
    if not use_kernel:
        return reference.announce(stamps, rows, counts, batch, previous_rows, previous_counts)
    return kernels.library().demb_announce(
        [s.handle for s in stamps], rows, counts, batch, previous_rows, previous_counts
    )


@dataclass(frozen=True, eq=False)
class LaneParts:
    """Rows of a batch in two parts, each int64 by source rank, then lane; counts: int64 [ranks, lanes]."""

    free_rows: tf.Tensor
    free_counts: tf.Tensor
    conflicting_rows: tf.Tensor
    conflicting_counts: tf.Tensor


def split_lanes(rows: tf.Tensor, counts: tf.Tensor, conflicting: tf.Tensor) -> LaneParts:
    """The rows that are not in conflict and those that are, both in their order. rows, counts: as in `announce`;
    conflicting: bool [n].

    Raises InvalidArgumentError for counts that do not add up, or not one mark a row.
    """
    split = kernels.library().demb_split_lanes if kernels.enabled_for(rows) else reference.split_lanes
    return LaneParts(*split(rows, counts, conflicting))


def pack_masks(
    forward: tf.Tensor, forward_sizes: tf.Tensor, backward: tf.Tensor, backward_sizes: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Both masks as bits, by rank: uint8 [k] and how many bytes are each rank's, int64 [ranks].

    forward, backward: bool, by rank. *_sizes: int64 [ranks], how many of them are each rank's. A rank's bytes: forward,
    then backward, each filled up to whole bytes; the first mark is the lowest bit.
    Raises InvalidArgumentError for sizes that do not add up.
    """
    pack = kernels.library().demb_pack_masks if kernels.enabled_for(forward) else reference.pack_masks
    packed, splits = pack(forward, forward_sizes, backward, backward_sizes)
    return packed, splits


def unpack_masks(
    packed: tf.Tensor, forward_sizes: tf.Tensor, backward_sizes: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Inverse of `pack_masks`: the masks forward and backward, bool, by the rank that sent them.

    packed: uint8 [k], by rank. *_sizes: int64 [ranks], marks that each has sent.
    Raises InvalidArgumentError for sizes that are not those of the bytes.
    """
    unpack = kernels.library().demb_unpack_masks if kernels.enabled_for(packed) else reference.unpack_masks
    forward, backward = unpack(packed, forward_sizes, backward_sizes)
    return forward, backward


def compact(
    vectors: tf.Tensor,
    mask: tf.Tensor,
    lane_rows: tf.Tensor,
    widths: Sequence[int],
    lane_ranks: Sequence[int],
    num_ranks: int,
    conflicting: bool,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The vectors whose mask is `conflicting`, flat float32 by lane, and each rank's share, floats, int64 [ranks].

    vectors: flat float32, lane after lane. mask: bool, one a row. lane_rows: int64 [lanes], rows of each. widths: of a
    row of each lane, floats. lane_ranks: who owns the lane.
    Raises InvalidArgumentError for sizes that do not add up.
    """
    arguments = {
        "widths": list(widths),
        "lane_ranks": list(lane_ranks),
        "num_ranks": num_ranks,
        "conflicting": conflicting,
    }
    take = kernels.library().demb_compact if kernels.enabled_for(vectors) else reference.compact
    part, splits = take(vectors, mask, lane_rows, **arguments)
    return part, splits


def spread(
    part: tf.Tensor,
    mask: tf.Tensor,
    lane_rows: tf.Tensor,
    widths: Sequence[int],
    conflicting: bool,
    into: tf.Tensor | None,
) -> tf.Tensor:
    """Vectors of all rows, flat float32 by lane: those of `part` where the mask is `conflicting`, elsewhere `into`'s.

    part: as `compact` gives it. mask, lane_rows, widths: as there. into: flat float32 of all rows, whose memory becomes
    the result's in a tf.function where nothing else uses it; None: rows of the other kind may be anything.
    Raises InvalidArgumentError for sizes that do not add up.
    """
    if not kernels.enabled_for(part):
        return reference.spread(part, mask, lane_rows, list(widths), conflicting, into)
    return kernels.library().demb_spread(
        part,
        mask,
        lane_rows,
        [] if into is None else [into],
        widths=list(widths),
        conflicting=conflicting,
    )


def can_fuse(blocks: Sequence[Block], rule_kernel: RuleKernel | None) -> bool:
    """Whether `update_and_look_up` can be called for these tables under this rule."""
    enabled = all(kernels.enabled_for(b.variable) for b in blocks)
    return bool(blocks) and rule_kernel is not None and enabled


def update_and_look_up(
    gradients: LaneGradients,
    targets: Sequence[UpdateTarget],
    rule_kernel: RuleKernel,
    rates: tf.Tensor,
    step: tf.Tensor,
    next_rows: tf.Tensor,
    next_counts: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Update all tables and look rows of the next batch up after it: in one walk along the rows, with the same bits.

    gradients, rates, step: as `RowOptimizer.apply_pending` has them. targets: all tables of `gradients`, in order.
    next_rows: int64 [n], by source rank, then lane; lane l reads table l. It is one walk for those that rise, as those
    of `route` do. next_counts: int64 [ranks, lanes]. Returns what `look_up_lanes` does: the vectors, flat float32, and
    how many floats go to each rank, int64 [ranks].
    Only where `can_fuse`. Raises InvalidArgumentError for sizes that do not add up; InternalError, after the update,
    for a row that a table does not have; ValueError for targets of other widths.
    """
    dims = [target.table.width for target in targets]
    if list(gradients.dims) != dims:
        raise ValueError(
            f"`targets` must be the tables of `gradients`, all of them in their order. Received: widths {dims}, "
            f"gradients of widths {list(gradients.dims)}"
        )
    vectors, splits = kernels.library().demb_update_and_look_up(
        [target.table.variable.handle for target in targets],
        **rule_arguments(rule_kernel, targets, rates, step),
        lane_rows=gradients.rows,
        counts=gradients.counts,
        grads=gradients.grads,
        next_rows=next_rows,
        next_counts=next_counts,
        dims=dims,
        lane_tables=list(gradients.lane_tables),
    )
    return vectors, splits
