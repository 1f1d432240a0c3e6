"""The pool gives aligned arrays, reuses what is free and nothing that is not."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from distributed_embeddings.comm.buffers import ALIGNMENT, SMALLEST_POOLED_BYTES, BufferPool


@given(st.lists(st.integers(0, 40), max_size=3), st.sampled_from(["int8", "float16", "int64", "bool"]))
def test_shape_dtype_alignment(shape: list[int], dtype: str) -> None:
    array = BufferPool().take(tuple(shape), dtype)
    assert array.shape == tuple(shape)
    assert array.dtype == np.dtype(dtype)
    assert array.size == 0 or array.ctypes.data % ALIGNMENT == 0


def test_a_free_buffer_is_reused_and_a_held_one_is_not() -> None:
    pool = BufferPool()
    first = pool.take((SMALLEST_POOLED_BYTES,), np.uint8)
    address = first.ctypes.data
    held = first[5:].view(np.int8)  # a view of a view
    del first
    second = pool.take((SMALLEST_POOLED_BYTES - 8,), np.uint8)
    assert second.ctypes.data != address
    held[...] = 1
    second[...] = 2
    assert (held == 1).all()
    del held
    third = pool.take((SMALLEST_POOLED_BYTES // 4,), np.float32)
    assert third.ctypes.data == address


def test_idle_buffers_of_other_sizes_are_dropped_at_the_limit() -> None:
    pool = BufferPool(largest_idle_bytes=4 * SMALLEST_POOLED_BYTES)
    for factor in (1, 2, 3):
        pool.take((factor * SMALLEST_POOLED_BYTES,), np.uint8)
    kept = pool.take((SMALLEST_POOLED_BYTES,), np.uint8)
    sizes = {size: len(owners) for size, owners in pool._owners.items() if owners}
    assert sum(size * count for size, count in sizes.items()) <= 5 * SMALLEST_POOLED_BYTES
    assert kept.size == SMALLEST_POOLED_BYTES
