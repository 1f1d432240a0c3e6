"""Initial values of any block of a table: a value depends on (seed, table, row, column) only.

So a table is the same for any number of workers and any cut, no two shards are alike, the scale is the whole
table's, and no worker ever makes more than a block.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

BLOCK_ELEMENTS = 1 << 22
CUSTOM_BLOCK_ROWS = 1 << 14
Sampler = Callable[[np.ndarray, np.ndarray], np.ndarray]


def make_block_initializer(
    initializer: Any, table: str, shape: tuple[int, int], seed: int
) -> Callable[[range, range], np.ndarray]:
    """A function (rows, columns) → float32 [len(rows), len(columns)] for a Keras initializer of a table.

    shape: the whole table's. Random initializers of Keras are drawn from a hash of (seed, table, row, column); others
    are called for blocks of rows over all columns. Source of the hash: SplitMix64 (Steele et al., 2014).
    """
    constant = constant_value(initializer)
    if constant is not None:
        return lambda rows, columns: np.full((len(rows), len(columns)), constant, np.float32)
    key = _mix(np.uint64(seed & (2**64 - 1)) ^ np.uint64(zlib.crc32(table.encode())))
    sampler = _sampler(initializer, shape)
    if sampler is None:
        return _CustomBlocks(initializer, shape, int(key))

    def block(rows: range, columns: range) -> np.ndarray:
        cells = _counters(rows, columns, shape[1])
        return sampler(_mix(cells ^ key), _mix(cells ^ _mix(key))).astype(np.float32)

    return block


def constant_value(initializer: Any) -> float | None:
    """The one value an initializer fills with; None: it has more."""
    init = keras.initializers
    if type(initializer) is init.Constant:
        return float(initializer.value)
    return {init.Zeros: 0.0, init.Ones: 1.0}.get(type(initializer))


def row_blocks(rows: range, width: int, elements: int = BLOCK_ELEMENTS) -> Iterator[tuple[int, range]]:
    """Cut a shard's rows into blocks of about `elements` elements: (first local row, rows of the table)."""
    size = max(1, elements // max(1, width))
    for start in range(0, len(rows), size):
        yield start, rows[start : start + size]


def _counters(rows: range, columns: range, dim: int) -> np.ndarray:
    # uint64: tables with more than 2^31 elements have cells above 2^31.
    row = np.arange(rows.start, rows.stop, rows.step, dtype=np.uint64)[:, None] * np.uint64(dim)
    return row + np.arange(columns.start, columns.stop, dtype=np.uint64)[None, :]


def _mix(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        x = np.asarray(x, np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def _unit(bits: np.ndarray) -> np.ndarray:
    """64 random bits → float64 in (0, 1), never 0 or 1."""
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def _normal(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.sqrt(-2.0 * np.log(_unit(first))) * np.cos(2.0 * math.pi * _unit(second))


def _truncated_normal(first: np.ndarray) -> np.ndarray:
    """Standard normal cut at ±2, by the inverse of its distribution."""
    low, high = 0.022750131948179195, 0.9772498680518208
    return tf.math.ndtri(low + (high - low) * _unit(first)).numpy()


def _sampler(initializer: Any, shape: tuple[int, int]) -> Sampler | None:
    init = keras.initializers
    kind = type(initializer)
    if kind is init.RandomUniform:
        low, high = initializer.minval, initializer.maxval
        return lambda a, b: low + (high - low) * _unit(a)
    if kind is init.RandomNormal:
        return lambda a, b: initializer.mean + initializer.stddev * _normal(a, b)
    if kind is init.TruncatedNormal:
        return lambda a, b: initializer.mean + initializer.stddev * _truncated_normal(a)
    if isinstance(initializer, init.VarianceScaling):
        return _variance_scaling(initializer, shape)
    return None


def _variance_scaling(initializer: Any, shape: tuple[int, int]) -> Sampler:
    fans = {"fan_in": shape[0], "fan_out": shape[1], "fan_avg": (shape[0] + shape[1]) / 2}
    scale = initializer.scale / max(1.0, fans[initializer.mode])
    if initializer.distribution == "uniform":
        limit = math.sqrt(3.0 * scale)
        return lambda a, b: limit * (2.0 * _unit(a) - 1.0)
    if initializer.distribution == "untruncated_normal":
        return lambda a, b: math.sqrt(scale) * _normal(a, b)
    # 0.8796…: standard deviation of a standard normal cut at ±2, so that the variance is `scale` after the cut.
    return lambda a, b: math.sqrt(scale) / 0.87962566103423978 * _truncated_normal(a)


class _CustomBlocks:
    """Any other initializer: called with the shape of a block of rows, once a block, with a seed of its own where it
    has one. It sees blocks and not the table, so that no worker ever holds the table."""

    def __init__(self, initializer: Any, shape: tuple[int, int], key: int) -> None:
        self._initializer = initializer
        self._shape = shape
        self._key = key
        self._last: tuple[int, np.ndarray] | None = None

    def __call__(self, rows: range, columns: range) -> np.ndarray:
        out = np.empty((len(rows), len(columns)), np.float32)
        ids = np.arange(rows.start, rows.stop, rows.step)
        for number in range(
            rows.start // CUSTOM_BLOCK_ROWS, (ids[-1] // CUSTOM_BLOCK_ROWS) + 1 if len(ids) else 0
        ):
            inside = ids // CUSTOM_BLOCK_ROWS == number
            block = self._block(number)
            out[inside] = block[ids[inside] - number * CUSTOM_BLOCK_ROWS, columns.start : columns.stop]
        return out

    def _block(self, number: int) -> np.ndarray:
        if self._last is None or self._last[0] != number:
            rows = min(CUSTOM_BLOCK_ROWS, self._shape[0] - number * CUSTOM_BLOCK_ROWS)
            values = self._seeded(number)((rows, self._shape[1]), dtype="float32")
            self._last = (number, np.asarray(values, np.float32))
        return self._last[1]

    def _seeded(self, number: int) -> Any:
        config = self._initializer.get_config() if hasattr(self._initializer, "get_config") else {}
        if "seed" not in config:
            return self._initializer
        config["seed"] = int(_mix(np.uint64(self._key ^ number))) & 0x7FFFFFFF
        return type(self._initializer).from_config(config)
