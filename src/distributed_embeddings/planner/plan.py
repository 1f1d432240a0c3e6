"""The frozen plan: who holds which rows and columns of which table."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from distributed_embeddings.planner import plan_json, plan_text
from distributed_embeddings.planner.placement import Placement as Placement
from distributed_embeddings.planner.placement import Pooling as Pooling
from distributed_embeddings.planner.placement import Shard as Shard
from distributed_embeddings.planner.placement import ShardingType as ShardingType
from distributed_embeddings.planner.placement import check_placement
from distributed_embeddings.planner.specs import FeatureSpec, TableSpec, check_int, received


@dataclass(frozen=True)
class ShardingPlan:
    """Who holds what. Executed as it is by every rank; `digest` is compared at start.

    Raises ValueError, naming table, feature or shard, unless every row and column of every table is on a
    worker exactly once (data-parallel tables: once on every worker) and every feature reads a table of the
    plan.
    """

    world_size: int
    tables: tuple[TableSpec, ...]
    features: tuple[FeatureSpec, ...]
    placements: tuple[Placement, ...]
    strategy: str = "explicit"

    def __post_init__(self) -> None:
        for name in ("tables", "features", "placements"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        self.validate()

    def validate(self) -> None:
        """Check the whole plan. Raises ValueError."""
        check_int("a ShardingPlan", "world_size", self.world_size, 1)
        if not isinstance(self.strategy, str):
            raise ValueError(f"`strategy` must be a string. Received: strategy={received(self.strategy)}.")
        check_specs(self.tables, self.features)
        known = {table.name: table for table in self.tables}
        check_unique("placements", (placement.table for placement in self.placements))
        for placement in self.placements:
            if placement.table not in known:
                raise ValueError(
                    f"`placements` must be of the plan's tables. Received: table={placement.table!r}."
                )
            check_placement(placement, known.pop(placement.table), self.world_size)
        if known:
            raise ValueError(
                f"`placements` must hold one a table. Received: none for table {next(iter(known))!r} "
                f"({len(known)} table(s) are without)."
            )

    @cached_property
    def _placement_by_name(self) -> dict[str, Placement]:
        return {placement.table: placement for placement in self.placements}

    @cached_property
    def _shards_by_rank(self) -> tuple[tuple[Shard, ...], ...]:
        held: list[list[Shard]] = [[] for _ in range(self.world_size)]
        for table in self.tables:
            for shard in self._placement_by_name[table.name].shards:
                held[shard.rank].append(shard)
        return tuple(map(tuple, held))

    @cached_property
    def _features_by_table(self) -> dict[str, tuple[int, ...]]:
        read: dict[str, list[int]] = {table.name: [] for table in self.tables}
        for index, feature in enumerate(self.features):
            read[feature.table].append(index)
        return {name: tuple(indices) for name, indices in read.items()}

    @cached_property
    def _index_by_name(self) -> dict[str, int]:
        return {table.name: index for index, table in enumerate(self.tables)}

    def table_index(self, name: str) -> int:
        """Return the index into `tables` of table `name`. Raises ValueError when there is none."""
        if name not in self._index_by_name:
            raise ValueError(
                f"`table` must be one of the plan's {len(self.tables)} tables. Received: table={name!r}."
            )
        return self._index_by_name[name]

    def table(self, name: str) -> TableSpec:
        """Return the spec of table `name`. Raises ValueError when the plan has no such table."""
        return self.tables[self.table_index(name)]

    def placement(self, table: str) -> Placement:
        """Return where table `table` is. Raises ValueError when the plan has no such table."""
        self.table_index(table)
        return self._placement_by_name[table]

    def features_of(self, table: str) -> tuple[int, ...]:
        """Return the indices into `features` of those that read `table`, in order."""
        self.table_index(table)
        return self._features_by_table[table]

    def shards_on(self, rank: int) -> tuple[Shard, ...]:
        """Return the shards of `rank` in table order, copies of data-parallel tables among them."""
        return self._shards_by_rank[check_int("this plan", "rank", rank, 0, self.world_size - 1)]

    def memory_bytes(self, rank: int) -> int:
        """Return the bytes of tables and optimizer slots on `rank`."""
        return sum(self.shard_bytes(shard) for shard in self.shards_on(rank))

    def shard_bytes(self, shard: Shard) -> int:
        """Return the bytes of one shard and its optimizer slots."""
        return self.tables[self.table_index(shard.table)].block_bytes(*shard.shape)

    def to_json(self, indent: int | None = None) -> str:
        """Return the plan as JSON text with a format version and sorted keys."""
        return plan_json.dump(self, indent)

    @classmethod
    def from_json(cls, text: str | bytes) -> ShardingPlan:
        """Build and validate a plan from `to_json`'s text. Raises ValueError naming what is wrong."""
        return cls(*plan_json.load(text))

    @cached_property
    def digest(self) -> str:
        """sha256, in hexadecimal, of the canonical JSON: equal only for the same plan."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def __str__(self) -> str:
        return plan_text.render(self)


def check_unique(what: str, names: Iterable[str]) -> None:
    """Raise ValueError naming the first name of `names` that comes twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"`{what}` must have unique names. Received: {name!r} twice.")
        seen.add(name)


def check_specs(tables: Iterable[TableSpec], features: Iterable[FeatureSpec]) -> None:
    """Raise ValueError unless names are unique and every feature reads one of `tables`."""
    tables, features = tuple(tables), tuple(features)
    for what, values, kind in (("tables", tables, TableSpec), ("features", features, FeatureSpec)):
        for value in values:
            if not isinstance(value, kind):
                raise ValueError(f"`{what}` must be of {kind.__name__}. Received: {received(value)}.")
    check_unique("tables", (table.name for table in tables))
    check_unique("features", (feature.name for feature in features))
    known = {table.name for table in tables}
    for feature in features:
        if feature.table not in known:
            raise ValueError(
                f"`table` of a feature must name one of the tables. "
                f"Received: table={feature.table!r} in feature {feature.name!r}."
            )
