"""What is placed (tables, features) and where it can go (topology): frozen values, never changed by planning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

COMBINERS = (None, "sum", "mean", "sqrtn")


@dataclass(frozen=True)
class TableSpec:
    """One embedding table.

    vocabulary_size: rows. embedding_dim: columns. combiner: how a bag of ids becomes one vector; None keeps them apart.
    dtype: a float dtype's name. slot_elements_per_row: optimizer state beside a row, in elements, for memory figures.
    initializer: a serialised Keras initializer, or None for Keras's default of `Embedding`.
    Raises ValueError naming the field.
    """

    name: str
    vocabulary_size: int
    embedding_dim: int
    combiner: str | None = None
    dtype: str = "float32"
    slot_elements_per_row: int = 0
    initializer: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class FeatureSpec:
    """One input: which table it reads, how many ids a sample has (hotness; None = ragged), whether ids carry weights."""

    name: str
    table: str
    hotness: int | None = 1
    weighted: bool = False


@dataclass(frozen=True)
class Topology:
    """The machines: workers, workers a node, memory in bytes a worker (None = not limited)."""

    world_size: int
    local_size: int | None = None
    device_memory: int | None = None
    host_memory: int | None = None
