"""A step's cost follows its ids, not the table's rows: ratios of one interleaved run, printed as JSON.

    python benchmarks/bench_row_update.py [--rows 10000000] [--small-rows 100000] [--dim 16] [--ids 4096] [--repeats 15]

Three steps with Adagrad on the same ids: rows (lookup, sum of duplicates, row update) on the large and on the small
table, and plain Keras (keras.layers.Embedding and keras.optimizers.Adagrad) on the large one. Memory: about six times
the large table.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from distributed_embeddings import optimizers
from distributed_embeddings.ops.rows import gather_rows, sum_duplicates

Step = Callable[[tf.Tensor], tf.Tensor]


def row_step(rows: int, dim: int) -> Step:
    """One training step of one table through the row rule."""
    table = tf.Variable(lambda: tf.zeros([rows, dim]))
    rule = optimizers.Adagrad()
    slots = rule.create_slots((rows, dim), "table")

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def step(ids: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(gather_rows(table, ids) - 1.0))
        gradient = sum_duplicates(tape.gradient(loss, table))
        rule.apply(table, slots, gradient, 0.01, 1)
        return loss

    return step


def keras_step(rows: int, dim: int) -> Step:
    """The same step with nothing but Keras."""
    layer = keras.layers.Embedding(rows, dim, embeddings_initializer="zeros")
    layer.build()
    optimizer = keras.optimizers.Adagrad(0.01)
    optimizer.build(layer.trainable_variables)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def step(ids: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(layer(ids) - 1.0))
        optimizer.apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)
        return loss

    return step


def seconds(step: Step, ids: tf.Tensor) -> float:
    start = time.perf_counter()
    step(ids).numpy()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--small-rows", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--ids", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    steps = {
        "rows_large": (row_step(args.rows, args.dim), args.rows),
        "rows_small": (row_step(args.small_rows, args.dim), args.small_rows),
        "keras_large": (keras_step(args.rows, args.dim), args.rows),
    }
    rng = np.random.default_rng(0)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(args.repeats + 2):
        for name, (step, rows) in steps.items():
            # Keras's step sweeps the caches and the pages; the first run after it is not the step's own cost. Fresh ids:
            # rows that are in the cache already would flatter the large table.
            count = 1 if name == "keras_large" else 5
            runs = [seconds(step, tf.constant(rng.integers(0, rows, args.ids))) for _ in range(count)]
            if repeat >= 2:
                times[name] += runs
    medians = {name: statistics.median(runs) for name, runs in times.items()}
    report = {
        "seconds": medians,
        "large_over_small": medians["rows_large"] / medians["rows_small"],
        "keras_over_rows": medians["keras_large"] / medians["rows_large"],
        "settings": vars(args),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
