"""A compiled Functional model and its data, for `fit` with and without pipeline."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import distributed_embeddings.dist_model_parallel as dmp

BATCHES, BATCH = 7, 6
TABLES = {
    "a": (50, 8, "sum", 3),
    "b": (20, 4, "mean", 2),
    "c": (30, 4, None, 1),
}  # rows, dim, combiner, ids a sample


def make_model(**compiling: Any) -> keras.Model:
    """The same model at every call."""
    keras.utils.set_random_seed(1)
    inputs = {n: keras.Input((h,) if h > 1 else (), dtype="int64", name=n) for n, (*_, h) in TABLES.items()}
    inputs["numbers"] = keras.Input((3,), name="numbers")
    layer = dmp.DistributedEmbedding(
        [dmp.Embedding(rows, dim, combiner=c, name=f"table_{n}") for n, (rows, dim, c, _) in TABLES.items()],
        strategy="basic",
        row_slice_threshold=100,
        feature_names=list(TABLES),
        name="tables",
    )
    vectors = layer({n: inputs[n] for n in TABLES})
    dense = keras.layers.Dense(4, activation="relu")(inputs["numbers"])
    dense = keras.layers.Dropout(0.1, seed=3)(dense)
    joined = keras.layers.Concatenate()([dense, *(vectors[n] for n in TABLES)])
    model = keras.Model(inputs, keras.layers.Dense(1)(joined))
    optimizer = dmp.DistributedOptimizer(keras.optimizers.Adam(0.05))
    model.compile(**{"optimizer": optimizer, "loss": "mse", "metrics": ["mae"], **compiling})
    return model


def arrays(batches: int = BATCHES, seed: int = 0) -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng, count = np.random.default_rng(100 + seed), batches * BATCH
    features = {n: rng.integers(0, r, (count, h) if h > 1 else count) for n, (r, _, _, h) in TABLES.items()}
    features["numbers"] = rng.normal(size=(count, 3)).astype("f")
    return features, rng.normal(size=(count, 1)).astype("f")


def data(batches: int = BATCHES, seed: int = 0) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(arrays(batches, seed)).batch(BATCH)


def fit(model: keras.Model, dataset: tf.data.Dataset, **options: Any) -> dict[str, list[float]]:
    return model.fit(dataset, **{"epochs": 1, "verbose": 0, "shuffle": False, **options}).history


def learnt(model: keras.Model) -> dict[str, Any]:
    """Tables, slots, dense weights and the optimizer's own, by name. Collective."""
    slots: dict[str, np.ndarray] = {}
    model.optimizer.inner_optimizer.save_own_variables(slots)
    dense = [v for layer in model.layers if layer.name != "tables" for v in layer.weights]
    return {
        "tables": model.get_layer("tables").get_weights(),
        "slots": slots,
        "dense": [v.numpy() for v in dense],
        "optimizer": [v.numpy() for v in model.optimizer.wrapped.variables],
    }


def bits(values: Any) -> list[bytes]:
    return [np.asarray(v).tobytes() for v in keras.tree.flatten(values)]
