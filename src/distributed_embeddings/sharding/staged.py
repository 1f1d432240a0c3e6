"""A lookup cut into stages, each of which can run at another time: ask, look up, assemble, and the way back.

What travels between them is given out and taken in: whoever runs stages sends the parts of several in one exchange.
Between stages there are tensors only, so that every stage may be a function of its own. Vectors are pooled at the
destination whatever the plan says: then a row's vector does not depend on which others travel with it, and a part of
the rows can go ahead of the rest (`partial.py`) without changing a bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import tensorflow as tf

from distributed_embeddings.comm import Communicator
from distributed_embeddings.ops.bags import Bags, make_bags
from distributed_embeddings.ops.block import Block
from distributed_embeddings.ops.ids import describe
from distributed_embeddings.ops.lanes import LaneGradients, look_up_lanes
from distributed_embeddings.ops.routing import assemble
from distributed_embeddings.planner import Lane, Layout, Pooling, Shard, ShardingPlan, make_layout
from distributed_embeddings.sharding import batch_weight
from distributed_embeddings.sharding.agreement import raise_together, require_equal_kinds, signature
from distributed_embeddings.sharding.grouped import GroupedLookup, Wire
from distributed_embeddings.sharding.sharded_lookup import LookupSettings, checked_features, kinds

HEAD = 4
"""Numbers before the counts of lanes: signature of the inputs' kinds, status, batch size, whether a batch follows and
twice the vote."""


class Question(NamedTuple):
    """What one rank asks with a batch. message: int64, to every rank `splits` numbers of it: head, rows in each of its
    lanes, the rows themselves. The rest as in `LookupPlan`."""

    positions: list[Any]
    weights: list[Any]
    lane_rows: tf.Tensor
    message: tf.Tensor
    splits: tf.Tensor


class LookupPlan(NamedTuple):
    """What one batch asks, on the rank that asks and on those that answer.

    positions: of every routed feature, in the form of its ids: where each id's row is among the replies of its table.
    weights: alike, None where a feature has none. lane_rows: int64 [lanes], rows asked of each. rows: int64 [n], asked
    of this rank by all, by (source, lane); counts: int64 [N, lanes of this rank]. batch_sizes: int64 [N]. more: bool
    scalar, whether any rank has a batch behind this one. agreed: bool scalar, whether most ranks voted yes.
    """

    positions: list[Any]
    weights: list[Any]
    lane_rows: tf.Tensor
    rows: tf.Tensor
    counts: tf.Tensor
    batch_sizes: tf.Tensor
    more: tf.Tensor
    agreed: tf.Tensor


def destination_layout(plan: ShardingPlan) -> Layout:
    """The plan's lanes with all vectors pooled where they are used."""
    placements = tuple(replace(p, pooling=Pooling.DESTINATION) for p in plan.placements)
    return make_layout(replace(plan, placements=placements))


