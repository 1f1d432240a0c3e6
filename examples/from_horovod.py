"""A script written for Horovod: only its import is another. `demb launch -n 2 -- python examples/from_horovod.py`.

Before: `import horovod.tensorflow as hvd`.
"""

import numpy as np
import tensorflow as tf

import distributed_embeddings.dist_model_parallel as hvd

hvd.init()
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

rng = np.random.default_rng(hvd.rank())
features = rng.normal(size=[512, 8]).astype(np.float32)
targets = features @ np.arange(8, dtype=np.float32)[:, None]
dataset = tf.data.Dataset.from_tensor_slices((features, targets)).repeat().batch(32)

model = tf.keras.Sequential([tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(1)])
loss = tf.keras.losses.MeanSquaredError()
opt = tf.keras.optimizers.Adam(0.01 * hvd.size())


@tf.function
def training_step(images, labels, first_batch):
    with tf.GradientTape() as tape:
        probs = model(images, training=True)
        loss_value = loss(labels, probs)

    tape = hvd.DistributedGradientTape(tape)
    grads = tape.gradient(loss_value, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables))  # noqa: B905

    if first_batch:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(opt.variables, root_rank=0)
    return loss_value


for batch, (images, labels) in enumerate(dataset.take(200 // hvd.size())):
    loss_value = training_step(images, labels, batch == 0)
    if batch % 20 == 0 and hvd.local_rank() == 0:
        print(f"Step #{batch}\tLoss: {float(loss_value):.6f}")
