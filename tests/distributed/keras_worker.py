"""Keras's ways through several workers: `keras_worker.py SCENARIO OUT`. Each rank writes OUT.<rank> as JSON or
fails."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import distributed_embeddings.dist_model_parallel as dmp

SIZES = [(40, 4), (7, 4), (90, 4)]


def make_model(strategy="basic", optimizer=None, **kwargs):
    """The same model in every process, except that dense weights start from the rank's own seed."""
    tables = [
        dmp.Embedding(n, d, "mean", keras.initializers.RandomNormal(seed=3), name=f"e{i}")
        for i, (n, d) in enumerate(SIZES)
    ]
    layer = dmp.DistributedEmbedding(tables, strategy, feature_names=["a", "b", "c"], name="tables", **kwargs)
    inputs = {n: keras.Input([2], dtype="int64", name=n) for n in "abc"}
    joined = keras.layers.Concatenate()([layer(inputs)[n] for n in "abc"])
    head = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(seed=dmp.rank()))
    model = keras.Model(inputs, head(joined))
    model.compile(optimizer=dmp.DistributedOptimizer(optimizer or keras.optimizers.Adagrad(0.1)), loss="mse")
    return model, layer


def data(samples: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    ids = {n: rng.integers(0, rows, [samples, 2]) for n, (rows, _) in zip("abc", SIZES, strict=True)}
    return ids, (ids["a"][:, :1] % 2).astype(np.float32)


def batches(samples: int, batch: int, per_rank: list[int]):
    """This rank's dataset of an uneven deal: of every global batch the rank's own part."""
    ids, labels = data(samples)
    start = sum(per_rank[: dmp.rank()])
    parts = []
    for begin in range(0, samples, batch):
        mine = slice(begin + start, min(begin + start + per_rank[dmp.rank()], samples, begin + batch))
        if mine.start < mine.stop:
            parts.append(({n: x[mine] for n, x in ids.items()}, labels[mine]))

    def generate():
        yield from parts

    spec = ({n: tf.TensorSpec([None, 2], tf.int64) for n in "abc"}, tf.TensorSpec([None, 1], tf.float32))
    dataset = tf.data.Dataset.from_generator(generate, output_signature=spec)
    return dataset.apply(tf.data.experimental.assert_cardinality(len(parts)))


def fit(out: Path) -> dict:
    """Uneven parts, a short last batch that one rank has nothing of; the file is saved from all ranks."""
    model, layer = make_model()
    per_rank = {1: [12], 2: [7, 5], 4: [5, 4, 2, 1]}[dmp.size()]
    dataset = dmp.even_batches(batches(52, 12, per_rank))
    callbacks = [dmp.BroadcastGlobalVariablesCallback(0)]
    model.fit(dataset, epochs=3, shuffle=False, verbose=0, callbacks=callbacks)
    dmp.save_model(model, out.with_suffix(".keras"))
    # A file of this job, loaded by this job, goes on like the model itself.
    again = keras.saving.load_model(out.with_suffix(".keras"))
    for m in (model, again):
        m.fit(dataset, epochs=1, shuffle=False, verbose=0)
    restored = again.get_layer("tables")
    for mine, theirs in zip(layer.get_weights(), restored.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-7)
    return {
        "tables": [w.tolist() for w in layer.get_weights()],
        "dense": [w.numpy().tolist() for w in model.layers[-1].weights],
        "local_parameters": int(sum(np.prod(v.shape) for v in layer.trainable_variables)),
    }


def error_of(action) -> str:
    """The text of the error an action raises here; the ranks compare theirs."""
    try:
        action()
    except (ValueError, tf.errors.OpError, RuntimeError) as error:
        return str(getattr(error, "message", error))
    return ""


def bad_id(out: Path) -> dict:
    _, layer = make_model("memory_balanced", row_slice_threshold=200, column_slice_threshold=100)
    ids, _ = data(4)
    if dmp.rank() == dmp.size() - 1:
        ids["c"][2, 1] = 90
        ids["c"][3, 0] = -5
    inputs = {n: tf.constant(x) for n, x in ids.items()}
    eager = error_of(lambda: layer(inputs))
    traced = error_of(lambda: tf.function(layer)(inputs))
    ids["c"] = np.clip(ids["c"], 0, 89)
    fine = layer(
        {n: tf.constant(x) for n, x in ids.items()}
    )  # all ranks failed together: the next step works
    return {"eager": eager, "traced": traced, "rows": int(fine["a"].shape[0])}


def other_kind(out: Path) -> dict:
    _, layer = make_model()
    ids, _ = data(4)
    inputs = {n: tf.constant(x) for n, x in ids.items()}
    if dmp.rank() == 1:
        inputs["b"] = tf.RaggedTensor.from_tensor(inputs["b"])
    return {"error": error_of(lambda: layer(inputs))}


def other_plan(out: Path) -> dict:
    return {"error": error_of(lambda: make_model("basic" if dmp.rank() == 0 else "memory_balanced"))}


def skip_together(out: Path) -> dict:
    """float16 loss scaling: an overflow on one rank skips the step on all."""
    model, layer = make_model(optimizer=keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), 8.0))
    layer.build(dict.fromkeys("abc", (4, 2)))
    before = layer.get_weights()
    variables = model.trainable_variables
    optimizer = model.optimizer
    optimizer.build(variables)
    bad = float("inf") if dmp.rank() == 1 else 1.0
    gradients = []
    for v in variables:
        if hasattr(v, "shard"):
            gradients.append(
                tf.IndexedSlices(tf.fill([1, v.shape[1]], bad), tf.constant([0], tf.int64), v.shape)
            )
        else:
            gradients.append(tf.zeros(v.shape))
    optimizer.apply(gradients, variables)
    same = all((a == b).all() for a, b in zip(before, layer.get_weights(), strict=True))
    return {"skipped": bool(same), "scale": float(optimizer.dynamic_scale.numpy())}


