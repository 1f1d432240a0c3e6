"""Whole tables (or whole optimizer slots) out of and into shards, in chunks."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

import numpy as np
import tensorflow as tf

from distributed_embeddings.comm import Communicator
from distributed_embeddings.ops.block import Block
from distributed_embeddings.ops.initial_values import row_blocks
from distributed_embeddings.planner import Placement, Shard, ShardingType

Blocks = Mapping[Shard, Block]


def write_whole(blocks: Blocks, values: Any, shape: tuple[int, int], what: str) -> None:
    """Set this rank's blocks from a whole table: an array, a memory-mapped file, an HDF5 data set or the path of a .npy
    file. Only this rank's rows and columns are read. Raises ValueError for a wrong shape."""
    if isinstance(values, str | PathLike):
        values = np.load(values, mmap_mode="r")
    received = tuple(getattr(values, "shape", ()))
    if received != shape:
        kind = type(values).__name__
        raise ValueError(f"{what} must have shape {shape}. Received: shape={received} (of type {kind})")
    for shard, block in blocks.items():
        dtype = block.dtype.as_numpy_dtype
        for start, rows in row_blocks(shard.rows, block.width):
            part = values[rows.start : rows.stop : rows.step, _columns(shard, shape)]
            block.write(start, np.ascontiguousarray(part).astype(dtype))


def read_whole(
    comm: Communicator, placement: Placement, blocks: Blocks, shape: tuple[int, int], dtype: str
) -> np.ndarray:
    """A whole table as NumPy on every rank, gathered in chunks: one whole copy, never two. Collective."""
    out = np.empty(shape, tf.as_dtype(dtype).as_numpy_dtype)
    shards = placement.shards
    if placement.sharding is ShardingType.DATA_PARALLEL:
        # Every rank has the whole table; rank 0's is taken by all, so that all return the same.
        shards = tuple(s for s in shards if s.rank == 0)
    for shard in shards:
        columns = _columns(shard, shape)
        width = columns.stop - columns.start
        for start, rows in row_blocks(shard.rows, width):
            block = np.empty((len(rows), width), out.dtype)
            if shard.rank == comm.rank:
                block = blocks[shard].read(start, start + len(rows))
            if comm.size > 1:
                phase = f"whole table {shard.table}"
                block = comm.broadcast(tf.convert_to_tensor(block), shard.rank, phase=phase).numpy()
            out[rows.start : rows.stop : rows.step, columns] = block
    return out


def _columns(shard: Shard, shape: tuple[int, int]) -> slice:
    """The shard's columns; a slot with one value a row has one, whatever the table's columns."""
    if shape[1] == 1:
        return slice(0, 1)
    return slice(shard.columns.start, shard.columns.stop)
