"""Criteo click logs as text: a label, 13 integers, 26 hexadecimal categories (Kaggle challenge, 1TB)."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ._blocks import read_blocks
from ._criteo_text import NUM_CATEGORICAL, NUM_DENSE, LineCounts, RawRows, parse_block
from .features import DENSE, Column, Columns, Feature
from .hashing import hash_buckets
from .paths import expand_paths
from .sources import InMemoryTable

_LOG = logging.getLogger(__name__)

CATEGORICAL_NAMES = tuple(f"C{i}" for i in range(1, NUM_CATEGORICAL + 1))


class CriteoTsv:
    """A `Stream` over Criteo text files (plain or gzip); `load()` makes a table of it.

    paths: file, glob, brace pattern or several (see `expand_paths`). buckets: ids of each categorical
    feature, one number or 26; id 0 is "missing", the others are hashed to 1 … buckets - 1. bad_rows:
    "raise" a ValueError `path:LINE: …` or "skip" and count them. strict: a row with fewer than 40 fields is
    bad, instead of being padded with missing fields. Blank lines are skipped; lines end in LF or CRLF.
    Raises FileNotFoundError naming the pattern, ValueError.
    """

    def __init__(
        self,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        buckets: int | Sequence[int] = 1000,
        strict: bool = False,
        bad_rows: Literal["raise", "skip"] = "raise",
        block_bytes: int = 4 << 20,
    ) -> None:
        if bad_rows not in ("raise", "skip"):
            raise ValueError(f"`bad_rows` must be 'raise' or 'skip'. Received: {bad_rows!r}.")
        self.paths = expand_paths(paths)
        self._buckets = _buckets_array(buckets)
        self._strict, self._skip_bad, self._block_bytes = strict, bad_rows == "skip", block_bytes
        self.padded_rows = 0
        self.skipped_rows = 0

    @property
    def features(self) -> tuple[Feature, ...]:
        return tuple(
            Feature(name, int(size)) for name, size in zip(CATEGORICAL_NAMES, self._buckets, strict=True)
        )

    @property
    def num_dense(self) -> int:
        return NUM_DENSE

    def raw_blocks(self) -> Iterator[RawRows]:
        """All rows as written; logs rows padded and skipped a file, and sets `padded_rows` and `skipped_rows`."""
        padded = skipped = 0
        for path in self.paths:
            counts = LineCounts()
            for block in read_blocks(path, self._block_bytes):
                yield parse_block(block, strict=self._strict, skip_bad=self._skip_bad, counts=counts)
            if counts.skipped:
                _LOG.warning("%s: skipped %d bad rows", path, counts.skipped)
            if counts.padded:
                _LOG.info("%s: padded %d rows cut short", path, counts.padded)
            padded, skipped = padded + counts.padded, skipped + counts.skipped
        self.padded_rows, self.skipped_rows = padded, skipped

    def blocks(self) -> Iterator[Columns]:
        for raw in self.raw_blocks():
            yield Columns(_named(*self._encode(raw)), raw.labels)

    def load(self) -> InMemoryTable:
        """All rows in memory, about 160 bytes a row."""
        labels, dense, ids = [np.empty(0, np.float32)], [_no_dense()], [_no_ids()]
        for raw in self.raw_blocks():
            block_dense, block_ids = self._encode(raw)
            labels.append(raw.labels)
            dense.append(block_dense)
            ids.append(block_ids)
        return InMemoryTable(
            _named(np.concatenate(dense), np.concatenate(ids)), np.concatenate(labels), self.features
        )

    def _encode(self, raw: RawRows) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        return log_transform(raw.numbers), hash_buckets(raw.categorical, self._buckets)


def log_transform(numbers: NDArray[np.float64]) -> NDArray[np.float32]:
    """log(max(x, 0) + 1) as in the DLRM reference code: NaN (missing) and negative numbers give 0."""
    return np.log1p(np.fmax(numbers, 0.0)).astype(np.float32)


def _named(dense: NDArray[np.float32], ids: NDArray[np.int32]) -> dict[str, Column]:
    """Columns as views of two row-major matrices: a random row costs a few cache lines, not one a column."""
    return {DENSE: dense, **{name: ids[:, i] for i, name in enumerate(CATEGORICAL_NAMES)}}


def _no_dense() -> NDArray[np.float32]:
    return np.empty((0, NUM_DENSE), np.float32)


def _no_ids() -> NDArray[np.int32]:
    return np.empty((0, NUM_CATEGORICAL), np.int32)


def _buckets_array(buckets: int | Sequence[int]) -> NDArray[np.int64]:
    sizes = [buckets] * NUM_CATEGORICAL if isinstance(buckets, int) else list(buckets)
    if len(sizes) != NUM_CATEGORICAL or not all(2 <= size <= 1 << 31 for size in sizes):
        raise ValueError(
            f"`buckets` must be one number or {NUM_CATEGORICAL} of them, each in [2, 2^31] "
            "(bucket 0 is 'missing'). "
            f"Received: {buckets}."
        )
    return np.array(sizes, np.int64)
