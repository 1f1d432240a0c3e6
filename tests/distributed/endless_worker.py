"""fit on a dataset that does not know its length: how many operations it takes, against one that does.

`endless_worker.py` writes one line a rank.
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import distributed_embeddings.dist_model_parallel as dmp
from distributed_embeddings import comm

STEPS, EPOCHS = 6, 3


def generate():
    for i in range(STEPS):
        yield np.full([2], i, np.int64), np.ones([2, 1], np.float32)


def operations() -> int:
    running = comm.current()
    return (running._engine if running.backend == "mpi" else running._meeting)._sequence


def main() -> None:
    dmp.init()
    ids = keras.Input([], dtype="int64")
    tables = [keras.layers.Embedding(20, 4, name="a")]
    (rows,) = dmp.DistributedEmbedding(tables, "basic", row_slice_threshold=20)([ids])
    model = keras.Model(ids, keras.layers.Dense(1)(rows))
    model.compile(optimizer=dmp.DistributedOptimizer("adagrad"), loss="mse")
    spec = (tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, 1], tf.float32))
    unknown = tf.data.Dataset.from_generator(generate, output_signature=spec)
    known = unknown.apply(tf.data.experimental.assert_cardinality(STEPS))
    counts = []
    for dataset, epochs in ((known, 1), (known, EPOCHS), (unknown, EPOCHS)):  # the first builds
        before = operations()
        history = model.fit(dataset, epochs=epochs, verbose=0)
        counts.append(operations() - before)
        if len(history.history["loss"]) != epochs:
            raise RuntimeError(f"{len(history.history['loss'])} epochs of {epochs}")
    os.write(1, f"operations {counts[1]} {counts[2]}\n".encode())
    dmp.shutdown()


if __name__ == "__main__":
    main()
