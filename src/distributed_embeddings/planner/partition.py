"""From tables and workers to a plan."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from distributed_embeddings.planner.cutting import Cuts, Thresholds, cut, cut_auto, fill
from distributed_embeddings.planner.dealing import DEALS, Deal
from distributed_embeddings.planner.placement import (
    Placement,
    Pooling,
    Shard,
    ShardingType,
    whole_on_every_rank,
)
from distributed_embeddings.planner.plan import ShardingPlan, check_specs
from distributed_embeddings.planner.specs import FeatureSpec, TableSpec, Topology, check_int, received

ROW_LAYOUTS = ("cyclic", "contiguous")


def make_plan(
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec],
    topology: Topology | int,
    strategy: str = "auto",
    *,
    column_slice_threshold: int | None = None,
    row_slice_threshold: int | None = None,
    data_parallel_threshold: int | None = None,
    row_pooling: str | Pooling = Pooling.DESTINATION,
    row_layout: str | None = None,
) -> ShardingPlan:
    """Decide who holds what; the same arguments give the same plan on every machine.

    topology: the workers, or only their number. strategy: `basic` deals tables, or their slices, round-robin
    in the given order; `memory_balanced` by falling size; `memory_optimized` for the evenest memory; `auto`
    copies tiny tables, cuts the rows of those beyond a worker's fair share over all workers and deals the
    rest as `memory_optimized` does (the rule and its reasons: `cutting.cut_auto`; it minimises memory, not
    yet time).

    Thresholds count elements (rows × columns) and apply in this order with every strategy: below
    `data_parallel_threshold` a table is copied to every worker; above `row_slice_threshold` its rows go to
    all workers; above `column_slice_threshold` its columns are cut in the smallest power of two that gets no
    slice above it, as far as there are columns and workers. Slices of one table that come to one rank are
    merged. With fewer pieces than workers tables are cut further, as little as needed. One worker holds every
    table whole.

    row_pooling: who sums the bags of row-wise tables, "destination" or "owner". row_layout: "cyclic" (row i
    on rank i mod N; evens out ids whose popularity falls with the id; default of `auto`) or "contiguous"
    (default otherwise). Raises ValueError naming the argument, also when workers cannot all get a part or a
    plan exceeds `device_memory`.
    """
    tables, features = tuple(tables), tuple(features)
    check_specs(tables, features)
    if not isinstance(topology, Topology):
        topology = Topology(topology)
    limits = Thresholds(
        _threshold("data_parallel_threshold", data_parallel_threshold),
        _threshold("row_slice_threshold", row_slice_threshold),
        _threshold("column_slice_threshold", column_slice_threshold),
    )
    _one_of("strategy", strategy, tuple(DEALS))
    pooling = Pooling(_one_of("row_pooling", row_pooling, tuple(each.value for each in Pooling)))
    if row_layout is None:
        row_layout = "cyclic" if strategy == "auto" else "contiguous"
    _one_of("row_layout", row_layout, ROW_LAYOUTS)
    cuts = _cuts(tables, topology.world_size, strategy, limits)
    placed = _deal(tables, topology.world_size, strategy, cuts, row_layout, pooling)
    plan = ShardingPlan(topology.world_size, tables, features, placed, strategy)
    _check_memory(plan, topology)
    return plan


def _threshold(name: str, value: int | None) -> int | None:
    return None if value is None else check_int("make_plan", name, value, 0)


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"`{name}` must be one of {allowed}. Received: {name}={received(value)}.")
    return value


def _cuts(tables: tuple[TableSpec, ...], world_size: int, strategy: str, limits: Thresholds) -> Cuts:
    if world_size == 1:
        return Cuts(set(), set(), dict.fromkeys(range(len(tables)), 1))
    cuts = (cut_auto if strategy == "auto" else cut)(tables, world_size, limits)
    setting = f"strategy={strategy!r}, {limits}"
    return fill(tables, world_size, cuts, setting)


def _deal(
    tables: tuple[TableSpec, ...],
    world_size: int,
    strategy: str,
    cuts: Cuts,
    row_layout: str,
    pooling: Pooling,
) -> tuple[Placement, ...]:
    """Place row-wise and copied tables, then deal whole tables and column slices around what these left."""
    placed: dict[int, Placement] = {}
    loads = [0] * world_size
    for index in sorted(cuts.by_rows):
        placed[index] = _by_rows(tables[index], world_size, row_layout, pooling)
        for shard in placed[index].shards:
            loads[shard.rank] += tables[index].block_bytes(*shard.shape)
    for index in cuts.replicated:
        placed[index] = whole_on_every_rank(tables[index], world_size, Pooling.DESTINATION)
    for index, widths in _deal_columns(tables, strategy, cuts, loads).items():
        placed[index] = _by_columns(tables[index], widths)
    return tuple(placed[index] for index in range(len(tables)))


def _deal_columns(
    tables: tuple[TableSpec, ...], strategy: str, cuts: Cuts, loads: list[int]
) -> dict[int, dict[int, int]]:
    """Return, for each table that is whole or cut by columns, the number of columns on each of its ranks."""
    pieces = [
        (index, width)
        for index in sorted(cuts.slices)
        for width in _widths(tables[index], cuts.slices[index])
    ]
    sizes = [tables[index].block_bytes(tables[index].vocabulary_size, width) for index, width in pieces]
    # Ranks that a short row-wise table left without rows come first, so that none stays empty.
    start = cuts.covered(tables, len(loads)) % len(loads)

    def dealt(deal: Deal) -> dict[int, dict[int, int]]:
        columns: dict[int, dict[int, int]] = {index: {} for index in cuts.slices}
        for (index, width), rank in zip(pieces, deal(sizes, loads, start), strict=True):
            columns[index][rank] = columns[index].get(rank, 0) + width
        return columns

    def fullest(columns: dict[int, dict[int, int]]) -> int:
        # Of the merged slices, not of the pieces: slots a row are kept once a shard.
        filled = list(loads)
        for index, widths in columns.items():
            for rank, width in widths.items():
                filled[rank] += tables[index].block_bytes(tables[index].vocabulary_size, width)
        return max(filled)

    return min(map(dealt, DEALS[strategy]), key=fullest)


def _widths(table: TableSpec, count: int) -> list[int]:
    """Cut the columns in `count` widths that differ by at most 1, wider ones first."""
    return [len(span) for span in split(table.embedding_dim, count)]


def split(size: int, count: int) -> list[range]:
    """Cut 0 … size-1 in `count` contiguous ranges whose lengths differ by at most 1, longer ones first."""
    base, longer = divmod(size, count)
    ends = [i * base + min(i, longer) for i in range(count + 1)]
    return [range(start, stop) for start, stop in pairwise(ends)]


def _by_columns(table: TableSpec, widths: dict[int, int]) -> Placement:
    """One shard a rank, of as many columns as its slices had: slices that met on a rank become neighbours."""
    shards, start = [], 0
    for rank, width in widths.items():
        shards.append(Shard(table.name, rank, range(table.vocabulary_size), range(start, start + width)))
        start += width
    kind = ShardingType.TABLE_WISE if len(shards) == 1 else ShardingType.COLUMN_WISE
    return Placement(table.name, kind, Pooling.OWNER, tuple(shards))


def _by_rows(table: TableSpec, world_size: int, row_layout: str, pooling: Pooling) -> Placement:
    rows, columns = table.vocabulary_size, range(table.embedding_dim)
    count = min(rows, world_size)
    cyclic = [range(i, rows, count) for i in range(count)]
    spans = cyclic if row_layout == "cyclic" else split(rows, count)
    shards = tuple(Shard(table.name, rank, span, columns) for rank, span in enumerate(spans))
    return Placement(table.name, ShardingType.ROW_WISE, pooling, shards)


def _check_memory(plan: ShardingPlan, topology: Topology) -> None:
    if topology.device_memory is None:
        return
    held, rank = max((plan.memory_bytes(rank), -rank) for rank in range(plan.world_size))
    if held <= topology.device_memory:
        return
    rank = -rank
    largest = sorted(plan.shards_on(rank), key=plan.shard_bytes, reverse=True)[:3]
    names = ", ".join(f"{shard.table} ({plan.shard_bytes(shard):,} bytes)" for shard in largest)
    raise ValueError(
        f"`device_memory` must hold every worker's tables and slots. "
        f"Received: device_memory={topology.device_memory}; "
        f"rank {rank} needs {held:,} bytes, {held - topology.device_memory:,} more. Largest there: {names}. "
        f"Use more workers, strategy='memory_optimized', or a lower row_ or column_slice_threshold."
    )
