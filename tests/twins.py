"""Grouped features of random shapes, and both ways of computing with them: by kernel and by its twin."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from distributed_embeddings.ops import kernels
from distributed_embeddings.ops.bags import make_bags
from distributed_embeddings.ops.features import Feature

DIMS = (1, 3, 7, 8, 16, 20, 33, 64, 128, 130)
COMBINERS = (None, "sum", "mean", "sqrtn")


def _available() -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return kernels.available()


needs_kernels = pytest.mark.skipif(not _available(), reason="compares the compiled kernels with their twins")


@contextlib.contextmanager
def without_kernels() -> Iterator[None]:
    """Inside, every op is its twin."""
    before = os.environ.get("DEMB_KERNELS")
    os.environ["DEMB_KERNELS"] = "off"
    try:
        yield
    finally:
        if before is None:
            del os.environ["DEMB_KERNELS"]
        else:
            os.environ["DEMB_KERNELS"] = before


@dataclass(frozen=True)
class DrawnFeature:
    """kind: "flat" [B], "dense" [B, h], "cube" [B, h, 2] or "ragged". hotness: ids a bag, at most if ragged."""

    table: int
    kind: str
    combiner: str | None
    weighted: bool
    dtype: str
    hotness: int


@dataclass(frozen=True)
class Drawn:
    """Tables [rows, dim] and features over them."""

    tables: list[tuple[int, int]]
    features: list[DrawnFeature]
    batch: int
    seed: int
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rng", np.random.default_rng(self.seed))

    def variables(self, dtype: Any = tf.float32) -> list[tf.Variable]:
        return [tf.Variable(tf.cast(self.rng.uniform(-1, 1, shape), dtype)) for shape in self.tables]

    def ids(self, invalid: float = 0.0) -> list[Any]:
        """The features' ids; a share of them lies outside of the tables."""
        return [self._ids(f, invalid) for f in self.features]

    def weights(self, ids: Sequence[Any]) -> list[Any]:
        """float32 like the ids, some of them 0; None where a feature has none."""
        return [self._weights(f, i) if f.weighted else None for f, i in zip(self.features, ids, strict=True)]

    def like(self, outputs: Sequence[Any]) -> list[np.ndarray]:
        """Random factors of the outputs' shapes."""
        return [self.rng.uniform(-1, 1, flat(o).shape).astype(np.float32) for o in outputs]

    def _ids(self, feature: DrawnFeature, invalid: float) -> Any:
        shapes = {"flat": [], "dense": [feature.hotness], "cube": [feature.hotness, 2]}
        rows = self.tables[feature.table][0]
        if feature.kind == "ragged":
            lengths = self.rng.integers(0, feature.hotness + 1, self.batch)
            values = self._values(rows, int(lengths.sum()), feature.dtype, invalid)
            return tf.RaggedTensor.from_row_lengths(values, lengths)
        return tf.constant(self._values(rows, [self.batch, *shapes[feature.kind]], feature.dtype, invalid))

    def _values(self, rows: int, shape: Any, dtype: str, invalid: float) -> np.ndarray:
        ids = self.rng.integers(0, rows, shape)
        wrong = self.rng.choice([-1, rows, rows + 7, -(2**31), 2**31 - 1], ids.shape)
        return np.where(self.rng.random(ids.shape) < invalid, wrong, ids).astype(dtype)

    def _weights(self, feature: DrawnFeature, ids: Any) -> Any:
        def like(values: tf.Tensor) -> tf.Tensor:
            weights = self.rng.uniform(0.25, 2.0, values.shape) * (self.rng.random(values.shape) < 0.9)
            return tf.constant(weights.astype(np.float32))

        if feature.kind == "ragged":
            return ids.with_flat_values(like(ids.flat_values))
        return like(ids)

    def make(self, ids: Sequence[Any], weights: Sequence[Any]) -> list[Feature]:
        """What the ops take."""
        made = []
        for k, (f, i, w) in enumerate(zip(self.features, ids, weights, strict=True)):
            bags = make_bags(i, w, feature=f"f{k}", pooled=f.combiner is not None)
            made.append(Feature(f"f{k}", f.table, f.combiner, bags))
        return made


def flat(value: Any) -> np.ndarray:
    """A dense or ragged tensor's values as NumPy, whatever its dtype."""
    return getattr(value, "flat_values", value).numpy()


@st.composite
def drawn(draw: Any, *, max_tables: int = 3, max_features: int = 5) -> Drawn:
    """Tables, features and a batch."""
    shapes = st.tuples(st.integers(1, 40), st.sampled_from(DIMS))
    tables = draw(st.lists(shapes, min_size=1, max_size=max_tables))
    features = draw(st.lists(_feature(len(tables)), min_size=1, max_size=max_features))
    return Drawn(tables, features, draw(st.integers(0, 9)), draw(st.integers(0, 2**31)))


@st.composite
def _feature(draw: Any, tables: int) -> DrawnFeature:
    combiner = draw(st.sampled_from(COMBINERS))
    kinds = ("flat", "dense", "ragged") if combiner else ("flat", "dense", "ragged", "cube")
    return DrawnFeature(
        draw(st.integers(0, tables - 1)),
        draw(st.sampled_from(kinds)),
        combiner,
        draw(st.booleans()),
        draw(st.sampled_from(("int32", "int64"))),
        draw(st.integers(0, 6)),
    )
