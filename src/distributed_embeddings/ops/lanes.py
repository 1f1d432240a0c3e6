"""The owner's side of an exchange by kernel: answers straight into the send buffer, gradients straight out of the
receive buffer. Twin: `ops.reference.look_up_lanes`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from distributed_embeddings.ops import kernels, reference
from distributed_embeddings.ops.block import Block
from distributed_embeddings.ops.lookup import watch
from distributed_embeddings.ops.pending import slices


def look_up_lanes(
    blocks: Sequence[Block], lane_tables: Sequence[int], rows: tf.Tensor, counts: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Vectors of the rows that all ranks ask of this rank's blocks.

    lane_tables: which block each lane reads. rows: int64 [n], by source rank, then lane. counts: int64 [ranks, lanes],
    rows in each. Returns the vectors in the same order, flat float32, and how many floats go to each rank, int64.
    Raises InternalError for a row that the block does not have.
    """
    if not all(kernels.enabled_for(b.variable) for b in blocks):
        return reference.look_up_lanes(blocks, lane_tables, rows, counts)
    return kernels.library().demb_lookup_lanes(
        watch(blocks),
        rows,
        counts,
        num_rows=[b.num_rows for b in blocks],
        dims=[b.width for b in blocks],
        lane_tables=list(lane_tables),
    )


@dataclass(frozen=True, eq=False)
class LaneGradients:
    """Gradients of blocks by the lanes of an exchange: `PendingGradients`. grads: flat, in the order of the wire."""

    num_rows: tuple[int, ...]
    dims: tuple[int, ...]
    lane_tables: tuple[int, ...]
    rows: tf.Tensor
    counts: tf.Tensor
    grads: tf.Tensor
    divisible = False

    def sums(self) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        if not kernels.enabled_for(self.grads):
            return reference.sum_lanes(self.rows, self.counts, self.grads, self.lane_tables, self.dims)
        return kernels.library().demb_sum_lanes(
            self.rows,
            self.counts,
            self.grads,
            num_tables=len(self.dims),
            num_rows=list(self.num_rows),
            dims=list(self.dims),
            lane_tables=list(self.lane_tables),
        )

    def update(self, which: Sequence[int], handles: Sequence[tf.Tensor], rule: dict[str, Any]) -> None:
        if len(which) != len(self.dims):
            raise ValueError(f"`which` must be all {len(self.dims)} blocks. Received: which={list(which)}")
        kernels.library().demb_update_lanes(
            handles,
            **rule,
            lane_rows=self.rows,
            counts=self.counts,
            grads=self.grads,
            dims=list(self.dims),
            lane_tables=list(self.lane_tables),
        )


@tf.RegisterGradient("DembLookupLanes")
def _gradient(op: Any, upstream: tf.Tensor, _: Any) -> list[Any]:
    attributes = {k: tuple(op.get_attr(k)) for k in ("num_rows", "dims", "lane_tables")}
    rows, counts = op.inputs[-2:]
    return [*slices(LaneGradients(rows=rows, counts=counts, grads=upstream, **attributes)), None, None]
