"""What a source offers: named features, the values of a block of rows, and ragged values in NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]

DENSE = "dense"
"""Name of the numeric feature: float32 [B, num_dense], all numbers of a row side by side."""

WEIGHTS_SUFFIX = "_weights"
"""A weighted feature `x` comes with a float32 feature `x_weights` of the same row lengths."""


@dataclass(frozen=True)
class Feature:
    """One categorical input, enough to make a table for it.

    vocabulary_size: ids are in [0, vocabulary_size). hotness: ids a sample has (1: shape [B], h > 1: [B, h],
    None: ragged). weighted: a feature `<name>_weights` (float32, same lengths) comes with it.
    Raises ValueError.
    """

    name: str
    vocabulary_size: int
    hotness: int | None = 1
    weighted: bool = False

    def __post_init__(self) -> None:
        if self.vocabulary_size < 1:
            raise ValueError(
                f"`vocabulary_size` of feature {self.name!r} must be at least 1. "
                f"Received: {self.vocabulary_size}."
            )
        if self.hotness is not None and self.hotness < 1:
            raise ValueError(
                f"`hotness` of feature {self.name!r} must be None (ragged) or at least 1. "
                f"Received: {self.hotness}."
            )


@dataclass(frozen=True)
class Ragged:
    """Rows of many lengths: row i is `values[row_splits[i]:row_splits[i + 1]]`; row_splits int64 [B + 1]."""

    values: Array
    row_splits: NDArray[np.int64]

    @classmethod
    def from_lengths(cls, values: Array, lengths: NDArray[np.int64]) -> Ragged:
        return cls(values, np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)]))

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[Any]], dtype: Any) -> Ragged:
        flat = [value for row in rows for value in row]
        return cls.from_lengths(np.array(flat, dtype), np.array([len(row) for row in rows], np.int64))

    def __len__(self) -> int:
        return len(self.row_splits) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.row_splits)

    def take(self, rows: NDArray[np.int64]) -> Ragged:
        """The given rows, in the given order."""
        lengths = self.lengths[rows]
        splits = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
        # Position inside its own row + start of that row in the old values.
        offsets = np.arange(splits[-1], dtype=np.int64) + np.repeat(
            self.row_splits[:-1][rows] - splits[:-1], lengths
        )
        return Ragged(self.values[offsets], splits)


Column: TypeAlias = Array | Ragged


@dataclass(frozen=True)
class Columns:
    """A block of rows: features by name (arrays [B, …] or `Ragged`) and labels, float32 [B]."""

    features: Mapping[str, Column]
    labels: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: NDArray[np.int64]) -> Columns:
        """The given rows, in the given order; integer columns leave as int64, float columns as float32."""
        return Columns(
            {name: _take(column, rows) for name, column in self.features.items()}, self.labels[rows]
        )

    @staticmethod
    def concatenate(parts: Sequence[Columns]) -> Columns:
        """All rows of `parts` (at least one), in order."""
        if len(parts) == 1:
            return parts[0]
        names = parts[0].features
        return Columns(
            {name: _concatenate([part.features[name] for part in parts]) for name in names},
            np.concatenate([part.labels for part in parts]),
        )


def _take(column: Column, rows: NDArray[np.int64]) -> Column:
    if isinstance(column, Ragged):
        taken = column.take(rows)
        return Ragged(_widen(taken.values), taken.row_splits)
    return _widen(column[rows])


def _widen(values: Array) -> Array:
    return values.astype(np.int64 if values.dtype.kind in "iu" else np.float32, copy=False)


def _concatenate(columns: Sequence[Column]) -> Column:
    values: list[Array] = []
    lengths: list[NDArray[np.int64]] = []
    for column in columns:
        if isinstance(column, Ragged):
            values.append(column.values[column.row_splits[0] : column.row_splits[-1]])
            lengths.append(column.lengths)
        else:
            values.append(column)
    joined = np.concatenate(values)
    return Ragged.from_lengths(joined, np.concatenate(lengths)) if lengths else joined
