"""fit on a dataset that does not know its length: `endless_worker.py`. Prints one line a rank."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import distributed_embeddings.dist_model_parallel as dmp

STEPS, EPOCHS = 6, 3


def generate():
    for i in range(STEPS):
        yield np.full([2], i, np.int64), np.ones([2, 1], np.float32)


def main() -> None:
    dmp.init()
    ids = keras.Input([], dtype="int64")
    tables = [keras.layers.Embedding(20, 4, name="a")]
    (rows,) = dmp.DistributedEmbedding(tables, "basic", row_slice_threshold=20)([ids])
    model = keras.Model(ids, keras.layers.Dense(1)(rows))
    model.compile(optimizer=dmp.DistributedOptimizer("adagrad"), loss="mse")
    spec = (tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, 1], tf.float32))
    dataset = tf.data.Dataset.from_generator(generate, output_signature=spec)
    # A gather of each step meets the end of the dataset, which TensorFlow raises beside it.
    history = model.fit(dataset, epochs=EPOCHS, verbose=0)
    total = dmp.allreduce(tf.constant(1.0), op="sum")
    print(f"rank {dmp.rank()}: {len(history.history['loss'])} epochs, {int(model.optimizer.iterations)} steps, "
          f"{int(total)} workers", flush=True)
    dmp.shutdown()


if __name__ == "__main__":
    main()