def plain_fit(out: Path) -> dict:
    """compile() with a plain Keras optimizer would let the dense weights drift apart."""
    model, _ = make_model()
    model.compile(optimizer="sgd", loss="mse")
    ids, labels = data(8)
    return {"error": error_of(lambda: model.fit(ids, labels, verbose=0))}


def broadcast_slots(out: Path) -> dict:
    """Horovod's habit broadcasts the optimizer too: dense slots become the root's, table slots stay each rank's own."""
    model, _ = make_model("basic", row_slice_threshold=20, optimizer=keras.optimizers.Adagrad(0.1))
    ids, labels = data(8)
    size, rank = dmp.size(), dmp.rank()
    model.fit({n: x[rank::size] for n, x in ids.items()}, labels[rank::size], verbose=0)
    before = [v.numpy() for v in model.optimizer.inner_optimizer._table_slots]
    dmp.broadcast_variables(model.optimizer.variables)
    after = [v.numpy() for v in model.optimizer.inner_optimizer._table_slots]
    return {"kept": all((a == b).all() for a, b in zip(before, after, strict=True)), "slots": len(before)}


def model_parallel_after_build(out: Path) -> dict:
    """dp_input=False: weights set before the first call; a feature without combiner; five samples on two ranks."""
    layer = dmp.DistributedEmbedding(
        [dmp.Embedding(9, 2, name="a"), dmp.Embedding(6, 3, name="b")], "basic", dp_input=False
    )
    values = [np.arange(18, dtype=np.float32).reshape(9, 2), -np.arange(18, dtype=np.float32).reshape(6, 3)]
    layer.set_weights(values)
    ids = {"a": np.array([[1, 2], [3, 4], [5, 6], [7, 8], [0, 1]]), "b": np.array([5, 4, 3, 2, 1])}
    outputs = layer([tf.constant(ids[n]) for n in layer.local_inputs])
    return {
        "given": list(layer.local_inputs),
        "a": outputs[0].numpy().tolist(),
        "b": outputs[1].numpy().tolist(),
    }


