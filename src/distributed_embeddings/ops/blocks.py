"""Runs of rows of a variable to and from NumPy: for initial values and for whole tables, never in a step."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from distributed_embeddings.ops.rows import gather_rows, scatter_rows


def read_block(variable: tf.Variable, start: int, stop: int) -> np.ndarray:
    """Rows [start, stop) as NumPy, without a copy of the rest."""
    return gather_rows(variable, tf.range(start, stop, dtype=tf.int64)).numpy()


def write_block(variable: tf.Variable, start: int, values: np.ndarray) -> None:
    """Overwrite the rows from `start` on."""
    rows = tf.range(start, start + len(values), dtype=tf.int64)
    scatter_rows(variable, rows, tf.convert_to_tensor(values))
