"""One lookup of all features over all ranks, from each rank's own samples (data-parallel input)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf

from distributed_embeddings.comm import Communicator
from distributed_embeddings.ops.bags import Bags
from distributed_embeddings.ops.block import Block
from distributed_embeddings.ops.ids import CheckedFeature, check_and_clip, describe, zero_or_clip
from distributed_embeddings.ops.lookup import look_up
from distributed_embeddings.planner import Lane, Layout, Placement, Pooling, Shard, ShardingPlan, ShardingType
from distributed_embeddings.sharding import batch_weight
from distributed_embeddings.sharding.agreement import raise_together
from distributed_embeddings.sharding.column_wise import ColumnWise, ColumnWiseShared
from distributed_embeddings.sharding.exchange import (
    Announced,
    Request,
    exchange_ids,
    exchange_lengths,
    exchange_vectors,
)
from distributed_embeddings.sharding.grouped import GroupedLookup, is_grouped
from distributed_embeddings.sharding.local import local_features
from distributed_embeddings.sharding.lookup import answer
from distributed_embeddings.sharding.row_wise import RowWise, RowWiseShared


class Router(Protocol):
    """One table's sharding type: ids to lanes, and the lanes' vectors back to features."""

    def route(self, bags: Mapping[int, Bags]) -> dict[Lane, Request]: ...

    def assemble(self, bags: Mapping[int, Bags], replies: Mapping[Lane, tf.Tensor]) -> dict[int, Any]: ...


@dataclass(frozen=True)
class Tables:
    """This rank's blocks. shards: by shard of the plan; replicas: by table name. anchor: trainable, float32 [0]."""

    shards: Mapping[Shard, Block]
    replicas: Mapping[str, Block]
    anchor: tf.Variable | None


@dataclass(frozen=True)
class LookupSettings:
    """invalid_ids: "raise", "zero" or "clip". wire_dtype: float32, bfloat16 or float16 for vectors on the wire."""

    invalid_ids: str = "raise"
    wire_dtype: tf.DType = tf.float32


def make_router(placement: Placement, plan: ShardingPlan, layout: Layout) -> Router:
    """The sharding type's router for one table."""
    table = next(t for t in plan.tables if t.name == placement.table)
    lanes = [lane for lane in layout.lanes if lane.shard.table == placement.table]
    lanes.sort(key=lambda lane: placement.shards.index(lane.shard))
    shared = placement.pooling is Pooling.DESTINATION
    if placement.sharding is ShardingType.ROW_WISE:
        return RowWiseShared(table, lanes) if shared else RowWise(table, lanes)
    return ColumnWiseShared(table, lanes) if shared else ColumnWise(table, lanes)


def checked_features(plan: ShardingPlan) -> list[CheckedFeature]:
    """The features as error texts name them."""
    rows = {t.name: t.vocabulary_size for t in plan.tables}
    return [CheckedFeature(f.name, f.table, rows[f.table]) for f in plan.features]


def sharded_lookup(
    comm: Communicator,
    layout: Layout,
    tables: Tables,
    bags: Sequence[Bags],
    settings: LookupSettings,
    count_invalid: Callable[[tf.Tensor], None] | None = None,
) -> list[Any]:
    """Outputs of all features, in feature order; float32 [B, dim] where pooled.

    bags: this rank's samples. One exchange of lengths, one of ids, one of vectors, and their reverse for gradients.
    Raises InvalidArgumentError on every rank for an invalid id on any (policy "raise").
    """
    plan = layout.plan
    if comm.size == 1:
        outputs, counts = _local(plan, tables, dict(enumerate(bags)), settings.invalid_ids)
        if count_invalid is not None:
            count_invalid(counts)
        return outputs
    if is_grouped(layout):
        return _grouped(comm, layout, tables, bags, settings, count_invalid)
    features = checked_features(plan)
    status, valid = valid_bags(bags, features, settings.invalid_ids, count_invalid)
    return _exchanged(comm, layout, tables, bags, valid, status, settings)


def valid_bags(
    bags: Sequence[Bags],
    features: Sequence[CheckedFeature],
    policy: str,
    count_invalid: Callable[[tf.Tensor], None] | None,
) -> tuple[tf.Tensor, list[Bags]]:
    """Whether the call must fail (policy "raise"), and bags in which every id is valid."""
    if policy == "raise":
        return check_and_clip(bags, features)
    valid, counts = zero_or_clip(bags, features, policy)
    if count_invalid is not None:
        count_invalid(counts)
    return tf.constant(False), valid


