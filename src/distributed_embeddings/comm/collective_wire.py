"""Shapes and dtypes of TensorFlow's collectives: few dtypes, equal parts."""

from __future__ import annotations

import tensorflow as tf

from .communicator import Tensor

_BITS = {1: tf.uint8, 2: tf.uint16, 4: tf.int32, 8: tf.int64}


def to_wire(values: Tensor) -> Tensor:
    """View rows [n, ...] as [n, width] in a dtype that every collective moves."""
    width = values.shape[1:].num_elements() if values.shape.rank else 1
    if width == 0:
        # The all-to-all of empty tensors crashes the process: rows without elements travel as one each.
        return tf.zeros([tf.shape(values)[0], 1], tf.int32)
    return to_bits(tf.reshape(values, [-1, width]))


def to_bits(values: Tensor) -> Tensor:
    """int32 or int64 of the same bits: floats too, so that moved NaNs and signed zeros stay what they are."""
    if values.dtype == tf.bool:
        return tf.cast(values, tf.int32)
    bits = _BITS[values.dtype.size]
    moved = values if values.dtype == bits else tf.bitcast(values, bits)
    return moved if bits.size >= 4 else tf.cast(moved, tf.int32)


def from_wire(wire: Tensor, like: Tensor, flat: bool = False) -> Tensor:
    """Invert `to_wire`: rows of the dtype and (unless `flat`) trailing shape of `like`."""
    if not flat and like.shape[1:].num_elements() == 0:
        return tf.zeros([tf.shape(wire)[0], *like.shape[1:]], like.dtype)
    if like.dtype == tf.bool:
        values = tf.cast(wire, tf.bool)
    else:
        bits = _BITS[like.dtype.size]
        narrow = wire if bits.size >= 4 else tf.cast(wire, bits)
        values = narrow if like.dtype == bits else tf.bitcast(narrow, like.dtype)
    if flat:
        return values
    return tf.reshape(values, tf.concat([tf.shape(values)[:1], tf.shape(like)[1:]], 0))


def pack(rows: Tensor, splits: Tensor, longest: Tensor) -> Tensor:
    """Cut [n, width] by `splits` [size] and pad every part to `longest` rows: [size, longest, width]."""
    parts = tf.split(rows, splits, num=splits.shape[0])
    return tf.stack([tf.pad(part, [[0, longest - tf.shape(part)[0]], [0, 0]]) for part in parts])


def unpack(parts: Tensor, counts: Tensor) -> Tensor:
    """Invert `pack`: the first `counts[s]` rows of every part, in order."""
    return tf.concat([parts[s, : counts[s]] for s in range(counts.shape[0])], 0)
