"""A step's cost follows its ids, not the table's rows: ratios of one interleaved run, printed as JSON.

    python benchmarks/bench_row_update.py [--rows 10000000] [--ids 4096] [--steps-per-call 10] [--threads 1] …

Three steps with Adagrad: lookup, sum of duplicates and row update on the large and on the small table; and
plain Keras (keras.layers.Embedding, keras.optimizers.Adagrad) on the large one. Every step has fresh uniform
ids. Like Keras's `steps_per_execution`, one call of a tf.function runs several steps, all alike: the cost
of starting a function is no part of a step, and with 1 it is a large part of the row steps' time. Both ratios
suffer from a loaded machine: a row step is many small operations. Memory: about six times the large table.
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
    """One training step of one table through the row rule: int64 ids [n] → loss."""
    table = tf.Variable(lambda: tf.random.uniform([rows, dim], -0.05, 0.05))
    rule = optimizers.Adagrad()
    slots = rule.create_slots((rows, dim), "table")

    def step(ids: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(gather_rows(table, ids) - 1.0))
        rule.apply(rule.target(table, slots), sum_duplicates(tape.gradient(loss, table)), 0.01, 1)
        return loss

    return step


def keras_step(rows: int, dim: int) -> Step:
    """The same step with nothing but Keras."""
    layer = keras.layers.Embedding(rows, dim)
    layer.build()
    optimizer = keras.optimizers.Adagrad(0.01)
    optimizer.build(layer.trainable_variables)

    def step(ids: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(layer(ids) - 1.0))
        optimizer.apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)
        return loss

    return step


def several(step: Step) -> Step:
    """A tf.function over int64 ids [steps, n]."""

    @tf.function
    def call(ids: tf.Tensor) -> tf.Tensor:
        loss = tf.constant(0.0)
        for one in ids:
            loss += step(one)
        return loss

    return call


def seconds(call: Step, ids: tf.Tensor) -> float:
    """Seconds a step."""
    start = time.perf_counter()
    call(ids).numpy()
    return (time.perf_counter() - start) / ids.shape[0]


def measure(args: argparse.Namespace) -> dict[str, list[float]]:
    calls = {
        "rows_large": (several(row_step(args.rows, args.dim)), args.rows),
        "rows_small": (several(row_step(args.small_rows, args.dim)), args.small_rows),
        "keras_large": (several(keras_step(args.rows, args.dim)), args.rows),
    }
    rng = np.random.default_rng(0)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(args.repeats + 1):
        for name, (call, rows) in calls.items():
            shape = (args.steps_per_call, args.ids)
            # Keras sweeps all caches: the first call of a row step after it is not representative.
            count = 1 if name == "keras_large" else 5
            runs = [seconds(call, tf.constant(rng.integers(0, rows, shape))) for _ in range(count)]
            # The first round traces, and makes the pages of the tables present.
            times[name] += runs if repeat else []
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--small-rows", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--ids", type=int, default=4096)
    parser.add_argument("--steps-per-call", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    # As `demb launch -n 2` gives each worker on two cores. More threads help Keras's sweeps, and hurt small row steps.
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(args.threads)
    medians = {name: statistics.median(runs) for name, runs in measure(args).items()}
    report = {
        "seconds_per_step": medians,
        "large_over_small": medians["rows_large"] / medians["rows_small"],
        "keras_over_rows": medians["keras_large"] / medians["rows_large"],
        "settings": vars(args),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
