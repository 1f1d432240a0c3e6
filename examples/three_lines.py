"""Three lines that train on N workers: `demb launch -n 2 -- python examples/three_lines.py`.

Prints the mean loss over the global batch of every step: the same numbers on 1, 2 and 4 workers.
"""

import numpy as np
import tensorflow as tf

import distributed_embeddings.dist_model_parallel as dmp

TABLE_SIZES = [(1000, 8), (50, 8), (20000, 16), (3, 4)]
GLOBAL_BATCH, STEPS = 64, 10


class MyModel(tf.keras.Model):
    def __init__(self, table_sizes):
        super().__init__()
        self.embedding_layers = [tf.keras.layers.Embedding(n, d) for n, d in table_sizes]
        self.embedding_layers = dmp.DistributedEmbedding(self.embedding_layers)  # 1
        self.head = tf.keras.layers.Dense(1)

    def call(self, inputs):
        return self.head(tf.concat(self.embedding_layers(inputs), axis=-1))


dmp.init()
tf.keras.utils.set_random_seed(1)
model = MyModel(TABLE_SIZES)
loss = tf.keras.losses.BinaryCrossentropy(from_logits=True)
opt = tf.keras.optimizers.Adagrad(0.1)


@tf.function
def training_step(inputs, labels, first_batch):
    with tf.GradientTape() as tape:
        probs = model(inputs)
        loss_value = loss(labels, probs)
    tape = dmp.DistributedGradientTape(tape)  # 2
    grads = tape.gradient(loss_value, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables, strict=True))
    if first_batch:
        dmp.broadcast_variables(model.variables, root_rank=0)  # 3
    return loss_value


data = np.random.default_rng(7)
for step in range(STEPS):
    # Every worker draws the same global batch and takes its own part of it.
    ids = [data.integers(0, n, GLOBAL_BATCH) for n, _ in TABLE_SIZES]
    labels = (ids[0] % 2 == ids[1] % 2).astype(np.float32)[:, None]
    mine = slice(dmp.rank(), None, dmp.size())
    value = training_step([tf.constant(x[mine]) for x in ids], tf.constant(labels[mine]), step == 0)
    value = dmp.allreduce(value)
    if dmp.rank() == 0:
        print(f"step {step} loss {float(value):.6f}")
