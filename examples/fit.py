"""The three lines through `fit`: `demb launch -n 2 -- python examples/fit.py`.

The same losses on 1, 2 and 4 workers: each trains on its part of every global batch.
"""

import numpy as np
import tensorflow as tf

import distributed_embeddings.dist_model_parallel as dmp

TABLE_SIZES = [(1000, 8), (50, 8), (20000, 16), (3, 4)]
GLOBAL_BATCH, STEPS, EPOCHS = 64, 10, 3

dmp.init()
tf.keras.utils.set_random_seed(1)

inputs = [tf.keras.Input([], dtype="int64", name=f"feature_{i}") for i in range(len(TABLE_SIZES))]
embeddings = dmp.DistributedEmbedding([tf.keras.layers.Embedding(n, d) for n, d in TABLE_SIZES])
outputs = tf.keras.layers.Dense(1)(tf.keras.layers.Concatenate()(embeddings(inputs)))
model = tf.keras.Model(inputs, outputs)
model.compile(
    optimizer=dmp.DistributedOptimizer(tf.keras.optimizers.Adagrad(0.1)),
    loss=tf.keras.losses.BinaryCrossentropy(from_logits=True),
)

data = np.random.default_rng(7)
ids = [data.integers(0, n, [STEPS, GLOBAL_BATCH]) for n, _ in TABLE_SIZES]
labels = (ids[0] % 2 == ids[1] % 2).astype(np.float32)
# Of every global batch, this worker's part.
mine = slice(dmp.rank(), None, dmp.size())
local = [x[:, mine].reshape(-1) for x in ids]
history = model.fit(
    local,
    labels[:, mine].reshape(-1, 1),
    batch_size=GLOBAL_BATCH // dmp.size(),
    epochs=EPOCHS,
    shuffle=False,
    callbacks=[dmp.BroadcastGlobalVariablesCallback(0), dmp.MetricAverageCallback()],
    verbose=0,
)
if dmp.rank() == 0:
    for epoch, value in enumerate(history.history["loss"]):
        print(f"epoch {epoch} loss {value:.6f}")
