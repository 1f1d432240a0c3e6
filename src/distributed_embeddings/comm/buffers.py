"""Receive buffers that TensorFlow takes without a copy, and that are used again.

TensorFlow aliases an array returned by `tf.numpy_function` when its data is 64-byte aligned, and copies it
otherwise. The first touch of fresh pages costs about as much as the exchange itself, so a buffer nobody else
refers to is reused.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

ALIGNMENT = 64
# Below this malloc serves from memory it already holds.
SMALLEST_POOLED_BYTES = 1 << 17
# What idle buffers may hold together.
LARGEST_IDLE_BYTES = 1 << 30

# References to an idle buffer as `sys.getrefcount` counts them: the pool's list, the loop's name, the call's
# argument.
_IDLE_REFERENCES = 3


def aligned_bytes(count: int) -> tuple[Array, Array]:
    """Return (owner, uint8 view of `count` bytes that starts at a multiple of 64)."""
    owner = np.empty(count + ALIGNMENT, np.uint8)
    offset = -owner.ctypes.data % ALIGNMENT
    return owner, owner[offset : offset + count]


def as_bytes(values: Array) -> Array:
    """View C-contiguous `values` as flat uint8: MPI knows neither bfloat16 nor float16, bytes it does."""
    return values.reshape(-1).view(np.uint8)


class BufferPool:
    """Buffers by size class. One is free when only the pool refers to it (views keep their owner alive)."""

    def __init__(self, largest_idle_bytes: int = LARGEST_IDLE_BYTES) -> None:
        self._owners: dict[int, list[Array]] = {}
        self._largest_idle_bytes = largest_idle_bytes
        self._lock = threading.Lock()

    def take(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an uninitialised, aligned array."""
        dtype = np.dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        array: Array = self._take_bytes(count).view(dtype).reshape(shape)
        return array

    def _take_bytes(self, count: int) -> Array:
        if count < SMALLEST_POOLED_BYTES:
            return aligned_bytes(count)[1]
        size = _size_class(count)
        with self._lock:
            for owner in self._owners.setdefault(size, []):
                if sys.getrefcount(owner) == _IDLE_REFERENCES:
                    offset = -owner.ctypes.data % ALIGNMENT
                    return owner[offset : offset + count]
            self._drop_idle(size)
            owner, view = aligned_bytes(size)
            self._owners[size].append(owner)
            return view[:count]

    def _drop_idle(self, wanted: int) -> None:
        """Forget idle buffers of other sizes until the new one fits under the limit."""
        idle = wanted
        for size in sorted(self._owners):
            kept = []
            owners = self._owners[size]
            while owners:
                owner = owners.pop()
                # One reference fewer than in a list: `owner` and the argument.
                free = sys.getrefcount(owner) == _IDLE_REFERENCES - 1
                if free and idle + size > self._largest_idle_bytes:
                    continue
                idle += size if free else 0
                kept.append(owner)
            self._owners[size] = kept


def _size_class(count: int) -> int:
    """Round up to a quarter of a power of two, so that parts of nearly equal length share buffers."""
    step = max(1 << (count.bit_length() - 3), 4096)
    return -(-count // step) * step
