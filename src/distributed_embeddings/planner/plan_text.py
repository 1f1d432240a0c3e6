"""The plan as a text table for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from distributed_embeddings.planner.placement import Placement, ShardingType

if TYPE_CHECKING:
    from distributed_embeddings.planner.plan import ShardingPlan

MAX_TABLE_LINES = 40  # more tables than this: those of one shape and one kind of placement share a line
MAX_RANK_LINES = 16  # more ranks than this: the largest and smallest few and the mean
MAX_NAME = 28


def render(plan: ShardingPlan) -> str:
    """Return the tables with their placement, then what each rank holds."""
    head = (
        f"ShardingPlan: {len(plan.tables)} table(s), {len(plan.features)} feature(s), "
        f"{plan.world_size} worker(s), strategy {plan.strategy}, digest {plan.digest[:12]}"
    )
    return "\n".join([head, "", *_tables(plan), "", *_ranks(plan)])


def human_bytes(count: float) -> str:
    """Return `count` bytes in the largest unit that leaves at least 1: 1536 → "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _tables(plan: ShardingPlan) -> list[str]:
    """One line a table, or one line for all tables of one shape and one kind of placement."""
    together = len(plan.tables) > MAX_TABLE_LINES
    groups: dict[tuple[str, ...], list[str]] = {}
    for table in plan.tables:
        placement = plan.placement(table.name)
        # Tables that share a line are on different ranks; what a rank holds is in the summary below.
        alone = () if together else (_on_ranks(plan, placement), table.name)
        key = (
            f"{table.vocabulary_size:,}×{table.embedding_dim}",
            table.combiner or "-",
            _sharding(placement),
            "-" if placement.sharding is ShardingType.DATA_PARALLEL else placement.pooling.value,
            _sizes(plan, placement),
            *alone,
        )
        groups.setdefault(key, []).append(table.name)
    header = ["table", "rows×dim", "combiner", "sharding", "pooling", "bytes a rank", "ranks"]
    rows = [[_names(names), *key[:6]] for key, names in groups.items()]
    return _align(header[:-1] if together else header, rows)


def _names(names: Sequence[str]) -> str:
    first = names[0] if len(names[0]) <= MAX_NAME else names[0][: MAX_NAME - 1] + "…"
    return first if len(names) == 1 else f"{first} +{len(names) - 1} alike"


def _sharding(placement: Placement) -> str:
    name = placement.sharding.value
    if placement.sharding is ShardingType.ROW_WISE:
        cyclic = placement.shards[0].rows.step > 1
        return f"{name} ({'cyclic' if cyclic else 'contiguous'})"
    return name


def _sizes(plan: ShardingPlan, placement: Placement) -> str:
    copies = placement.sharding is ShardingType.DATA_PARALLEL
    sizes = {plan.shard_bytes(shard) for shard in placement.shards[: 1 if copies else None]}
    low, high = human_bytes(min(sizes)), human_bytes(max(sizes))
    return low if low == high else f"{low}–{high}"


def _on_ranks(plan: ShardingPlan, placement: Placement) -> str:
    ranks = [shard.rank for shard in placement.shards]
    if len(ranks) == plan.world_size > 1:
        return f"all {len(ranks)}"
    return ",".join(map(str, ranks[:8])) + (f",… ({len(ranks)})" if len(ranks) > 8 else "")


def _ranks(plan: ShardingPlan) -> list[str]:
    sizes = [plan.memory_bytes(rank) for rank in range(plan.world_size)]
    chosen = list(range(plan.world_size))
    if plan.world_size > MAX_RANK_LINES:
        falling = sorted(chosen, key=lambda rank: (-sizes[rank], rank))
        chosen = sorted([*falling[:4], *falling[-4:]])
    rows = []
    for rank in chosen:
        kinds = Counter(plan.placement(shard.table).sharding for shard in plan.shards_on(rank))
        rows.append([str(rank), *(str(kinds[kind]) for kind in ShardingType), human_bytes(sizes[rank])])
    lines = _align(["rank", *(kind.value for kind in ShardingType), "bytes"], rows)
    if len(chosen) < plan.world_size:
        lines.append(f"… {plan.world_size - len(chosen)} more ranks between the 4 fullest and the 4 emptiest")
    mean = sum(sizes) / len(sizes)
    ratio = max(sizes) / mean if mean else 1.0
    lines.append(
        f"all ranks: {human_bytes(sum(sizes))}, mean {human_bytes(mean)}, max {human_bytes(max(sizes))} "
        f"({ratio:.2f}× the mean)"
    )
    return lines


def _align(header: list[str], rows: list[list[str]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(header, *rows, strict=True)]
    lines = [header, ["─" * width for width in widths], *rows]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
