"""The exchanges of one step: lengths, ids, weights where there are any, vectors; each for all tables together.

Requests go from the rank that has the samples to the rank that holds the rows; replies come back. Everything on the
wire is ordered by (rank, lane); a lane's pieces are found by sizes that both sides know after the exchange of lengths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from distributed_embeddings.comm import Communicator
from distributed_embeddings.ops.bags import Bags
from distributed_embeddings.planner import Lane, Layout
from distributed_embeddings.sharding.agreement import require_equal_kinds, signature

HEADER = ("signature", "status", "batch_size")


@dataclass(frozen=True)
class Request:
    """What one rank asks of one lane.

    rows: int64 [n], rows of the shard. lengths: int64 [B], rows a bag, only where the owner pools bags that have no
    static hotness. weights: float32 [n], only where the owner pools weighted bags. num_replies: int64 scalar, vectors
    that come back: B where the owner pools, else n.
    """

    rows: tf.Tensor
    num_replies: tf.Tensor
    hotness: int | None = None
    lengths: tf.Tensor | None = None
    weights: tf.Tensor | None = None


@dataclass(frozen=True)
class Received:
    """What the ranks ask of one lane of this rank: the sources' requests behind each other, in rank order.

    num_replies: int64 [N], vectors each source gets back. lengths: int64 [ΣB] or None. weights: float32 or None.
    """

    rows: tf.Tensor
    num_replies: tf.Tensor
    hotness: int | None
    lengths: tf.Tensor | None
    weights: tf.Tensor | None

    def bags(self) -> Bags:
        """The sources' bags as one batch; single rows where the owner does not pool."""
        return Bags(
            self.rows, tf.reduce_sum(self.num_replies), self.hotness, self.lengths, self.weights, tf.identity
        )


@dataclass(frozen=True)
class Announced:
    """What the exchange of lengths told: every rank's status and batch size (int64 [N] each), and for the lanes of this
    rank the rows asked (int64 [N, lanes]) and the bag lengths a lane (int64 [ΣB])."""

    statuses: tf.Tensor
    batch_sizes: tf.Tensor
    counts: tf.Tensor
    lengths: Mapping[Lane, tf.Tensor]


def exchange_lengths(
    comm: Communicator,
    layout: Layout,
    requests: Mapping[Lane, Request],
    kinds: str,
    status: tf.Tensor,
    batch_size: tf.Tensor,
) -> Announced:
    """Tell every owner how many rows each of its lanes will get, and every rank this rank's kinds of inputs, status (0:
    all is well) and batch size. Raises InvalidArgumentError on every rank when kinds differ."""
    kinds_number = tf.constant(signature(kinds), tf.int64)
    head = tf.stack([kinds_number, tf.cast(status, tf.int64), batch_size])
    parts, sizes = [], []
    for rank in range(comm.size):
        lanes = layout.lanes_of(rank)
        part = [head, *[tf.size(requests[lane].rows, tf.int64)[None] for lane in lanes]]
        part += [requests[lane].lengths for lane in lanes if requests[lane].lengths is not None]
        parts += part
        sizes.append(tf.add_n([tf.size(p, tf.int64) for p in part]))
    received, splits = comm.all_to_all(tf.concat(parts, 0), tf.stack(sizes), phase="lengths")
    return _parse_lengths(comm, layout.lanes_of(comm.rank), requests, kinds, received, splits)


def _parse_lengths(
    comm: Communicator,
    lanes: Sequence[Lane],
    requests: Mapping[Lane, Request],
    kinds: str,
    received: tf.Tensor,
    splits: tf.Tensor,
) -> Announced:
    # A lane has lengths on every rank or on none: its features are of one kind everywhere (the signature says so).
    with_lengths = [lane for lane in lanes if requests[lane].lengths is not None]
    fixed = len(HEADER) + len(lanes)
    by_source = tf.split(received, splits, num=comm.size)
    heads = tf.stack([part[:fixed] for part in by_source])
    # Checked before the lengths are taken apart: ranks that disagree on the inputs' kinds send another number of them.
    with tf.control_dependencies([require_equal_kinds(comm, heads[:, 0], kinds)]):
        by_source = [tf.identity(part) for part in by_source]
    bags: dict[Lane, list[tf.Tensor]] = {lane: [] for lane in with_lengths}
    for part in by_source if with_lengths else []:
        for lane, lengths in zip(
            with_lengths, tf.unstack(tf.reshape(part[fixed:], [len(with_lengths), -1])), strict=True
        ):
            bags[lane].append(lengths)
    return Announced(
        statuses=heads[:, 1],
        batch_sizes=heads[:, 2],
        counts=heads[:, len(HEADER) :],
        lengths={lane: tf.concat(parts, 0) for lane, parts in bags.items()},
    )


def exchange_ids(
    comm: Communicator,
    layout: Layout,
    requests: Mapping[Lane, Request],
    announced: Announced,
    gradient_scale: tf.Tensor,
) -> dict[Lane, Received]:
    """Send the rows (and weights) of every lane to its owner; returns what this rank's lanes got.

    gradient_scale: what the vectors' gradients are multiplied by before they are sent; undone in the weights'
    gradients, which belong to this rank's samples and are averaged like those of the dense network.
    """
    if not layout.lanes:
        return {}
    lanes = layout.lanes_of(comm.rank)
    rows = exchange_rows(comm, layout, requests)
    pieces = _by_lane(rows, announced.counts, len(lanes))
    weighted = [lane for lane in layout.lanes if requests[lane].weights is not None]
    weights: dict[Lane, tf.Tensor] = {}
    if weighted:
        undo = tf.math.divide_no_nan(1.0, gradient_scale)
        sent = {lane: _scale_gradient(requests[lane].weights, undo) for lane in weighted}
        flat = _to_owners(comm, layout, sent, tf.float32, "weights")
        mine = [lane for lane in lanes if lane in sent]
        columns = tf.stack([announced.counts[:, lane.slot] for lane in mine], 1) if mine else None
        got = _by_lane(flat, columns, len(mine)) if mine else []
        weights = dict(zip(mine, got, strict=True))
    received = {}
    for lane, piece in zip(lanes, pieces, strict=True):
        replies = announced.batch_sizes if lane.pooled else announced.counts[:, lane.slot]
        received[lane] = Received(
            piece, replies, requests[lane].hotness, announced.lengths.get(lane), weights.get(lane)
        )
    return received


