"""What the sharded == unsharded suite runs: a case is a plan, an optimizer and a way of feeding the layer."""

from __future__ import annotations

import itertools
import zlib
from dataclasses import dataclass

from distributed_embeddings.planner import (
    FeatureSpec,
    Placement,
    Pooling,
    Shard,
    ShardingPlan,
    ShardingType,
    TableSpec,
)

KINDS = ("one", "one2d", "fixed", "ragged", "sparse", "weighted_ragged", "weighted_fixed", "weighted_sparse")
COMBINERS = (None, "sum", "mean", "sqrtn")
RULES = ("sgd", "momentum", "adagrad", "rowwise_adagrad", "adam", "rmsprop", "ftrl")
SHARDINGS = (
    "data_parallel",
    "table_owner",
    "table_destination",
    "column_owner",
    "column_destination",
    "row_contiguous_owner",
    "row_contiguous_destination",
    "row_cyclic_owner",
    "row_cyclic_destination",
    "mixed",
)
STRATEGIES = ("auto", "basic", "memory_balanced", "memory_optimized")
# (rows, dim): odd widths, one table with as few rows as workers, one dim as small as the workers.
TABLE_SHAPES = ((37, 5), (4, 8), (61, 7), (23, 4))


@dataclass(frozen=True)
class Case:
    """sharding: one of SHARDINGS or STRATEGIES. batch: "even", "uneven" or "empty" (a rank without samples)."""

    sharding: str
    rule: str = "adagrad"
    dp_input: bool = True
    batch: str = "even"
    invalid_ids: str = "raise"
    thresholds: tuple[int | None, int | None, int | None] = (None, None, None)
    wire_dtype: str = "float32"
    entry: str = "tape"  # "tape", "optimizer" or "keras" (a plain Keras optimizer)
    whole: bool = False  # every (table, kind) pair; else every other one, which half depends on the case

    @property
    def name(self) -> str:
        parts = [self.sharding, self.rule]
        parts += ["mp_input"] if not self.dp_input else []
        parts += [p for p in (self.batch,) if p != "even"]
        parts += [p for p in (self.invalid_ids,) if p != "raise"]
        parts += ["-".join(str(t) for t in self.thresholds)] if any(self.thresholds) else []
        parts += [self.wire_dtype] if self.wire_dtype != "float32" else []
        parts += [self.entry] if self.entry != "tape" else []
        parts += ["whole"] if self.whole else []
        return "/".join(parts)


def table_specs() -> tuple[TableSpec, ...]:
    """One table a combiner."""
    return tuple(
        TableSpec(f"t{i}", rows, dim, combiner)
        for i, ((rows, dim), combiner) in enumerate(zip(TABLE_SHAPES, COMBINERS, strict=True))
    )


