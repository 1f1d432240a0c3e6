"""Counter-based pseudo-random numbers and hashing to buckets: pure, vectorised functions."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def mix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Finaliser of splitmix64, a bijection of 64 bits (Steele et al., Fast Splittable PRNGs, 2014)."""
    z: NDArray[np.uint64] = values ^ (values >> np.uint64(30))
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def key64(*parts: int) -> int:
    """One 64-bit key from several integers, order mattering."""
    key = 0
    for part in parts:
        key = int(mix64(np.array([(key + _GOLDEN + part) & _MASK], np.uint64))[0])
    return key


def counter_bits(key: int, rows: NDArray[np.int64], slots: int) -> NDArray[np.uint64]:
    """Random bits for (key, row, slot), uint64 [len(rows), slots].

    Each row seeds a splitmix64 sequence; slot s is its s-th value. So any row can be drawn alone, in any
    order.
    """
    state = mix64(rows.astype(np.uint64) * np.uint64(_GOLDEN) ^ np.uint64(key))
    steps = np.arange(1, slots + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    return mix64(state[:, np.newaxis] + steps)


def unit_interval(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Uniform in the open interval (0, 1), 53 bits."""
    result: NDArray[np.float64] = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * (1.0 / (1 << 53))
    return result


def normal_pairs(
    u: NDArray[np.float64], v: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Two independent standard normals from two uniforms (Box and Muller, 1958)."""
    radius = np.sqrt(-2.0 * np.log(u))
    return radius * np.cos(2 * math.pi * v), radius * np.sin(2 * math.pi * v)


def hash_buckets(values: NDArray[np.int64], buckets: NDArray[np.int64]) -> NDArray[np.int32]:
    """Buckets, int32 [B, F]: 0 for missing (-1), else 1 … buckets[j] - 1 for feature j.

    values: int64 [B, F], -1 or in [0, 2^32). buckets: int64 [F], each in [2, 2^31]. The feature's number
    enters the hash, so that two features with one value do not collide alike.
    """
    salt = np.arange(1, values.shape[1] + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    hashed = mix64(values.astype(np.uint64) + salt) >> np.uint64(32)
    # Multiply-shift instead of a modulo: no division, and no worse spread for buckets far below 2^32.
    hashed *= (buckets - 1).astype(np.uint64)
    hashed >>= np.uint64(32)
    hashed += np.uint64(1)
    result: NDArray[np.int32] = hashed.astype(np.int32)
    result[values < 0] = 0
    return result
