"""Synthetic clicks written as Criteo text, so that readers can be tried end to end at any size."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv

from .synthetic import RawClicks, SyntheticClicks

_OPTIONS = csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
_BYTE_AS_HEX = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), "S2")


def write_criteo_tsv(
    path: str | os.PathLike[str],
    table: SyntheticClicks,
    start: int = 0,
    stop: int | None = None,
    chunk: int = 65536,
) -> int:
    """Writes rows [start, stop) of `table` (default: all) to `path` (gzip if .gz); returns their number.

    Missing values are empty fields, ids are written as `id_to_hex_value` says. Raises ValueError for a bad
    range.
    """
    stop = table.num_rows if stop is None else stop
    if not 0 <= start <= stop <= table.num_rows:
        raise ValueError(f"Rows must be in [0, {table.num_rows}]. Received: start={start}, stop={stop}.")
    target = Path(path)
    with gzip.open(target, "wb", compresslevel=1) if target.suffix == ".gz" else target.open("wb") as file:
        for first in range(start, stop, chunk):
            csv.write_csv(_arrow(table.raw(np.arange(first, min(first + chunk, stop)))), file, _OPTIONS)
    return stop - start


def id_to_hex_value(ids: NDArray[np.int64]) -> NDArray[np.uint32]:
    """The 32-bit value written for an id below 2^32, one to one: the finaliser of MurmurHash3 (Appleby)."""
    h = ids.astype(np.uint32)
    h ^= h >> np.uint32(16)
    h *= np.uint32(0x85EBCA6B)
    h ^= h >> np.uint32(13)
    h *= np.uint32(0xC2B2AE35)
    h ^= h >> np.uint32(16)
    return h


def _arrow(raw: RawClicks) -> Any:
    arrays = [pa.array(raw.labels.astype(np.int8))]
    arrays += [pa.array(raw.numbers[:, i], mask=raw.missing[:, i]) for i in range(raw.numbers.shape[1])]
    arrays += [_hex_array(raw.ids[:, i]) for i in range(raw.ids.shape[1])]
    return pa.table(arrays, names=[str(i) for i in range(len(arrays))])


def _hex_array(ids: NDArray[np.int64]) -> Any:
    octets = id_to_hex_value(ids).astype(">u4").view(np.uint8)
    texts = _BYTE_AS_HEX[octets].view("S8")
    return pa.array(texts, type=pa.binary(), mask=ids == 0)