def feature_kinds(case: Case) -> list[tuple[int, str]]:
    """(table, kind) of every input: combiners × kinds, tables in no order."""
    pairs = [(t, k) for k, t in itertools.product(KINDS, (2, 0, 3, 1))]
    if not case.whole:
        half = zlib.crc32(case.name.encode()) % 2
        pairs = [p for i, p in enumerate(pairs) if (i + i // 4) % 2 == half]
    # With model-parallel input a feature without combiner must be dense.
    return [
        (t, k)
        for t, k in pairs
        if case.dp_input or COMBINERS[t] is not None or k in ("one", "one2d", "fixed")
    ]


def feature_specs(case: Case) -> tuple[FeatureSpec, ...]:
    return tuple(
        FeatureSpec(f"f{i}_{kind}", f"t{table}", None) for i, (table, kind) in enumerate(feature_kinds(case))
    )


def explicit_plan(case: Case, size: int) -> ShardingPlan:
    """Every table cut as the case says; "mixed" gives each table another type."""
    tables = table_specs()
    kinds = [case.sharding] * len(tables)
    if case.sharding == "mixed":
        kinds = ["row_cyclic_destination", "data_parallel", "column_owner", "row_contiguous_owner"]
    placements = tuple(_placement(t, k, size, i) for i, (t, k) in enumerate(zip(tables, kinds, strict=True)))
    return ShardingPlan(size, tables, feature_specs(case), placements)


def _placement(table: TableSpec, kind: str, size: int, index: int) -> Placement:
    rows, columns = range(table.vocabulary_size), range(table.embedding_dim)
    pooling = Pooling.OWNER if kind.endswith("owner") else Pooling.DESTINATION
    if kind == "data_parallel":
        shards = tuple(Shard(table.name, r, rows, columns) for r in range(size))
        return Placement(table.name, ShardingType.DATA_PARALLEL, pooling, shards)
    if kind.startswith("table") or size == 1:
        # Dealt so that with 4 workers one rank holds two tables and one none.
        shard = Shard(table.name, (index // 2) % size if size > 2 else index % size, rows, columns)
        return Placement(table.name, ShardingType.TABLE_WISE, pooling, (shard,))
    if kind.startswith("column"):
        cuts = [i * table.embedding_dim // size for i in range(size + 1)]
        # Column order is not rank order.
        shards = tuple(
            Shard(table.name, (r + 1) % size, rows, range(cuts[r], cuts[r + 1])) for r in range(size)
        )
        return Placement(table.name, ShardingType.COLUMN_WISE, pooling, shards)
    if "cyclic" in kind:
        shards = tuple(
            Shard(table.name, r, range(r, table.vocabulary_size, size), columns) for r in range(size)
        )
    else:
        cuts = [i * table.vocabulary_size // size for i in range(size + 1)]
        shards = tuple(Shard(table.name, r, range(cuts[r], cuts[r + 1]), columns) for r in range(size))
    return Placement(table.name, ShardingType.ROW_WISE, pooling, shards)


def everyday_cases() -> list[Case]:
    """What `make test` runs: every sharding, rule, strategy, input path and policy at least once, in pairs."""
    cases = [Case(s, RULES[i % len(RULES)]) for i, s in enumerate(SHARDINGS)]
    cases += [Case("mixed", r, batch="uneven") for r in RULES]
    cases += [
        Case("column_owner", "rowwise_adagrad"),
        Case("column_destination", "rowwise_adagrad", batch="empty"),
    ]
    cases += [Case(s, "adagrad", thresholds=(30, 200, 40)) for s in STRATEGIES[::2]]
    cases += [Case(s, "adam") for s in STRATEGIES[1::2]]
    cases += [
        Case(s, "sgd", dp_input=False) for s in ("table_owner", "column_owner", "row_cyclic_owner", "mixed")
    ]
    cases += [Case("mixed", "adagrad", dp_input=False, batch="uneven")]
    cases += [Case(s, "adagrad", batch="empty") for s in ("table_owner", "row_cyclic_destination", "mixed")]
    cases += [Case("mixed", "adam", invalid_ids="clip"), Case("row_cyclic_owner", "adam", invalid_ids="zero")]
    cases += [Case("mixed", "adam", invalid_ids="zero", dp_input=False)]
    cases += [Case("mixed", "sgd", wire_dtype=w) for w in ("bfloat16", "float16")]
    cases += [Case("mixed", r, entry="optimizer") for r in ("adagrad", "rowwise_adagrad")]
    cases += [Case("table_owner", "sgd", entry="keras"), Case("mixed", "adagrad", entry="keras")]
    return list(dict.fromkeys(cases))


def short_cases() -> list[Case]:
    """What `make test` runs where a case costs more: every sharding, and what differs in the exchange."""
    cases = [Case(s, RULES[i % len(RULES)]) for i, s in enumerate(SHARDINGS)]
    cases += [Case("mixed", "adam", batch="empty"), Case("mixed", "sgd", wire_dtype="bfloat16")]
    cases += [
        Case("mixed", "adagrad", dp_input=False, batch="uneven"),
        Case("column_owner", "rowwise_adagrad"),
    ]
    cases += [Case("memory_balanced", "adagrad", thresholds=(30, 200, 40)), Case("auto", "adam")]
    return cases


def few_cases() -> list[Case]:
    """What `make test` runs where four workers share two cores and a slow exchange."""
    cases = [Case("mixed", "adagrad", batch="uneven"), Case("row_cyclic_destination", "adam")]
    return [*cases, Case("column_owner", "rowwise_adagrad"), Case("mixed", "sgd", dp_input=False)]


def all_cases() -> list[Case]:
    """What `make test-all` runs: the whole product."""
    cases = everyday_cases()
    cases += [
        Case(s, r, dp_input, batch, whole=True)
        for s in (*SHARDINGS, *STRATEGIES)
        for r in RULES
        for dp_input in (True, False)
        for batch in ("even", "uneven", "empty")
    ]
    return list(dict.fromkeys(cases))


SETS = {"everyday": everyday_cases, "short": short_cases, "few": few_cases, "all": all_cases}
