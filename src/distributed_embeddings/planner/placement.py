"""One table's shards, and what makes them a placement: every row and column on a worker, exactly once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from distributed_embeddings.planner.specs import TableSpec, received


class ShardingType(str, Enum):
    """How a table is cut over workers."""

    DATA_PARALLEL = "data_parallel"
    TABLE_WISE = "table_wise"
    COLUMN_WISE = "column_wise"
    ROW_WISE = "row_wise"


class Pooling(str, Enum):
    """Who sums a bag's vectors: the rank that holds the rows, or the rank that asked."""

    OWNER = "owner"
    DESTINATION = "destination"


@dataclass(frozen=True)
class Shard:
    """A block of one table on one rank. `rows` is a range over the table's row ids: step 1 = contiguous, step
    N = cyclic.

    Row id r of the table is local row (r - rows.start) // rows.step. `columns` is a range of step 1.
    """

    table: str
    rank: int
    rows: range
    columns: range

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the block."""
        return len(self.rows), len(self.columns)

    @property
    def num_elements(self) -> int:
        """Rows × columns of the block."""
        return len(self.rows) * len(self.columns)


@dataclass(frozen=True)
class Placement:
    """One table's shards. data_parallel: one whole copy a rank. row_wise: shards in order of row range start.
    column_wise: shards in column order, at most one a rank. table_wise: exactly one shard."""

    table: str
    sharding: ShardingType
    pooling: Pooling
    shards: tuple[Shard, ...]


def whole_on_every_rank(table: TableSpec, world_size: int, pooling: Pooling) -> Placement:
    """Return the data-parallel placement of `table`: one whole copy a rank, in rank order."""
    rows, columns = range(table.vocabulary_size), range(table.embedding_dim)
    shards = tuple(Shard(table.name, rank, rows, columns) for rank in range(world_size))
    return Placement(table.name, ShardingType.DATA_PARALLEL, pooling, shards)


def check_placement(placement: Placement, table: TableSpec, world_size: int) -> None:
    """Raise ValueError, naming the shard, unless `placement` holds each cell of `table` exactly once."""
    if not isinstance(placement.sharding, ShardingType) or not isinstance(placement.pooling, Pooling):
        raise ValueError(
            f"`sharding` and `pooling` must be a ShardingType and a Pooling. Received: "
            f"sharding={received(placement.sharding)}, pooling={received(placement.pooling)} "
            f"in table {table.name!r}."
        )
    if not placement.shards:
        raise ValueError(f"`shards` must not be empty. Received: shards=() in table {table.name!r}.")
    for shard in placement.shards:
        _check_shard(shard, table, world_size)
    _CHECKS[placement.sharding](placement, table, world_size)


def _refuse(placement: Placement, rule: str, shard: Shard | None = None) -> ValueError:
    got = f"shard={shard!r}" if shard is not None else f"{len(placement.shards)} shard(s)"
    return ValueError(
        f"`shards` of a {placement.sharding.value} table must be {rule}. "
        f"Received: {got} in table {placement.table!r}."
    )


def _check_shard(shard: Shard, table: TableSpec, world_size: int) -> None:
    if shard.table != table.name:
        raise ValueError(
            f"`shards` of table {table.name!r} must be of that table. Received: shard={shard!r}."
        )
    if isinstance(shard.rank, bool) or not isinstance(shard.rank, int) or not 0 <= shard.rank < world_size:
        raise ValueError(
            f"`rank` must be an integer of 0 to {world_size - 1}. Received: rank={received(shard.rank)} "
            f"in a shard of table {table.name!r}."
        )
    for name, span, size in (
        ("rows", shard.rows, table.vocabulary_size),
        ("columns", shard.columns, table.embedding_dim),
    ):
        if not isinstance(span, range) or span.step < 1 or not span or span[0] < 0 or span.stop > size:
            raise ValueError(
                f"`{name}` must be a rising range, not empty, within 0 to {size}. "
                f"Received: {name}={received(span)} in a shard of table {table.name!r} on rank {shard.rank}."
            )


def _same(span: range, start: int, stop: int, step: int = 1) -> bool:
    # Ranges compare as sequences (range(0, 3, 3) == range(0, 1)); the step also says how rows are dealt.
    return (span.start, span.stop, span.step) == (start, stop, step)


def _check_whole(placement: Placement, table: TableSpec) -> None:
    for shard in placement.shards:
        if not (_same(shard.rows, 0, table.vocabulary_size) and _same(shard.columns, 0, table.embedding_dim)):
            raise _refuse(placement, "the whole table", shard)


def _check_data_parallel(placement: Placement, table: TableSpec, world_size: int) -> None:
    _check_whole(placement, table)
    if [shard.rank for shard in placement.shards] != list(range(world_size)):
        raise _refuse(placement, f"one on each of the {world_size} ranks, in rank order")


def _check_table_wise(placement: Placement, table: TableSpec, world_size: int) -> None:
    if len(placement.shards) != 1:
        raise _refuse(placement, "exactly one")
    _check_whole(placement, table)


def _check_one_a_rank(placement: Placement) -> None:
    seen: set[int] = set()
    for shard in placement.shards:
        if shard.rank in seen:
            raise _refuse(placement, "at most one a rank", shard)
        seen.add(shard.rank)


def _check_column_wise(placement: Placement, table: TableSpec, world_size: int) -> None:
    _check_one_a_rank(placement)
    start = 0
    for shard in placement.shards:
        if not _same(shard.rows, 0, table.vocabulary_size):
            raise _refuse(placement, "of all rows", shard)
        if not _same(shard.columns, start, shard.columns.stop):
            raise _refuse(placement, f"contiguous and in column order: column {start} comes next", shard)
        start = shard.columns.stop
    if start != table.embedding_dim:
        raise _refuse(placement, f"of all {table.embedding_dim} columns: those from {start} are on no worker")


def _check_row_wise(placement: Placement, table: TableSpec, world_size: int) -> None:
    _check_one_a_rank(placement)
    shards, rows = placement.shards, table.vocabulary_size
    for shard in shards:
        if not _same(shard.columns, 0, table.embedding_dim):
            raise _refuse(placement, "of all columns", shard)
    if all(_same(shard.rows, i, rows, len(shards)) for i, shard in enumerate(shards)):
        return
    start = 0
    for shard in shards:
        if not _same(shard.rows, start, shard.rows.stop):
            raise _refuse(
                placement,
                f"range(i, {rows}, {len(shards)}) each, or contiguous: row {start} comes next",
                shard,
            )
        start = shard.rows.stop
    if start != rows:
        raise _refuse(placement, f"of all {rows} rows: those from {start} are on no worker")


_CHECKS: Mapping[ShardingType, Callable[[Placement, TableSpec, int], None]] = {
    ShardingType.DATA_PARALLEL: _check_data_parallel,
    ShardingType.TABLE_WISE: _check_table_wise,
    ShardingType.COLUMN_WISE: _check_column_wise,
    ShardingType.ROW_WISE: _check_row_wise,
}
