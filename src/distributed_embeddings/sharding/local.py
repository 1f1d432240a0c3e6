"""Features whose tables are whole and here: of one worker alone, or replicated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from distributed_embeddings.ops.bags import Bags
from distributed_embeddings.ops.features import Feature, GroupedTable
from distributed_embeddings.planner import ShardingPlan, TableSpec


class LocalFeatures(NamedTuple):
    """What a grouped lookup takes. used: the features' tables, in plan order; tables: the same for the op."""

    used: list[TableSpec]
    tables: list[GroupedTable]
    features: list[Feature]


def local_features(plan: ShardingPlan, bags: Mapping[int, Bags]) -> LocalFeatures:
    """bags: by feature index."""
    used = [t for t in plan.tables if any(plan.features[i].table == t.name for i in bags)]
    index = {t.name: k for k, t in enumerate(used)}
    features = []
    for i, own in bags.items():
        feature = plan.features[i]
        combiner = used[index[feature.table]].combiner
        features.append(Feature(feature.name, index[feature.table], combiner, own))
    tables = [GroupedTable(t.name, t.vocabulary_size, t.embedding_dim) for t in used]
    return LocalFeatures(used, tables, features)