@tf.custom_gradient
def _scale_gradient(values: tf.Tensor, scale: tf.Tensor):
    """Identity whose gradient is multiplied by `scale`."""
    return tf.identity(values), lambda upstream: (upstream * scale, None)


def _to_owners(
    comm: Communicator, layout: Layout, values: Mapping[Lane, tf.Tensor], dtype: tf.DType, phase: str
) -> tf.Tensor:
    parts, sizes = [tf.zeros([0], dtype)], []
    for rank in range(comm.size):
        mine = [values[lane] for lane in layout.lanes_of(rank) if lane in values]
        parts += mine
        sizes.append(tf.add_n([tf.size(p, tf.int64) for p in mine]) if mine else tf.constant(0, tf.int64))
    flat, splits = tf.concat(parts, 0), tf.stack(sizes)
    if dtype.is_floating:
        return differentiable_all_to_all(comm, flat, splits, dtype, tf.constant(1.0), phase)
    return comm.all_to_all(flat, splits, phase=phase)[0]


def exchange_rows(comm: Communicator, layout: Layout, requests: Mapping[Lane, Request]) -> tf.Tensor:
    """Send the rows of every lane to its owner; returns what this rank's lanes got, int64 by (source, lane)."""
    return _to_owners(comm, layout, {k: r.rows for k, r in requests.items()}, tf.int64, "ids")


def _by_lane(flat: tf.Tensor, counts: tf.Tensor, num_lanes: int) -> list[tf.Tensor]:
    """Split a buffer ordered by (source, lane) with counts [N, lanes] and join each lane's pieces over the sources."""
    if num_lanes == 0:
        return []
    sources = int(counts.shape[0])
    pieces = tf.split(flat, tf.reshape(counts, [-1]), num=sources * num_lanes)
    return [tf.concat(pieces[i::num_lanes], 0) for i in range(num_lanes)]


def exchange_vectors(
    comm: Communicator,
    layout: Layout,
    replies: Mapping[Lane, tuple[tf.Tensor, tf.Tensor]],
    expected: Mapping[Lane, tf.Tensor],
    anchor: tf.Variable | None,
    *,
    wire_dtype: tf.DType,
    gradient_scale: tf.Tensor,
) -> dict[Lane, tf.Tensor]:
    """Send this rank's lanes' vectors back; returns the vectors of every lane, float32 [expected rows, width].

    replies: lane of this rank → (vectors [Σn, width], int64 [N] vectors a source). expected: lane → rows that come back
    here. anchor: see `differentiable_all_to_all`. gradient_scale multiplies the
    vectors' gradients before they are sent.
    """
    if not layout.lanes:  # all tables are data-parallel
        return {}
    mine = layout.lanes_of(comm.rank)
    by_lane = [tf.split(replies[lane][0], replies[lane][1], num=comm.size) for lane in mine]
    parts, sizes = [tf.zeros([0])], []
    for source in range(comm.size):
        out = [tf.reshape(pieces[source], [-1]) for pieces in by_lane]
        parts += out
        sizes.append(tf.add_n([tf.size(p, tf.int64) for p in out]) if out else tf.constant(0, tf.int64))
    flat = differentiable_all_to_all(
        comm, tf.concat(parts, 0), tf.stack(sizes), wire_dtype, gradient_scale, "vectors", anchor
    )
    widths = [len(lane.shard.columns) for lane in layout.lanes]
    elements = [expected[lane] * width for lane, width in zip(layout.lanes, widths, strict=True)]
    vectors = tf.split(flat, tf.stack(elements), num=len(elements))
    return {
        lane: tf.reshape(v, [-1, width]) for lane, v, width in zip(layout.lanes, vectors, widths, strict=True)
    }


def differentiable_all_to_all(
    comm: Communicator,
    values: tf.Tensor,
    splits: tf.Tensor,
    wire_dtype: tf.DType,
    gradient_scale: tf.Tensor,
    phase: str,
    anchor: tf.Variable | None = None,
) -> tf.Tensor:
    """All-to-all of float32 [n] whose gradient is the reverse all-to-all; both travel as `wire_dtype`.

    anchor: float32 [0], a trainable variable: with it every rank's backward pass comes here, also where `values` depend
    on nothing that a tape watches.
    """

    @tf.custom_gradient
    def run(values: tf.Tensor, splits: tf.Tensor, scale: tf.Tensor, seen: tf.Tensor):
        received, received_splits = comm.all_to_all(tf.cast(values, wire_dtype), splits, phase=phase)

        def gradient(upstream: tf.Tensor):
            # multiply_no_nan: a rank without samples has weight 0 and the mean of nothing, NaN, for a loss.
            scaled = tf.math.multiply_no_nan(upstream, scale)
            back, _ = comm.all_to_all(
                tf.cast(scaled, wire_dtype), received_splits, phase=f"gradients of {phase}"
            )
            return tf.cast(back, tf.float32), None, None, tf.zeros([0])

        return tf.cast(received, tf.float32), gradient

    return run(
        values, splits, gradient_scale, tf.zeros([0]) if anchor is None else tf.convert_to_tensor(anchor)
    )
