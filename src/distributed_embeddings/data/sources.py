"""Where rows come from: tables (any row at any time) and streams (blocks in a fixed order)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from .features import DENSE, WEIGHTS_SUFFIX, Column, Columns, Feature


@runtime_checkable
class Table(Protocol):
    """Rows addressed by number, in any order, as often as wished.

    `take(rows)` is a pure function of `rows` (int64, values in [0, num_rows)): two workers asking for one
    row get the same values. Columns it returns: `dense` float32 [B, num_dense] when num_dense > 0; every
    feature of `features` by name, int64 ([B], [B, hotness] or `Ragged`); `<name>_weights` float32 for
    weighted features; labels float32 [B].
    """

    @property
    def features(self) -> tuple[Feature, ...]: ...
    @property
    def num_dense(self) -> int: ...
    @property
    def num_rows(self) -> int: ...
    def take(self, rows: NDArray[np.int64]) -> Columns: ...


@runtime_checkable
class Stream(Protocol):
    """Rows too many to hold or to count: `blocks()` yields all of them once, in the same order every time.

    Block sizes are the stream's own affair, but must be the same on every worker. Columns as for `Table`.
    """

    @property
    def features(self) -> tuple[Feature, ...]: ...
    @property
    def num_dense(self) -> int: ...
    def blocks(self) -> Iterator[Columns]: ...


class InMemoryTable:
    """A `Table` over NumPy columns held in memory.

    `columns` has an entry for `dense` (float [N, num_dense]; optional), for each feature and its weights,
    all of `num_rows` rows; labels has shape [N]. Integer columns may be stored narrow; batches are int64.
    Raises ValueError naming the column that is missing, unexpected or of another length.
    """

    def __init__(
        self, columns: Mapping[str, Column], labels: NDArray[np.float32], features: Sequence[Feature]
    ) -> None:
        expected = {feature.name for feature in features}
        expected |= {feature.name + WEIGHTS_SUFFIX for feature in features if feature.weighted}
        if set(columns) - {DENSE} != expected:
            raise ValueError(
                f"`columns` must be named as the features: {sorted(expected)} (and {DENSE!r}). "
                f"Received: {sorted(columns)}."
            )
        for name, column in columns.items():
            if len(column) != len(labels):
                raise ValueError(
                    f"Column {name!r} must have as many rows as `labels`: {len(labels)}. "
                    f"Received: {len(column)}."
                )
        self._columns = Columns(dict(columns), labels.astype(np.float32, copy=False))
        self._features = tuple(features)
        dense = columns.get(DENSE)
        self._num_dense = int(dense.shape[1]) if isinstance(dense, np.ndarray) else 0

    @property
    def features(self) -> tuple[Feature, ...]:
        return self._features

    @property
    def num_dense(self) -> int:
        return self._num_dense

    @property
    def num_rows(self) -> int:
        return len(self._columns)

    @property
    def labels(self) -> NDArray[np.float32]:
        return self._columns.labels

    def take(self, rows: NDArray[np.int64]) -> Columns:
        return self._columns.take(rows)

    def split(self, test_fraction: float, seed: int = 0) -> tuple[TableSlice, TableSlice]:
        """Seeded random split into (train, test); test has round(test_fraction * num_rows) rows."""
        if not 0 < test_fraction < 1:
            raise ValueError(f"`test_fraction` must be between 0 and 1. Received: {test_fraction}.")
        order = np.random.Generator(np.random.Philox(seed)).permutation(self.num_rows)
        num_test = round(test_fraction * self.num_rows)
        return TableSlice(self, np.sort(order[num_test:])), TableSlice(self, np.sort(order[:num_test]))


class TableSlice:
    """Some rows of another table: row i here is row `rows[i]` there; nothing is copied."""

    def __init__(self, table: Table, rows: NDArray[np.int64]) -> None:
        self._table, self._rows = table, rows

    @property
    def features(self) -> tuple[Feature, ...]:
        return self._table.features

    @property
    def num_dense(self) -> int:
        return self._table.num_dense

    @property
    def num_rows(self) -> int:
        return len(self._rows)

    def take(self, rows: NDArray[np.int64]) -> Columns:
        return self._table.take(self._rows[rows])
