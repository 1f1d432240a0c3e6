"""The plan as JSON. A data-parallel table's copies are implied: 2,000 tables on 512 workers stay small."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from distributed_embeddings.planner.placement import (
    Placement,
    Pooling,
    Shard,
    ShardingType,
    whole_on_every_rank,
)
from distributed_embeddings.planner.specs import FeatureSpec, TableSpec

if TYPE_CHECKING:
    from distributed_embeddings.planner.plan import ShardingPlan

FORMAT = "distributed_embeddings.ShardingPlan"
VERSION = 1

E = TypeVar("E", bound=Enum)
PlanFields = tuple[int, tuple[TableSpec, ...], tuple[FeatureSpec, ...], tuple[Placement, ...], str]


def dump(plan: ShardingPlan, indent: int | None = None) -> str:
    """Return `plan` as JSON text. With `indent` None it is canonical: sorted keys, no spaces."""
    data = {
        "format": FORMAT,
        "version": VERSION,
        "world_size": plan.world_size,
        "strategy": plan.strategy,
        "tables": [table.to_dict() for table in plan.tables],
        "features": [feature.to_dict() for feature in plan.features],
        "placements": [_placement_to_dict(placement) for placement in plan.placements],
    }
    separators = (",", ":") if indent is None else None
    return json.dumps(data, sort_keys=True, indent=indent, separators=separators, allow_nan=False)


def load(text: str | bytes) -> PlanFields:
    """Return the plan's fields in ShardingPlan's order. Raises ValueError saying what is wrong."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ValueError(f"`text` must be a plan's JSON: {error}.") from error
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        raise ValueError(f'`text` must be JSON with "format": "{FORMAT}". Received: text={text[:80]!r}.')
    if data.get("version") != VERSION:
        raise ValueError(
            f"`version` must be {VERSION}, the one this library reads. "
            f"Received: version={data.get('version')!r}."
        )
    world_size = _get(data, "world_size", int, "the plan")
    tables = tuple(TableSpec.from_dict(each) for each in _get(data, "tables", list, "the plan"))
    features = tuple(FeatureSpec.from_dict(each) for each in _get(data, "features", list, "the plan"))
    by_name = {table.name: table for table in tables}
    placements = tuple(
        _placement_from_dict(each, f"placement {index}", by_name, world_size)
        for index, each in enumerate(_get(data, "placements", list, "the plan"))
    )
    return world_size, tables, features, placements, _get(data, "strategy", str, "the plan")


def _get(data: Any, key: str, kind: type, where: str) -> Any:
    value = data.get(key) if isinstance(data, Mapping) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"`{key}` must be a JSON {kind.__name__}. Received: {key}={value!r} in {where}.")
    return value


def _enum(kind: type[E], data: Any, key: str, where: str) -> E:
    value = _get(data, key, str, where)
    try:
        return kind(value)
    except ValueError as error:
        allowed = tuple(each.value for each in kind)
        raise ValueError(
            f"`{key}` must be one of {allowed}. Received: {key}={value!r} in {where}."
        ) from error


def _placement_to_dict(placement: Placement) -> dict[str, Any]:
    data: dict[str, Any] = {
        "table": placement.table,
        "sharding": placement.sharding.value,
        "pooling": placement.pooling.value,
    }
    if placement.sharding is not ShardingType.DATA_PARALLEL:
        data["shards"] = [
            {"rank": shard.rank, "rows": _span(shard.rows), "columns": _span(shard.columns)}
            for shard in placement.shards
        ]
    return data


def _placement_from_dict(
    data: Any, where: str, tables: Mapping[str, TableSpec], world_size: int
) -> Placement:
    name = _get(data, "table", str, where)
    where = f"{where} (table {name!r})"
    if name not in tables:
        raise ValueError(f"`table` must name one of the plan's tables. Received: table={name!r} in {where}.")
    sharding = _enum(ShardingType, data, "sharding", where)
    pooling = _enum(Pooling, data, "pooling", where)
    if sharding is ShardingType.DATA_PARALLEL:
        return whole_on_every_rank(tables[name], world_size, pooling)
    shards = tuple(
        Shard(
            name,
            _get(each, "rank", int, where),
            _range(_get(each, "rows", list, where), "rows", where),
            _range(_get(each, "columns", list, where), "columns", where),
        )
        for each in _get(data, "shards", list, where)
    )
    return Placement(name, sharding, pooling, shards)


def _span(span: range) -> list[int]:
    return [span.start, span.stop, span.step]


def _range(values: list[Any], name: str, where: str) -> range:
    if len(values) != 3 or not all(type(value) is int for value in values) or values[2] == 0:
        raise ValueError(f"`{name}` must be [start, stop, step]. Received: {name}={values!r} in {where}.")
    return range(*values)