class StagedLookup:
    """The stages of one layer's lookup. comm: of the thread that runs them."""

    def __init__(self, comm: Communicator, plan: ShardingPlan, settings: LookupSettings) -> None:
        self.comm = comm
        self.layout = destination_layout(plan)
        self.wire = Wire(self.layout)
        self.routed = self.wire.routed_features()
        self._settings = settings
        lanes = self.layout.lanes
        self.widths = [len(lane.shard.columns) for lane in lanes]
        self.lane_ranks = [lane.rank for lane in lanes]

    @property
    def own_lanes(self) -> tuple[Lane, ...]:
        """The lanes that this rank answers."""
        return self.layout.lanes_of(self.comm.rank)

    def ask(
        self,
        bags: Sequence[Bags],
        more: tf.Tensor,
        vote: tf.Tensor,
        count_invalid: Callable[[tf.Tensor], None] | None = None,
    ) -> Question:
        """What this rank has to tell of a batch. more: bool, it has another behind this one. vote: bool, on
        whatever all ranks are to do alike."""
        lookup = GroupedLookup(self.comm, self.layout, bags)
        requests, invalid, wrong = lookup.route(self._settings.invalid_ids)
        if count_invalid is not None:
            count_invalid(invalid)
        kind = tf.constant(signature(kinds(self.layout.plan, bags)), tf.int64)
        head = tf.stack(
            [
                kind,
                tf.cast(wrong, tf.int64),
                bags[0].batch_size,
                tf.cast(more, tf.int64) + 2 * tf.cast(vote, tf.int64),
            ]
        )
        lane_rows = tf.stack([requests[lane].num_replies for lane in self.layout.lanes])
        counts = tf.split(lane_rows, [len(self.layout.lanes_of(r)) for r in range(self.comm.size)])
        parts = []
        for rank in range(self.comm.size):
            parts += [head, counts[rank], *(requests[lane].rows for lane in self.layout.lanes_of(rank))]
        heads = [HEAD + len(self.layout.lanes_of(r)) for r in range(self.comm.size)]
        return Question(
            positions=[in_form(bags[i], lookup.inverse[i]) for i in self.routed],
            weights=[weights_in_form(bags[i]) for i in self.routed],
            lane_rows=lane_rows,
            message=tf.concat(parts, 0),
            splits=self.rows_by_rank(lane_rows) + tf.constant(heads, tf.int64),
        )

    def understand(
        self, bags: Sequence[Bags], question: Question, received: tf.Tensor, splits: tf.Tensor
    ) -> LookupPlan:
        """The plan out of what all ranks have told this one, int64 by source.

        Raises InvalidArgumentError on every rank for an invalid id on any (policy "raise"), and when the ranks differ
        in the kinds of their inputs. Collective then.
        """
        comm, plan = self.comm, self.layout.plan
        head = HEAD + len(self.own_lanes)
        by_source = tf.split(received, splits, num=comm.size)
        heads = tf.stack([part[:head] for part in by_source])
        with tf.control_dependencies([require_equal_kinds(comm, heads[:, 0], kinds(plan, bags))]):
            wrong = tf.reduce_any(heads[:, 1] != 0)
        features = checked_features(plan)
        checked = raise_together(comm, wrong, lambda: describe(bags, features, comm.rank))
        with tf.control_dependencies([checked]):
            return LookupPlan(
                positions=question.positions,
                weights=question.weights,
                lane_rows=question.lane_rows,
                rows=tf.concat([part[head:] for part in by_source], 0),
                counts=heads[:, HEAD:],
                batch_sizes=tf.identity(heads[:, 2]),
                more=tf.reduce_any(heads[:, 3] % 2 > 0),
                agreed=2 * tf.reduce_sum(heads[:, 3] // 2) > comm.size,
            )

    def rows_by_rank(self, lane_rows: tf.Tensor) -> tf.Tensor:
        """Rows asked of every rank, int64 [N]."""
        ranks = tf.constant(self.lane_ranks, tf.int32)
        return tf.math.unsorted_segment_sum(lane_rows, ranks, self.comm.size)

    def blocks(self, shards: Mapping[Shard, Block]) -> list[Block]:
        """The block that each lane of this rank reads."""
        return [shards[lane.shard] for lane in self.own_lanes]

    def answer(
        self, blocks: Sequence[Block], rows: tf.Tensor, counts: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """This rank's rows for all ranks, flat float32 by (source, lane), and how many floats go to each."""
        if not blocks:
            return tf.zeros([0]), tf.zeros([self.comm.size], tf.int64)
        return look_up_lanes(blocks, range(len(blocks)), rows, counts)

    def to_wire(self, values: tf.Tensor) -> tf.Tensor:
        """Vectors or their gradients as they travel."""
        return tf.cast(values, self._settings.wire_dtype)

    def outputs(self, plan: LookupPlan, replies: tf.Tensor) -> list[Any]:
        """Outputs of the routed features, float32: [B, dim] pooled, else the ids' form + [dim]."""
        bags = self.bags(plan.positions, plan.weights)
        features = self.wire.features(bags)
        positions = [bags[i].given for i in self.routed]
        return assemble(
            replies, plan.lane_rows, self.wire.reply_lanes(), self.wire.dims(), features, positions
        )

    def reply_gradients(self, plan: LookupPlan, upstream: Sequence[tf.Tensor]) -> tf.Tensor:
        """Gradients of the outputs → of the replies, flat float32 by lane: each row's sum over this rank's samples.

        upstream: in the order of `outputs`; of ragged outputs, of their flat values.
        """
        # Assembling is linear: the vectors themselves do not matter, and the forward pass is pruned away.
        widths = tf.constant(self.widths, tf.int64)
        replies = tf.zeros([tf.reduce_sum(plan.lane_rows * widths)])
        with tf.GradientTape() as tape:
            tape.watch(replies)
            outputs = [flat_values(o) for o in self.outputs(plan, replies)]
        return tape.gradient(outputs, replies, output_gradients=list(upstream))

    def scaled(self, plan: LookupPlan, gradients: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
        """Gradients of this rank's mean loss, times `scale`, as parts of the gradient of the global mean."""
        weight = batch_weight.of_rank(plan.batch_sizes, self.comm.rank) / self.comm.size / scale
        # multiply_no_nan: a rank without samples has weight 0 and the mean of nothing, NaN, for a loss.
        return tf.math.multiply_no_nan(gradients, weight)

    def reply_splits(self, lane_rows: tf.Tensor) -> tf.Tensor:
        """Floats of the replies of each rank, int64 [N]."""
        sizes = lane_rows * tf.constant(self.widths, tf.int64)
        return tf.math.unsorted_segment_sum(sizes, tf.constant(self.lane_ranks, tf.int32), self.comm.size)

    def lane_gradients(
        self, blocks: Sequence[Block], rows: tf.Tensor, counts: tf.Tensor, gradients: tf.Tensor
    ) -> LaneGradients:
        """What an update of this rank's blocks takes."""
        return LaneGradients(
            num_rows=tuple(b.num_rows for b in blocks),
            dims=tuple(b.width for b in blocks),
            lane_tables=tuple(range(len(blocks))),
            rows=rows,
            counts=counts,
            grads=gradients,
        )

    def bags(self, values: Sequence[Any], weights: Sequence[Any]) -> dict[int, Bags]:
        """Of the routed features, by feature index: of values and weights in the form of their ids."""
        features = self.layout.plan.features
        combiners = {t.name: t.combiner for t in self.layout.plan.tables}
        return {
            i: make_bags(v, w, feature=features[i].name, pooled=combiners[features[i].table] is not None)
            for i, v, w in zip(self.routed, values, weights, strict=True)
        }


def flat_values(output: Any) -> tf.Tensor:
    """A ragged output's flat values; a dense one as it is."""
    return output.flat_values if isinstance(output, tf.RaggedTensor) else output


def in_form(bags: Bags, values: tf.Tensor) -> Any:
    """Values one an id in the form of the ids: dense as given, ragged by the splits."""
    if bags.splits is None:
        return tf.reshape(values, tf.shape(bags.given)) if values.shape.rank is None else values
    return tf.RaggedTensor.from_row_splits(values, bags.splits, validate=False)


def weights_in_form(bags: Bags) -> Any:
    """The weights in the form of the ids; None where there are none."""
    if bags.weights is None:
        return None
    if bags.splits is None:
        return tf.reshape(bags.weights, tf.shape(bags.given))
    return tf.RaggedTensor.from_row_splits(bags.weights, bags.splits, validate=False)