def other_gradients(out: Path) -> dict:
    """Ranks with gradients of different variables, of one shape: an error, never a sum of the two."""
    a, b = tf.Variable([1.0, 1.0]), tf.Variable([1.0, 1.0])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(10.0 * a) if dmp.rank() == 0 else tf.reduce_sum(b)
    return {"error": error_of(lambda: dmp.DistributedGradientTape(tape).gradient(loss, [a, b]))}


def learned_weights(out: Path) -> dict:
    """The gradient of per-id weights, for each pooling and combiner; the ranks' batches are uneven."""
    rng = np.random.default_rng(5)
    ids, factors = rng.integers(0, 9, [6, 3]), rng.normal(size=[6]).astype(np.float32)
    mine = {1: slice(0, 6), 2: (slice(0, 2), slice(2, 6))}[dmp.size()]
    mine = mine if dmp.size() == 1 else mine[dmp.rank()]
    result = {}
    for pooling in ("owner", "destination"):
        for combiner in ("sum", "mean", "sqrtn"):
            table = dmp.Embedding(9, 4, combiner, keras.initializers.RandomNormal(seed=3), name="t")
            options = {"row_slice_threshold": 1, "row_pooling": pooling} if dmp.size() > 1 else {}
            layer = dmp.DistributedEmbedding([table], "basic", **options)
            weights = tf.Variable([1.0, 0.5, 2.0])
            with tf.GradientTape() as tape:
                per_id = tf.tile(weights[None], [len(ids[mine]), 1])
                out_vectors = layer([tf.constant(ids[mine])], [per_id])[0]
                loss = tf.reduce_mean(tf.reduce_sum(out_vectors, 1) * factors[mine])
            gradient = dmp.DistributedGradientTape(tape).gradient(loss, [weights])[0]
            result[f"{pooling} {combiner}"] = gradient.numpy().tolist()
    return result


def same_name_rowwise(out: Path) -> dict:
    """Two layers, each with a table "t", of different dims, cut by columns: each row's statistic has its own dim."""
    layers = [
        dmp.DistributedEmbedding(
            [dmp.Embedding(10, dim, "sum", "zeros", name="t")],
            "basic",
            column_slice_threshold=10 * dim - 1,
            name=f"l{dim}",
        )
        for dim in (8, 4)
    ]
    with tf.GradientTape() as tape:
        loss = tf.add_n([tf.reduce_mean(x([tf.constant([[1]])])[0][:, :1] * 3.0) for x in layers])
    variables = [v for x in layers for v in x.trainable_variables]
    optimizer = dmp.DistributedOptimizer(dmp.RowwiseAdagrad(1.0))
    gradients = dmp.DistributedGradientTape(tape).gradient(loss, variables)
    optimizer.apply_gradients(zip(gradients, variables, strict=True))
    return {"first": [float(x.get_weights()[0][1, 0]) for x in layers]}


def functional_model_parallel(out: Path) -> dict:
    """dp_input=False in a functional model: a rank knows the shape of a feature that it is not given."""
    layer = dmp.DistributedEmbedding(
        [dmp.Embedding(9, 2, name="a"), dmp.Embedding(6, 2, name="b")], "basic", dp_input=False
    )
    inputs = [keras.Input([3], dtype="int64", name=n) for n in layer.local_inputs]
    model = keras.Model(inputs, keras.layers.Concatenate()(layer(inputs)))
    return {"shape": list(model([tf.ones([4, 3], tf.int64) for _ in inputs]).shape)}


def main() -> None:
    scenario, out = sys.argv[1], Path(sys.argv[2])
    dmp.init()
    result = globals()[scenario](out)
    Path(f"{out}.{dmp.rank()}").write_text(json.dumps(result))
    dmp.shutdown()


if __name__ == "__main__":
    main()
