"""From each rank's gradients to the gradients of the global batch: dense averaged, tables summed and made unique."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from distributed_embeddings import comm
from distributed_embeddings.comm import Communicator
from distributed_embeddings.layers.table_variable import note_reduction
from distributed_embeddings.ops.rows import sum_duplicates
from distributed_embeddings.sharding import batch_weight_variable, signature

Gradient = Any  # tf.Tensor, tf.IndexedSlices or None
_MARK = "_distributed_embeddings_reduced"


def reduce_gradients(gradients: Sequence[Gradient], variables: Sequence[Any]) -> list[Gradient]:
    """Gradients of the global batch, the same on every rank for what every rank has.

    Dense tensors: weighted mean over ranks, in one all-reduce a dtype. Shards of tables: already summed over ranks
    by the exchange. Replicas of tables and other IndexedSlices: gathered. All IndexedSlices come out with unique
    rows, float32 sums. A gradient that went through here before passes unchanged. Collective.
    """
    result = list(gradients)
    todo = [i for i, g in enumerate(gradients) if g is not None and not hasattr(_carrier(g), _MARK)]
    dense = [i for i in todo if not isinstance(gradients[i], tf.IndexedSlices)]
    sparse = [i for i in todo if isinstance(gradients[i], tf.IndexedSlices)]
    replicas = [i for i in sparse if not is_sharded(variables[i])]
    communicator = comm.current()
    note_reduction()
    if communicator.size > 1:
        dense = [i for i in dense if not _is_empty(variables[i])]
        _refuse_dense_shards([variables[i] for i in dense])
        _put(
            result, dense, _mean_dense(communicator, [gradients[i] for i in dense], _which(variables, dense))
        )
        sparse_phase = _which(variables, replicas)
        _put(result, replicas, _gather_sparse(communicator, [gradients[i] for i in replicas], sparse_phase))
    # Those that went through before too: their rows may have been changed since.
    for i, gradient in enumerate(result):
        if isinstance(gradient, tf.IndexedSlices):
            result[i] = sum_duplicates(gradient, int(variables[i].shape[0]))
    for i in todo:
        _mark(result[i])
    return result


def _refuse_dense_shards(variables: Sequence[Any]) -> None:
    """A lookup's part of such a gradient is of the global batch, a whole read's is not: their sum has no scale."""
    for variable in variables:
        if is_sharded(variable):
            raise ValueError(
                f"table '{variable.name}' is cut over {comm.size()} workers and must be read by looking ids up only. "
                "Received: a dense gradient, as of a regularizer that reads the whole table. Take such a loss of the "
                "vectors that were looked up."
            )


def _which(variables: Sequence[Any], chosen: Sequence[int]) -> str:
    """Which variables have a gradient, as part of a phase: ranks that differ in it must fail, not add up gradients of
    different variables. Blocks of tables differ between ranks and do not count."""
    common = [v for v in variables if not is_sharded(v) and not _is_empty(v)]
    position = {id(v): k for k, v in enumerate(common)}
    listed = [
        (position[id(variables[i])], tuple(variables[i].shape), str(variables[i].dtype)) for i in chosen
    ]
    return f"for variables {_ranges([k for k, _, _ in listed])} of {len(common)} ({signature(listed):08x})"


def _ranges(numbers: Sequence[int]) -> str:
    """0, 1, 2, 5 as "0-2,5"; long lists are cut."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    shown = [f"{a}" if a == b else f"{a}-{b}" for a, b in runs[:4]]
    return ",".join(shown) + (",…" if len(runs) > 4 else "")


def is_sharded(variable: Any) -> bool:
    """Whether a variable is a block of a table, or of its optimizer's slots, that other ranks do not have. (A whole
    table of a single worker is one too.)"""
    return bool(getattr(variable, "sharded", False))


