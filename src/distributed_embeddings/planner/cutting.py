"""How each table is cut (copied whole, by rows, into column slices) before anyone says where the parts go."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace

from distributed_embeddings.planner.specs import TableSpec

# `auto` copies tables of fewer elements. 2^14 float32 values are 64 KiB; reducing their gradient moves about
# 2 × 64 KiB a worker and step, as much as 1,024 vectors of width 16 and their gradients: below this a table's
# exchange costs more than its copy, at the smallest local batches in use.
AUTO_DATA_PARALLEL = 2**14


@dataclass(frozen=True)
class Thresholds:
    """Limits in elements (rows × columns); None switches a limit off."""

    data_parallel: int | None = None
    row_slice: int | None = None
    column_slice: int | None = None


@dataclass
class Cuts:
    """How each table, by index, is cut: copied whole, by rows over all workers, or into n column slices."""

    replicated: set[int]
    by_rows: set[int]
    slices: dict[int, int]

    def covered(self, tables: Sequence[TableSpec], world_size: int) -> int:
        """Return how many ranks, from 0, hold rows of a row-wise table."""
        return max((min(tables[i].vocabulary_size, world_size) for i in self.by_rows), default=0)


def cut(tables: Sequence[TableSpec], world_size: int, limits: Thresholds) -> Cuts:
    """Apply the thresholds in their order: copied, else by rows, else by columns, else whole."""
    cuts = Cuts(set(), set(), {})
    for index, table in enumerate(tables):
        size = table.num_elements
        if limits.data_parallel is not None and size < limits.data_parallel:
            cuts.replicated.add(index)
        elif limits.row_slice is not None and size > limits.row_slice and table.vocabulary_size > 1:
            cuts.by_rows.add(index)
        else:
            cuts.slices[index] = _column_slices(table, world_size, limits.column_slice)
    return cuts


def _column_slices(table: TableSpec, world_size: int, limit: int | None) -> int:
    """Return the smallest power of two that gets all slices to `limit`, as far as columns and workers go."""
    count, most = 1, min(table.embedding_dim, world_size)
    if limit is None:
        return count
    while count * 2 <= most and table.vocabulary_size * -(-table.embedding_dim // count) > limit:
        count *= 2
    return count


def cut_auto(tables: Sequence[TableSpec], world_size: int, limits: Thresholds) -> Cuts:
    """The rule of `auto`; a threshold that is given replaces the part of the same kind.

    1. Tables of fewer than 2^14 elements, and those with both fewer rows and fewer columns than workers (no
       cut gives every worker a part), are copied.
    2. A table (or column slice) of more than 4/3 of a worker's fair share of the other bytes would alone make
       a worker fuller than greedy dealing ever needs (its bound: Graham, "Bounds on multiprocessing timing
       anomalies", 1969): its rows go to all workers, or its columns when it has fewer rows than workers.
    """
    copied = AUTO_DATA_PARALLEL if limits.data_parallel is None else limits.data_parallel
    cuts = cut(tables, world_size, replace(limits, data_parallel=copied))
    if limits.data_parallel is None:
        for index in list(cuts.slices):
            if max(tables[index].vocabulary_size, tables[index].embedding_dim) < world_size:
                cuts.replicated.add(index)
                del cuts.slices[index]
    sizes = {i: whole_bytes(tables[i]) for i in (*cuts.by_rows, *cuts.slices)}
    total = sum(sizes.values())
    for index, count in list(cuts.slices.items()):
        if 3 * sizes[index] * world_size <= 4 * total * count:
            continue
        if limits.row_slice is None and tables[index].vocabulary_size >= world_size:
            cuts.by_rows.add(index)
            del cuts.slices[index]
        else:
            shares = -(-sizes[index] * world_size // total)
            cuts.slices[index] = max(count, min(shares, tables[index].embedding_dim, world_size))
    return cuts


def whole_bytes(table: TableSpec) -> int:
    """Return the bytes of a whole table and its optimizer slots."""
    return table.block_bytes(table.vocabulary_size, table.embedding_dim)


def fill(tables: Sequence[TableSpec], world_size: int, cuts: Cuts, setting: str) -> Cuts:
    """Cut further, as little as needed, so that every worker holds a part of a table that is not copied.

    Columns first, the largest slice each time; where columns are not enough, the rows of the largest table
    with a row for every worker. Raises ValueError, naming `setting`, when neither is possible.
    """
    needed = world_size - cuts.covered(tables, world_size)
    if not cuts.slices and not cuts.by_rows:
        return cuts
    if sum(cuts.slices.values()) >= needed:
        return cuts
    if sum(min(tables[i].embedding_dim, world_size) for i in cuts.slices) >= needed:
        return replace(cuts, slices=_cut_columns(tables, world_size, cuts.slices, needed))
    long = [i for i in cuts.slices if tables[i].vocabulary_size >= world_size]
    if not long:
        raise ValueError(_too_few(tables, world_size, cuts, setting))
    largest = max(long, key=lambda i: (whole_bytes(tables[i]), -i))
    slices = {i: count for i, count in cuts.slices.items() if i != largest}
    return replace(cuts, by_rows=cuts.by_rows | {largest}, slices=slices)


def _cut_columns(
    tables: Sequence[TableSpec], world_size: int, slices: dict[int, int], needed: int
) -> dict[int, int]:
    counts = dict(slices)

    def entry(index: int) -> tuple[float, int]:
        return -whole_bytes(tables[index]) / counts[index], index

    def divisible(index: int) -> bool:
        return counts[index] < min(tables[index].embedding_dim, world_size)

    heap = [entry(i) for i in counts if divisible(i)]
    heapq.heapify(heap)
    for _ in range(needed - sum(counts.values())):
        index = heapq.heappop(heap)[1]
        counts[index] += 1
        if divisible(index):
            heapq.heappush(heap, entry(index))
    return counts


def _too_few(tables: Sequence[TableSpec], world_size: int, cuts: Cuts, setting: str) -> str:
    columns = sum(tables[i].embedding_dim for i in cuts.slices)
    rows = max((tables[i].vocabulary_size for i in (*cuts.slices, *cuts.by_rows)), default=0)
    return (
        f"`world_size` must be small enough that every worker can hold a part of a table. Received: "
        f"world_size={world_size} with {setting}; the {len(cuts.slices) + len(cuts.by_rows)} table(s) that "
        f"are not copied have {columns} column(s) together and at most {rows} row(s). Use fewer workers, "
        f"or copy these small tables with data_parallel_threshold."
    )
