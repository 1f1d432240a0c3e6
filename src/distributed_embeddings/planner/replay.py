"""Symbolic replay: follow a plan's lanes with cells (table, row, column) in place of numbers and see where each arrives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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

    ids: for each feature a vector of n row ids (one an bag, so that pooling is the identity). layout: `make_layout(plan)`
    unless given. Returns, a feature, int64 [n, dim, 3]: the (table index, row, column) that came back; it equals
    (table, id, 0 … dim-1). Raises ValueError naming feature, position and both cells at the first one that does not.
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
            f"`ids` must hold, for each of the {len(plan.features)} features, a vector of ids within 0 to {rows - 1}. "
            f"Received: ids[{index}]={array!r}."
        )
    return array


def _routed(shard: Shard, values: Ints) -> npt.NDArray[np.bool_]:
    """Which ids does `shard` hold?"""
    inside = (values >= shard.rows.start) & (values < shard.rows.stop)
    held: npt.NDArray[np.bool_] = inside & ((values - shard.rows.start) % shard.rows.step == 0)
    return held


def _run_lanes(plan: ShardingPlan, layout: Layout, asked: Sequence[Ints]) -> dict[tuple[int, int, int], Ints]:
    """Send every lane its ids; return the cells that came back by (rank, slot, feature)."""
    held = {
        (shard.rank, shard.table): shard for rank in range(plan.world_size) for shard in plan.shards_on(rank)
    }
    table_index = {table.name: index for index, table in enumerate(plan.tables)}
    answers: dict[tuple[int, int, int], Ints] = {}
    for lane in layout.lanes:
        parts = [_local_rows(lane, asked[feature]) for feature in lane.features]
        cells = _owner(held.get((lane.rank, lane.shard.table)), table_index, lane, np.concatenate(parts))
        ends = np.cumsum([len(part) for part in parts])[:-1]
        for feature, part in zip(lane.features, np.split(cells, ends), strict=True):
            answers[lane.rank, lane.slot, feature] = part
    return answers


def _local_rows(lane: Lane, values: Ints) -> Ints:
    rows = lane.shard.rows
    local: Ints = (values[_routed(lane.shard, values)] - rows.start) // rows.step
    return local


def _owner(shard: Shard | None, table_index: dict[str, int], lane: Lane, local: Ints) -> Ints:
    """What the rank of a lane answers: cells of the block that the PLAN put there, whatever the lane believes."""
    if shard is None or (local.size and local.max() >= len(shard.rows)):
        raise ValueError(f"rank {lane.rank} must hold what lane {lane!r} asks for. It holds shard={shard!r}.")
    unique, inverse = np.unique(local, return_inverse=True)
    sent = unique if lane.shared else local
    rows = shard.rows.start + sent * shard.rows.step
    columns = np.arange(shard.columns.start, shard.columns.stop, dtype=np.int64)
    cells = np.empty((len(sent), len(columns), 3), dtype=np.int64)
    cells[..., 0] = table_index[shard.table]
    cells[..., 1] = rows[:, None]
    cells[..., 2] = columns
    return cells[inverse.reshape(-1)] if lane.shared else cells


def _assemble(
    plan: ShardingPlan, layout: Layout, index: int, values: Ints, answers: dict[tuple[int, int, int], Ints]
) -> Ints:
    """Put a feature's answers together: columns side by side, rows where they were asked for."""
    name = plan.features[index].table
    placement, dim = plan.placement(name), plan.table(name).embedding_dim
    lanes = layout.sources(index)
    if placement.sharding is ShardingType.DATA_PARALLEL:
        return expected_cells(plan, index, values)
    if placement.sharding is not ShardingType.ROW_WISE:
        return np.concatenate([answers[lane.rank, lane.slot, index] for lane in lanes], axis=1)
    cells = np.full((len(values), dim, 3), -1, dtype=np.int64)
    for lane in lanes:
        cells[_routed(lane.shard, values)] = answers[lane.rank, lane.slot, index]
    return cells


def expected_cells(plan: ShardingPlan, index: int, values: Ints) -> Ints:
    """Return the cells that feature `index` must get for `values`: int64 [n, dim, 3]."""
    names = [table.name for table in plan.tables]
    table = names.index(plan.features[index].table)
    dim = plan.tables[table].embedding_dim
    cells = np.empty((len(values), dim, 3), dtype=np.int64)
    cells[..., 0] = table
    cells[..., 1] = values[:, None]
    cells[..., 2] = np.arange(dim)
    return cells


def _check_cells(plan: ShardingPlan, index: int, values: Ints, cells: Ints) -> None:
    right = expected_cells(plan, index, values)
    feature: Any = plan.features[index]
    if cells.shape != right.shape:
        raise ValueError(
            f"feature {feature.name!r} of table {feature.table!r} must get cells of shape {right.shape}. "
            f"Received: shape {cells.shape}."
        )
    wrong = np.argwhere((cells != right).any(axis=2))
    if len(wrong):
        row, column = wrong[0]
        raise ValueError(
            f"feature {feature.name!r} of table {feature.table!r} must get cell {right[row, column].tolist()} "
            f"(table, row, column) at position {row}, column {column}. Received: {cells[row, column].tolist()}."
        )