def _local(
    plan: ShardingPlan, tables: Tables, bags: Mapping[int, Bags], invalid_ids: str
) -> tuple[list[Any], tf.Tensor]:
    """Outputs of features whose tables are whole and here, and their invalid ids. bags: by feature index."""
    used, grouped, features = local_features(plan, bags)
    return look_up([tables.replicas[t.name] for t in used], grouped, features, invalid_ids)


def _grouped(
    comm: Communicator,
    layout: Layout,
    tables: Tables,
    bags: Sequence[Bags],
    settings: LookupSettings,
    count_invalid: Callable[[tf.Tensor], None] | None,
) -> list[Any]:
    plan = layout.plan
    lookup = GroupedLookup(comm, layout, bags)
    requests, invalid, wrong = lookup.route(settings.invalid_ids)
    if count_invalid is not None:
        count_invalid(invalid)
    announced = exchange_lengths(comm, layout, requests, kinds(plan, bags), wrong, bags[0].batch_size)
    checked = _raise_if_any(comm, plan, announced, bags)
    with tf.control_dependencies([checked]):
        weight = batch_weight.record(announced.batch_sizes, comm.rank)
        replies = lookup.answer(
            tables.shards, announced, tables.anchor, settings.wire_dtype, weight / comm.size
        )
        outputs = lookup.assemble(replies)
        add_replicated(plan, tables, dict(enumerate(bags)), settings.invalid_ids, outputs)
    return [outputs[i] for i in range(len(bags))]


def _raise_if_any(
    comm: Communicator, plan: ShardingPlan, announced: Announced, given: Sequence[Bags]
) -> tf.Tensor:
    features = checked_features(plan)
    return raise_together(
        comm, tf.reduce_any(announced.statuses != 0), lambda: describe(given, features, comm.rank)
    )


def add_replicated(
    plan: ShardingPlan, tables: Tables, given: Mapping[int, Bags], invalid_ids: str, outputs: dict[int, Any]
) -> None:
    """The features given that have no output yet: their tables are here. given: by feature index."""
    replicated = {i: b for i, b in given.items() if i not in outputs}
    if replicated:
        # Under "raise" their ids are valid by now.
        policy = "clip" if invalid_ids == "raise" else invalid_ids
        local, _ = _local(plan, tables, replicated, policy)
        outputs.update(zip(replicated, local, strict=True))


def _exchanged(
    comm: Communicator,
    layout: Layout,
    tables: Tables,
    given: Sequence[Bags],
    bags: Sequence[Bags],
    status: tf.Tensor,
    settings: LookupSettings,
) -> list[Any]:
    plan = layout.plan
    routers = _routers(layout)
    own = {name: _of_table(plan, name, bags) for name in routers}
    requests: dict[Lane, Request] = {}
    for name, router in routers.items():
        requests.update(router.route(own[name]))
    announced = exchange_lengths(comm, layout, requests, kinds(plan, bags), status, bags[0].batch_size)
    checked = _raise_if_any(comm, plan, announced, given)
    with tf.control_dependencies([checked]):
        weight = batch_weight.record(announced.batch_sizes, comm.rank)
        scale = weight / comm.size
        received = exchange_ids(comm, layout, requests, announced, scale)
        answers = answer(tables.shards, {lane: got.bags() for lane, got in received.items()})
        replies = {lane: (answers[lane], got.num_replies) for lane, got in received.items()}
        vectors = exchange_vectors(
            comm,
            layout,
            replies,
            {lane: r.num_replies for lane, r in requests.items()},
            tables.anchor,
            wire_dtype=settings.wire_dtype,
            gradient_scale=scale,
        )
        outputs: dict[int, Any] = {}
        for name, router in routers.items():
            outputs.update(router.assemble(own[name], vectors))
        add_replicated(plan, tables, dict(enumerate(given)), settings.invalid_ids, outputs)
    return [outputs[i] for i in range(len(bags))]


def _routers(layout: Layout) -> dict[str, Router]:
    used = {f.table for f in layout.plan.features}
    return {
        p.table: make_router(p, layout.plan, layout)
        for p in layout.plan.placements
        if p.sharding is not ShardingType.DATA_PARALLEL and p.table in used
    }


def _of_table(plan: ShardingPlan, table: str, bags: Sequence[Bags]) -> dict[int, Bags]:
    return {i: bags[i] for i, f in enumerate(plan.features) if f.table == table}


def kinds(plan: ShardingPlan, bags: Sequence[Bags]) -> str:
    """How every feature comes; equal on all ranks, or the exchange would not be understood."""
    return ", ".join(
        f"{f.name} {'ragged' if b.hotness is None else b.hotness}{'' if b.weights is None else ' weighted'}"
        for f, b in zip(plan.features, bags, strict=True)
    )
