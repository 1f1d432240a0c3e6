"""The frozen plan: who holds which rows and columns of which table."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from distributed_embeddings.planner.specs import FeatureSpec, TableSpec


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
    """A block of one table on one rank. `rows` is a range over the table's row ids: step 1 = contiguous, step N = cyclic.

    Row id r of the table is local row (r - rows.start) // rows.step. `columns` is a range of step 1.
    """

    table: str
    rank: int
    rows: range
    columns: range


@dataclass(frozen=True)
class Placement:
    """One table's shards. data_parallel: one whole copy a rank. row_wise: shards in order of row range start.
    column_wise: shards in column order, at most one a rank. table_wise: exactly one shard."""

    table: str
    sharding: ShardingType
    pooling: Pooling
    shards: tuple[Shard, ...]


@dataclass(frozen=True)
class ShardingPlan:
    """Who holds what. Executed as it is by every rank; `digest` is compared at start."""

    world_size: int
    tables: tuple[TableSpec, ...]
    features: tuple[FeatureSpec, ...]
    placements: tuple[Placement, ...]
    strategy: str = "explicit"
