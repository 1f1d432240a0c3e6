"""Stochastic rounding to bfloat16, as csrc/core/update.cc does it: the same bits."""

from __future__ import annotations

import tensorflow as tf

_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1, _MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def round_by_chance(
    values: tf.Tensor, rows: tf.Tensor, first_column: int, step: tf.Tensor | int, seed: int
) -> tf.Tensor:
    """float32 [n, dim] to the neighbouring bfloat16 values, up with the probability that the cut bits say.

    rows: int64 [n], of the whole table; first_column: of the whole table. The chance of an element depends on (seed,
    step, row, column) only. Infinities and NaNs stay. Gupta et al., "Deep learning with limited numerical precision",
    ICML 2015; bits: SplitMix64 by row, murmur3's finalizer by column.
    """
    step = tf.cast(step, tf.uint64)
    by_row = tf.cast(rows, tf.uint64)
    x = _u64(seed) + _u64(_GOLDEN) * (by_row + _u64(1)) + _u64(_MIX_1) * step
    x = _fold(x, 30) * _u64(_MIX_1)
    x = _fold(x, 27) * _u64(_MIX_2)
    row_chance = tf.cast(tf.bitwise.right_shift(_fold(x, 31), _u64(32)), tf.uint32)
    columns = tf.cast(tf.range(first_column, first_column + values.shape[1], dtype=tf.int64), tf.uint32)
    y = columns[None, :] * _u32(0x9E3779B9) + row_chance[:, None]
    y = _fold(y, 16) * _u32(0x85EBCA6B)
    y = _fold(y, 13) * _u32(0xC2B2AE35)
    chance = tf.bitwise.bitwise_and(_fold(y, 16), _u32(0xFFFF))
    bits = tf.bitcast(values, tf.uint32)
    moved = tf.bitwise.bitwise_and(bits + chance, _u32(0xFFFF0000))
    return tf.cast(tf.where(tf.math.is_finite(values), tf.bitcast(moved, tf.float32), values), tf.bfloat16)


def _fold(x: tf.Tensor, shift: int) -> tf.Tensor:
    return tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, tf.constant(shift, x.dtype)))


def _u64(value: int) -> tf.Tensor:
    return tf.constant(value, tf.uint64)


def _u32(value: int) -> tf.Tensor:
    return tf.constant(value, tf.uint32)
