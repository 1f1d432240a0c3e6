"""Symbolic replay: follow a plan's lanes with cells (table, row, column) in place of numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from distributed_embeddings.planner.layout import Lane, Layout, make_layout
from distributed_embeddings.planner.placement import Shard, ShardingType
from distributed_embeddings.planner.plan import ShardingPlan

Ints = npt.NDArray[np.int64]


def replay(
    plan: ShardingPlan, ids: Sequence[npt.ArrayLike], layout: Layout | None = None
) -> tuple[Ints, ...]:
    """Look `ids` up through the lanes of `plan`, symbolically, and check that each cell arrives in its place.

    ids: for each feature a vector of n row ids (one a bag: pooling is the identity). layout:
    `make_layout(plan)` unless given. Returns, a feature, int64 [n, dim, 3]: the (table index, row, column)
    that came back; it equals (table, id, 0 … dim-1). Raises ValueError naming feature, position and both
    cells at the first one that does not.
    """
    layout = make_layout(plan) if layout is None else layout
    asked = [_check_ids(plan, index, values) for index, values in enumerate(ids)]
    if len(asked) != len(plan.features):
        raise ValueError(
            f"`ids` must hold a vector a feature ({len(plan.features)}). Received: {len(asked)}."
        )
    answers = _run_lanes(plan, layout, asked)
    outputs = []
    for index, values in enumerate(asked):
        cells = _assemble(plan, layout, index, values, answers)
        _check_cells(plan, index, values, cells)
        outputs.append(cells)
    return tuple(outputs)


def _check_ids(plan: ShardingPlan, index: int, values: npt.ArrayLike) -> Ints:
    feature = plan.features[index] if index < len(plan.features) else None
    rows = plan.table(feature.table).vocabulary_size if feature is not None else 0
    array = np.asarray(values, dtype=np.int64)
    if feature is None or array.ndim != 1 or (array.size and not 0 <= array.min() <= array.max() < rows):
        raise ValueError(
            f"`ids` must hold, for each of the {len(plan.features)} features, a vector of ids of its table. "
            f"Here: 0 to {rows - 1}. Received: ids[{index}]={array!r}."
        )
    return array


def _routed(shard: Shard, values: Ints) -> npt.NDArray[np.bool_]:
    """Which ids does `shard` hold?"""
    inside = (values >= shard.rows.start) & (values < shard.rows.stop)
    held: npt.NDArray[np.bool_] = inside & ((values - shard.rows.start) % shard.rows.step == 0)
    return held


def _run_lanes(plan: ShardingPlan, layout: Layout, asked: Sequence[Ints]) -> dict[tuple[int, int, int], Ints]:
    """Send every lane its ids; return the cells that came back by (rank, slot, feature)."""
    held = {(shard.rank, shard.table): shard for placement in plan.placements for shard in placement.shards}
    answers: dict[tuple[int, int, int], Ints] = {}
    for lane in layout.lanes:
        parts = [_local_rows(lane, asked[feature]) for feature in lane.features]
        cells = _owner(plan, held.get((lane.rank, lane.shard.table)), lane, np.concatenate(parts))
        ends = np.cumsum([len(part) for part in parts])[:-1]
        for feature, part in zip(lane.features, np.split(cells, ends), strict=True):
            answers[lane.rank, lane.slot, feature] = part
    return answers


def _local_rows(lane: Lane, values: Ints) -> Ints:
    rows = lane.shard.rows
    local: Ints = (values[_routed(lane.shard, values)] - rows.start) // rows.step
    return local


def _owner(plan: ShardingPlan, shard: Shard | None, lane: Lane, local: Ints) -> Ints:
    """What a lane's rank answers: cells of the block that the PLAN put there, whatever the lane believes."""
    if shard is None or (local.size and local.max() >= len(shard.rows)):
        raise ValueError(f"rank {lane.rank} must hold what lane {lane!r} asks for. It holds shard={shard!r}.")
    unique, inverse = np.unique(local, return_inverse=True)
    cells = _cells(plan, shard, unique if lane.shared else local)
    return cells[inverse.reshape(-1)] if lane.shared else cells


def _cells(plan: ShardingPlan, shard: Shard, local: Ints) -> Ints:
    """The (table, row, column) that block `shard` holds in its rows `local`: int64 [n, columns, 3]."""
    cells = np.empty((len(local), len(shard.columns), 3), dtype=np.int64)
    cells[..., 0] = plan.table_index(shard.table)
    cells[..., 1] = (shard.rows.start + local * shard.rows.step)[:, None]
    cells[..., 2] = np.arange(shard.columns.start, shard.columns.stop)
    return cells


def _assemble(
    plan: ShardingPlan, layout: Layout, index: int, values: Ints, answers: dict[tuple[int, int, int], Ints]
) -> Ints:
    """Put a feature's answers together: columns side by side, rows where they were asked for."""
    name = plan.features[index].table
    placement, dim = plan.placement(name), plan.table(name).embedding_dim
    lanes = layout.sources(index)
    if placement.sharding is ShardingType.DATA_PARALLEL:
        # Every rank reads its own copy; the plan holds one a rank, all alike.
        return _cells(plan, placement.shards[-1], values)
    if placement.sharding is not ShardingType.ROW_WISE:
        return np.concatenate([answers[lane.rank, lane.slot, index] for lane in lanes], axis=1)
    cells = np.zeros((len(values), dim, 3), dtype=np.int64)
    times = np.zeros(len(values), dtype=np.int64)
    for lane in lanes:
        here = _routed(lane.shard, values)
        cells[here] = answers[lane.rank, lane.slot, index]
        times += here
    if (times != 1).any():
        first = int(np.argmax(times != 1))
        raise ValueError(
            f"id {values[first]} of feature {plan.features[index].name!r}, table {name!r}, must be on "
            f"exactly one rank. Received: {times[first]} answers."
        )
    return cells


def expected_cells(plan: ShardingPlan, index: int, values: Ints) -> Ints:
    """Return the cells that feature `index` must get for `values`: int64 [n, dim, 3]."""
    table = plan.table_index(plan.features[index].table)
    dim = plan.tables[table].embedding_dim
    cells = np.empty((len(values), dim, 3), dtype=np.int64)
    cells[..., 0] = table
    cells[..., 1] = values[:, None]
    cells[..., 2] = np.arange(dim)
    return cells


def _check_cells(plan: ShardingPlan, index: int, values: Ints, cells: Ints) -> None:
    right = expected_cells(plan, index, values)
    feature = plan.features[index]
    if cells.shape != right.shape:
        raise ValueError(
            f"feature {feature.name!r} of table {feature.table!r} must get cells of shape {right.shape}. "
            f"Received: shape {cells.shape}."
        )
    wrong = np.argwhere((cells != right).any(axis=2))
    if len(wrong):
        row, column = wrong[0]
        raise ValueError(
            f"feature {feature.name!r} of table {feature.table!r} must get (table, row, column) "
            f"{right[row, column].tolist()} at position {row}, column {column}. "
            f"Received: {cells[row, column].tolist()}."
        )