def _mean_dense(communicator: Communicator, gradients: list[tf.Tensor], which: str) -> list[tf.Tensor]:
    """One all-reduce for all: float32, so that 16-bit gradients are summed in it; float64 in one of their own."""
    result: list[Any] = [None] * len(gradients)
    for dtype in (tf.float32, tf.float64):
        mine = [i for i, g in enumerate(gradients) if (g.dtype == tf.float64) == (dtype == tf.float64)]
        if not mine:
            continue
        weight = tf.cast(batch_weight_variable(), dtype) / communicator.size
        flat = tf.concat([tf.reshape(tf.cast(gradients[i], dtype), [-1]) for i in mine], 0)
        # multiply_no_nan: the mean loss of a rank without samples is NaN, and its weight is 0.
        total = communicator.all_reduce(
            tf.math.multiply_no_nan(flat, weight), "sum", phase=f"dense gradients {which}"
        )
        pieces = tf.split(total, tf.stack([tf.size(gradients[i]) for i in mine]), num=len(mine))
        for i, piece in zip(mine, pieces, strict=True):
            shaped = tf.reshape(piece, tf.shape(gradients[i]))
            shaped.set_shape(gradients[i].shape)
            result[i] = tf.cast(shaped, gradients[i].dtype)
    return result


def _gather_sparse(
    communicator: Communicator, slices: list[tf.IndexedSlices], which: str
) -> list[tf.IndexedSlices]:
    """Every rank's rows behind each other, weighted: two gathers for all replicas together, bytes by ids and not by
    rows."""
    if not slices:
        return []
    weight = batch_weight_variable() / communicator.size
    counts = tf.stack([tf.size(s.indices, tf.int64) for s in slices])
    widths = [_width(s) for s in slices]
    message = tf.concat([counts, *[tf.cast(s.indices, tf.int64) for s in slices]], 0)
    values = [tf.reshape(tf.cast(s.values, tf.float32), [-1]) for s in slices]
    all_ids, id_sizes = communicator.all_gather(message, phase=f"replica rows {which}")
    flat = tf.math.multiply_no_nan(tf.concat(values, 0), weight)
    all_values, value_sizes = communicator.all_gather(flat, phase="replica gradients")
    ids: list[list[tf.Tensor]] = [[] for _ in slices]
    vectors: list[list[tf.Tensor]] = [[] for _ in slices]
    sources = zip(
        tf.split(all_ids, id_sizes, num=communicator.size),
        tf.split(all_values, value_sizes, num=communicator.size),
        strict=True,
    )
    for part, values_part in sources:
        n = part[: len(slices)]
        sizes = n * tf.constant(widths, tf.int64)
        for k, piece in enumerate(tf.split(part[len(slices) :], n, num=len(slices))):
            ids[k].append(piece)
        for k, piece in enumerate(tf.split(values_part, sizes, num=len(slices))):
            vectors[k].append(tf.reshape(piece, [-1, *slices[k].values.shape[1:]]))
    return [
        tf.IndexedSlices(tf.concat(v, 0), tf.concat(i, 0), dense_shape=s.dense_shape)
        for i, v, s in zip(ids, vectors, slices, strict=True)
    ]


def _width(slices: tf.IndexedSlices) -> int:
    width = slices.values.shape[1:].num_elements()
    if width is None:
        raise ValueError(
            f"a sparse gradient must have a static inner shape. Received: values of shape {slices.values.shape}"
        )
    return int(width)


def _is_empty(variable: Any) -> bool:
    """The exchange's anchor has no elements. (Its gradient may have no static shape to tell.)"""
    return 0 in tuple(variable.shape)


def _put(result: list[Gradient], where: list[int], values: list[Gradient]) -> None:
    for i, value in zip(where, values, strict=True):
        result[i] = value


def _carrier(gradient: Gradient) -> Any:
    """Where the mark is kept: IndexedSlices are rebuilt by nest operations, their values tensor is not."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _mark(gradient: Gradient) -> None:
    setattr(_carrier(gradient), _MARK, True)
