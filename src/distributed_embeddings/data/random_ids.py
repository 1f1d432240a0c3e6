"""Random ids for benchmarks: power-law ids of any features, numbers and labels without a truth behind them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ._power_law import coprime_step, power_law_ranks
from .features import DENSE, Column, Columns, Feature
from .hashing import counter_bits, key64, unit_interval


class RandomIds:
    """A `Table` whose row r is a pure function of (seed, r): any worker can draw any row.

    features: of fixed hotness, without weights. num_dense: uniform numbers in (-1, 1) a row. exponent: of the law
    P(rank) ~ rank^-exponent; the ranks are scattered over the ids. Labels are 1 in a quarter of the rows, by chance
    alone. Raises ValueError naming the argument.
    """

    def __init__(
        self,
        features: Sequence[Feature],
        num_dense: int,
        num_rows: int,
        *,
        exponent: float = 1.05,
        seed: int = 0,
    ) -> None:
        for feature in features:
            # rank * step must stay below 2^63.
            if feature.hotness is None or feature.weighted or feature.vocabulary_size >= 1 << 31:
                raise ValueError(
                    "`features` must have a fixed hotness, no weights and less than 2^31 ids. "
                    f"Received: {feature}"
                )
        if not features or num_dense < 0 or num_rows < 1 or exponent < 0:
            raise ValueError(
                "`features` must not be empty, `num_dense` and `exponent` not negative, `num_rows` at least 1. "
                f"Received: {len(features)} features, num_dense={num_dense}, num_rows={num_rows}, "
                f"exponent={exponent}"
            )
        self._features = tuple(features)
        self._num_dense, self._num_rows, self._exponent = num_dense, num_rows, exponent
        self._key = key64(seed, 0x72616E64)
        self._steps = [coprime_step(f.vocabulary_size) for f in features]

    @property
    def features(self) -> tuple[Feature, ...]:
        return self._features

    @property
    def num_dense(self) -> int:
        return self._num_dense

    @property
    def num_rows(self) -> int:
        return self._num_rows

    def take(self, rows: NDArray[np.int64]) -> Columns:
        slots = 1 + self._num_dense + sum(f.hotness or 1 for f in self._features)
        u = unit_interval(counter_bits(self._key, rows, slots))
        columns: dict[str, Column] = {}
        if self._num_dense:
            columns[DENSE] = (2 * u[:, 1 : self._num_dense + 1] - 1).astype(np.float32)
        at = 1 + self._num_dense
        for feature, step in zip(self._features, self._steps, strict=True):
            hotness = feature.hotness or 1
            size = np.array(feature.vocabulary_size, np.int64)
            # The frequent ids must not be neighbours: a table cut into ranges of rows would have all its load in one.
            ids = power_law_ranks(u[:, at : at + hotness], size, self._exponent) * step % size
            columns[feature.name] = ids[:, 0].copy() if hotness == 1 else ids
            at += hotness
        return Columns(columns, (u[:, 0] < 0.25).astype(np.float32))
