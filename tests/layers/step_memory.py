"""Trains one large table and prints how many bytes the process's peak grew while it did.

    python step_memory.py ROWS DIM OPTIMIZER STEPS

The first 20 steps do not count: pools of buffers, threads and arenas come into being in them.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

import distributed_embeddings.dist_model_parallel as dmp
from distributed_embeddings.layers.slots import SlotView

WARM_UP = 20


def memory(field: str) -> int:
    """VmRSS or VmHWM (the peak) of this process, bytes."""
    return 1024 * int(re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])


def forget_peak() -> None:
    """VmHWM becomes VmRSS: proc(5), clear_refs."""
    Path("/proc/self/clear_refs").write_text("5")


def main(rows: int, dim: int, name: str, steps: int) -> None:
    layer = dmp.Embedding(rows, dim, "sum", embeddings_initializer="zeros")
    layer.build()
    optimizer = dmp.DistributedOptimizer(name)
    before = memory("VmRSS")
    forget_peak()
    optimizer.build(layer.trainable_variables)
    print("slots", memory("VmRSS") - before, memory("VmHWM") - before, flush=True)
    beside = any(isinstance(v, SlotView) for v in optimizer.inner_optimizer.variables)

    @tf.function(reduce_retracing=True)
    def step(ids: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(ids) ** 2 + layer(ids))
        optimizer.apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)
        return loss

    rng = np.random.default_rng(0)
    for k in range(steps + WARM_UP):
        if k == WARM_UP:
            start = memory("VmRSS")
            forget_peak()
        # Batches differ in size, as ragged ones do.
        step(tf.constant(rng.integers(0, rows, (4096 - int(rng.integers(512)), 10))))
    print("beside" if beside else "apart", start, memory("VmHWM") - start)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
