"""Whole steps of tables under a `DistributedOptimizer`. Run as a program it prints what a step leaves, by rule.

python fused_steps.py THREADS
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import distributed_embeddings.dist_model_parallel as dmp
from distributed_embeddings.optimizers import RowwiseAdagrad

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1, weight_decay=0.01),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "nesterov": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1, clipvalue=1.5),
    "rowwise_adagrad": lambda: RowwiseAdagrad(0.1),
    "adam": lambda: keras.optimizers.Adam(0.1),
    "amsgrad": lambda: keras.optimizers.Adam(0.1, amsgrad=True),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.1, momentum=0.5, centered=True),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1, l1_regularization_strength=0.01),
}


class Steps:
    """Tables (rows, dim, combiner), input i of table tables_of[i], and an optimizer. Starts are the same every time."""

    def __init__(
        self,
        tables: Sequence[tuple[int, int, str | None]],
        tables_of: Sequence[int],
        optimizer: Any,
        dtype: str,
    ) -> None:
        layers = [
            dmp.Embedding(n, d, c, keras.initializers.RandomUniform(-1, 1, seed=k), name=f"table_{k}")
            for k, (n, d, c) in enumerate(tables)
        ]
        self.layer = dmp.DistributedEmbedding(
            layers, strategy="basic", input_table_map=tables_of, table_dtype=dtype
        )
        self.optimizer = dmp.DistributedOptimizer(optimizer)
        self.layer.build()

    def step(self, ids: Sequence[Any], weights: Sequence[Any] | None = None) -> None:
        """One step; each element of an output has a factor of its own, which depends on its place."""
        with tf.GradientTape() as tape:
            outputs = self.layer(list(ids), None if weights is None else list(weights))
            loss = tf.add_n([tf.reduce_sum(_values(o) * _factors(_values(o))) for o in outputs])
        variables = self.layer.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)

    def state(self) -> list[np.ndarray]:
        """The tables, then the slots, as the optimizer shows them; 16-bit floats as their bits."""
        tables = [_bits(v.numpy()) for v in self.layer.trainable_variables]
        slots = [np.asarray(v) for v in self.optimizer.inner_optimizer.variables]
        return [*tables, *slots]

    def digest(self) -> str:
        """Of the state's bits."""
        digest = hashlib.sha256()
        for array in self.state():
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


def _values(output: Any) -> tf.Tensor:
    return tf.cast(getattr(output, "flat_values", output), tf.float32)


def _factors(values: tf.Tensor) -> tf.Tensor:
    numbers = tf.range(tf.size(values, tf.int64))
    # By a power of two: TensorFlow's graphs divide by other constants in another way than eager mode.
    return tf.reshape(tf.cast(numbers * 7919 % 1009, tf.float32) / 512.0 - 1.0, tf.shape(values))


def _bits(values: np.ndarray) -> np.ndarray:
    return values.view(np.uint16) if values.dtype.itemsize == 2 else values


def hot_ids(rng: np.random.Generator, rows: int, shape: Any) -> np.ndarray:
    """Ids of which a few are very frequent: one row's occurrences are more than one task takes."""
    return np.minimum(rng.zipf(1.2, shape) - 1, rows - 1)


def main(threads: int) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    rng = np.random.default_rng(0)
    dense = tf.constant(hot_ids(rng, 5000, (20_000, 3)))
    lengths = rng.integers(0, 4, 20_000)
    flat = hot_ids(rng, 5000, int(lengths.sum()))
    ragged = tf.RaggedTensor.from_row_lengths(flat.astype(np.int32), lengths)
    weights = ragged.with_flat_values(rng.uniform(0, 2, flat.shape).astype(np.float32))
    for name, optimizer in OPTIMIZERS.items():
        for dtype in ("float32", "bfloat16") if name in ("sgd", "adagrad") else ("float32",):
            tables = [(5000, 16, "mean"), (5000, 20, "sum")]
            steps = Steps(tables, [0, 1, 1], optimizer(), dtype)
            step = tf.function(lambda steps=steps: steps.step([dense, ragged, dense], [None, weights, None]))
            step()
            print(name, dtype, steps.digest(), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
