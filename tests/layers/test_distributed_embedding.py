"""`DistributedEmbedding` in Keras models, one process; several processes are in tests/distributed."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import distributed_embeddings.dist_model_parallel as dmp
from distributed_embeddings.layers.table_variable import LARGE_TABLE_ELEMENTS
from distributed_embeddings.ops import kernels
from distributed_embeddings.planner import ShardingPlan, make_plan

SIZES = [(50, 4), (7, 4), (30, 4)]


def embeddings(**kwargs):
    return [keras.layers.Embedding(n, d, name=f"e{i}", **kwargs) for i, (n, d) in enumerate(SIZES)]


def batch(size=8, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, n, size) for n, _ in SIZES], rng.integers(0, 2, (size, 1)).astype(np.float32)


def functional(layer, names=None):
    inputs = [keras.Input([], dtype="int64", name=f"x{i}") for i in range(len(SIZES))]
    outputs = layer(inputs if names is None else dict(zip(names, inputs, strict=True)))
    if names is not None:
        outputs = [outputs[n] for n in names]
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(outputs)))


class Subclassed(keras.Model):
    def __init__(self, layer):
        super().__init__()
        self.tables = layer
        self.head = keras.layers.Dense(1)

    def call(self, inputs):
        return self.head(tf.concat(self.tables(inputs), -1))


@pytest.mark.parametrize("named", [False, True])
def test_functional_model_equals_plain_keras(named):
    """Same weights, same training by fit, as keras.layers.Embedding with the row rule's exact twin SGD."""
    names = ["a", "b", "c"] if named else None
    layer = dmp.DistributedEmbedding(embeddings(), feature_names=names)
    model = functional(layer, names)
    plain = embeddings()
    inputs = [keras.Input([], dtype="int64") for _ in SIZES]
    joined = keras.layers.Concatenate()([e(x) for e, x in zip(plain, inputs, strict=True)])
    reference = keras.Model(inputs, keras.layers.Dense(1)(joined))
    layer.set_weights([e.embeddings.numpy() for e in plain])
    model.layers[-1].set_weights(reference.layers[-1].get_weights())
    ids, labels = batch(64)
    for m, optimizer in ((model, dmp.DistributedOptimizer("sgd")), (reference, keras.optimizers.SGD())):
        m.compile(optimizer=optimizer, loss="mse")
        m.fit(ids, labels, batch_size=16, epochs=2, shuffle=False, verbose=0)
    for got, embedding in zip(layer.get_weights(), plain, strict=True):
        np.testing.assert_allclose(got, embedding.embeddings.numpy(), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(
        model.predict(ids, verbose=0), reference.predict(ids, verbose=0), rtol=1e-5, atol=1e-7
    )
    model.evaluate(ids, labels, verbose=0)


def test_fit_traces_at_most_three_times():
    traces = []

    class Counting(Subclassed):
        def call(self, inputs):
            traces.append(1)
            return super().call(inputs)

    tables = [dmp.Embedding(n, d, "mean", name=f"r{i}") for i, (n, d) in enumerate(SIZES)]
    model = Counting(dmp.DistributedEmbedding(tables))
    model.compile(optimizer=dmp.DistributedOptimizer("adagrad"), loss="mse")

    def generate():
        rng = np.random.default_rng(0)
        for size in (8, 8, 8, 5, 8, 3, 8):
            ragged = tuple(
                tf.RaggedTensor.from_row_lengths(rng.integers(0, n, k.sum()), k)
                for (n, _), k in ((s, rng.integers(0, 5, size)) for s in SIZES)
            )
            yield ragged, tf.zeros([size, 1])

    spec = (tuple(tf.RaggedTensorSpec([None, None], tf.int64) for _ in SIZES), tf.TensorSpec([None, 1]))
    data = tf.data.Dataset.from_generator(generate, output_signature=spec)
    data = data.apply(tf.data.experimental.assert_cardinality(7))
    model.fit(data, epochs=2, shuffle=False, verbose=0)
    # Keras asks for shapes once; the train function is traced twice because the first call creates variables.
    assert len(traces) <= 3


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision(policy):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        layer = dmp.DistributedEmbedding(
            [dmp.Embedding(n, d, "sum", name=f"e{i}") for i, (n, d) in enumerate(SIZES)]
        )
        model = Subclassed(layer)
        model.compile(optimizer=dmp.DistributedOptimizer(keras.optimizers.Adagrad(0.1)), loss="mse")
        ids, labels = batch(32)
        losses = model.fit(ids, labels, batch_size=8, epochs=8, verbose=0).history["loss"]
    finally:
        keras.config.set_dtype_policy(before)
    assert losses[-1] < losses[0] and np.isfinite(losses).all()
    assert {w.dtype for w in layer.get_weights()} == {np.dtype(np.float32)}
    assert layer([x[:2] for x in ids])[0].dtype == policy.removeprefix("mixed_")


def test_loss_scale_skips_a_step_that_is_not_finite_and_halves_the_scale():
    layer = dmp.DistributedEmbedding(embeddings())
    optimizer = dmp.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), 8.0))
    layer.build()
    before = layer.get_weights()
    variables = layer.trainable_variables
    optimizer.build(variables)
    gradients = [
        tf.IndexedSlices(tf.fill([1, 4], float("inf")), tf.constant([1], tf.int64), [n, 4]) for n, _ in SIZES
    ]
    optimizer.apply(gradients, variables)
    np.testing.assert_array_equal(before[0], layer.get_weights()[0])
    assert float(optimizer.dynamic_scale) == 4.0
    gradients = [tf.IndexedSlices(tf.fill([1, 4], 4.0), tf.constant([1], tf.int64), [n, 4]) for n, _ in SIZES]
    optimizer.apply(gradients, variables)
    np.testing.assert_allclose(layer.get_weights()[0][1], before[0][1] - 1.0, rtol=1e-6)


def test_one_layer_called_twice_and_two_layers_in_one_model():
    """A row hit through both calls gets one update from the sum of both gradients."""
    layer = dmp.DistributedEmbedding([dmp.Embedding(9, 2, "sum", name="a")], name="first")
    other = dmp.DistributedEmbedding([dmp.Embedding(9, 2, "sum", name="a")], name="second")
    layer.build()
    other.build()
    layer.set_weights([np.zeros((9, 2), np.float32)])
    other.set_weights([np.zeros((9, 2), np.float32)])
    with tf.GradientTape() as tape:
        first = layer([tf.constant([[1, 1], [2, 3]])])[0]
        again = layer([tf.constant([[1, 4], [4, 4]])])[0]
        loss = (
            tf.reduce_sum(first) + 2.0 * tf.reduce_sum(again) + tf.reduce_sum(other([tf.constant([[1]])])[0])
        )
    variables = [*layer.trainable_variables, *other.trainable_variables]
    gradients = dmp.DistributedGradientTape(tape).gradient(loss, variables)
    assert sorted(gradients[0].indices.numpy().tolist()) == [1, 2, 3, 4]
    dmp.DistributedOptimizer(keras.optimizers.Adagrad(1.0)).apply_gradients(
        zip(gradients, variables, strict=True)
    )
    want = np.zeros((9, 2))
    for row, gradient in ((1, 4.0), (2, 1.0), (3, 1.0), (4, 6.0)):
        want[row] = -gradient / np.sqrt(0.1 + gradient**2)
    np.testing.assert_allclose(layer.get_weights()[0], want, rtol=1e-5)
    np.testing.assert_allclose(other.get_weights()[0][1], -1 / np.sqrt(1.1), rtol=1e-5)


def test_keras_file_round_trip_with_optimizer(tmp_path):
    layer = dmp.DistributedEmbedding(embeddings(), "memory_balanced", feature_names=["a", "b", "c"])
    model = functional(layer, ["a", "b", "c"])
    model.compile(optimizer=dmp.DistributedOptimizer(keras.optimizers.Adam(0.1)), loss="mse")
    ids, labels = batch(32)
    model.fit(ids, labels, batch_size=8, verbose=0, shuffle=False)
    dmp.save_model(model, tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again.predict(ids, verbose=0), model.predict(ids, verbose=0))
    for m in (model, again):
        m.fit(ids, labels, batch_size=8, verbose=0, shuffle=False)
    np.testing.assert_allclose(again.predict(ids, verbose=0), model.predict(ids, verbose=0), rtol=1e-6)
    restored = next(x for x in again.layers if isinstance(x, dmp.DistributedEmbedding))
    # The stored layers' configs differ in what Keras adds on serialising (a build config), not in the plan.
    assert restored.plan.digest == layer.plan.digest


def test_subclassed_model_weights_file(tmp_path):
    model, again = (Subclassed(dmp.DistributedEmbedding(embeddings())) for _ in range(2))
    ids, _ = batch()
    model(ids)
    model.save_weights(tmp_path / "w.weights.h5")
    again(ids)
    again.load_weights(tmp_path / "w.weights.h5")
    np.testing.assert_array_equal(model(ids), again(ids))


def test_config_keeps_an_explicit_plan():
    layer = dmp.DistributedEmbedding(embeddings())
    explicit = make_plan(layer.plan.tables, layer.plan.features, 1, "basic")
    config = dmp.DistributedEmbedding(embeddings(), explicit).get_config()
    restored = dmp.DistributedEmbedding.from_config(config)
    assert isinstance(restored._strategy, ShardingPlan) and restored.plan.digest == explicit.digest


def test_plan_for_other_workers_or_tables_is_refused():
    layer = dmp.DistributedEmbedding(embeddings())
    with pytest.raises(ValueError, match="this job's 1 workers. Received: world_size=2"):
        dmp.DistributedEmbedding(embeddings(), make_plan(layer.plan.tables, layer.plan.features, 2))
    with pytest.raises(ValueError, match="exactly the given tables"):
        dmp.DistributedEmbedding(embeddings()[:2], layer.plan)


def test_weights_from_memory_mapped_files(tmp_path):
    layer = dmp.DistributedEmbedding(embeddings(), input_table_map=[2, 0, 1, 0])
    values = [np.random.default_rng(i).normal(size=s).astype(np.float32) for i, s in enumerate(SIZES)]
    paths = []
    for i, value in enumerate(values):
        np.save(tmp_path / f"{i}.npy", value)
        paths.append(tmp_path / f"{i}.npy")
    layer.set_weights([paths[0], str(paths[1]), np.load(paths[2], mmap_mode="r")])
    for got, want in zip(layer.get_weights(), values, strict=True):
        np.testing.assert_array_equal(got, want)
    out = layer([tf.constant([3]), tf.constant([4]), tf.constant([5]), tf.constant([6])])
    for o, (t, row) in zip(out, [(2, 3), (0, 4), (1, 5), (0, 6)], strict=True):
        np.testing.assert_array_equal(o, values[t][[row]])
    with pytest.raises(ValueError, match=r"table 'e1' must have shape \(7, 4\). Received: shape=\(6, 4\)"):
        layer.set_weights([values[0], values[1][:6], values[2]])
    with pytest.raises(ValueError, match="must hold 3 tables. Received: 2"):
        layer.set_weights(values[:2])


def test_same_seed_same_table_and_full_scale():
    """glorot limits are those of the whole table; the values are those of any other layer with the seed."""
    tables = [
        dmp.DistributedEmbedding(
            [keras.layers.Embedding(1000, 8, keras.initializers.GlorotUniform(7), name="a")]
        )
        for _ in range(2)
    ]
    for t in tables:
        t.build()
    first, second = (t.get_weights()[0] for t in tables)
    np.testing.assert_array_equal(first, second)
    limit = np.sqrt(6 / 1008)
    assert 0.95 * limit < abs(first).max() <= limit


def test_plain_keras_optimizer_warns_once_for_a_large_table():
    rows = LARGE_TABLE_ELEMENTS // 8
    layer = dmp.DistributedEmbedding([keras.layers.Embedding(rows, 8, "zeros", name="big")])
    layer.build()
    optimizer = keras.optimizers.SGD(1.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(layer([tf.constant([1, 1, 5])])[0])
            variables = layer.trainable_variables
            gradients = dmp.DistributedGradientTape(tape).gradient(loss, variables)
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
    texts = [str(w.message) for w in caught if "DistributedOptimizer" in str(w.message)]
    assert len(texts) == 1 and "'big'" in texts[0]
    np.testing.assert_array_equal(layer.get_weights()[0][[1, 5, 6], 0], [-4.0, -2.0, 0.0])


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        ([], "non-empty list"),
        ([keras.layers.Dense(3)], "has no input_dim"),
        ([keras.layers.Embedding(3, 2, mask_zero=True, name="m")], "'m' must not have mask_zero"),
        ([keras.layers.Embedding(3, 2, embeddings_regularizer="l2", name="r")], "'r' cannot be sharded"),
        (
            [keras.layers.Embedding(3, 2, name="x"), keras.layers.Embedding(3, 2, name="x")],
            "two layers named 'x'",
        ),
    ],
)
def test_layers_that_cannot_be_sharded(layers, text):
    with pytest.raises(ValueError, match=text):
        dmp.DistributedEmbedding(layers)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"input_table_map": [0, 1, 3]}, r"input_table_map\[2\]=3"),
        ({"feature_names": ["a", "a", "b"]}, "3 different names"),
        ({"invalid_ids": "wrap"}, "`invalid_ids` must be one of"),
        ({"wire_dtype": "int8"}, "`wire_dtype` must be one of"),
        ({"strategy": "best"}, "strategy"),
    ],
)
def test_wrong_arguments(arguments, text):
    with pytest.raises(ValueError, match=text):
        dmp.DistributedEmbedding(embeddings(), **arguments)


@pytest.mark.parametrize("kernels_asked", ["on", "off"])
@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(
    "ids",
    [
        *[
            tf.RaggedTensor.from_row_splits([1, 2, 3], splits, validate=False)
            for splits in (
                [0, 1, 2, 3, 5],
                [0, 1, 1, 2, 2],
                [0, 2, 1, 2, 3],
                [1, 2, 2, 2, 3],
                [0, -2, 1, 2, 3],
            )
        ],
        tf.SparseTensor([[0, 0], [7, 0]], tf.constant([1, 2]), [4, 2]),
        tf.SparseTensor([[-1, 0], [0, 0]], tf.constant([1, 2]), [4, 2]),
    ],
    ids=["beyond", "short", "falling", "not from 0", "negative", "sparse row behind", "sparse row before"],
)
def test_splits_that_do_not_match_are_an_error(ids, traced, kernels_asked, monkeypatch):
    """Not wrong vectors, whichever ops compute them."""
    monkeypatch.setenv("DEMB_KERNELS", kernels_asked)
    layer = dmp.DistributedEmbedding([dmp.Embedding(50, 4, "sum", name="e")], feature_names=["bag"])
    call = tf.function(layer) if traced else layer
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"feature bag: row splits must begin at 0, never fall, and end at the number of ids, \d .*"
        r"Received: 5 splits from -?\d to \d",
    ):
        call([ids])


def test_inputs_that_do_not_fit_the_features():
    layer = dmp.DistributedEmbedding(embeddings(), feature_names=["a", "b", "c"])
    x = tf.constant([1])
    with pytest.raises(ValueError, match="Missing: \\['c'\\]. Not known: \\['d'\\]"):
        layer({"a": x, "b": x, "d": x})
    with pytest.raises(ValueError, match="Received: 2 entries"):
        layer([x, x])
    with pytest.raises(ValueError, match="feature 'b' must be integers of 8 to 64 bits"):
        layer([x, tf.constant([1.0]), x])
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="one batch size. Received on rank 0: a: 1, b: 2, c: 1"
    ):
        layer([x, tf.constant([1, 2]), x])


@pytest.mark.parametrize("policy", ["zero", "clip"])
def test_invalid_ids_are_counted(policy):
    layer = dmp.DistributedEmbedding(embeddings(), invalid_ids=policy)
    layer([tf.constant([1, 50, -1]), tf.constant([0, 7, 6]), tf.constant([0, 0, 0])])
    layer([tf.constant([99, 5, 5]), tf.constant([0, 1, 6]), tf.constant([0, 0, 0])])
    assert layer.invalid_id_counts() == {"e0": 3, "e1": 1, "e2": 0}


def test_ids_above_two_to_the_31_are_not_wrapped():
    layer = dmp.DistributedEmbedding(embeddings())
    x = tf.constant([1], tf.int64)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"table e0\): id 4294967297 is outside \[0, 50\)"
    ):
        layer([tf.constant([2**32 + 1], tf.int64), x, x])


def test_no_op_of_a_step_reads_a_whole_table():
    """Lookup, gradient and update never take a table's value: no ReadVariableOp on a table or slot."""
    layer = dmp.DistributedEmbedding([dmp.Embedding(1000, 4, "mean", name="a")])
    optimizer = dmp.DistributedOptimizer(keras.optimizers.Adam())
    layer.build()
    optimizer.build(layer.trainable_variables)

    @tf.function
    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer([ids])[0])
        variables = layer.trainable_variables
        gradients = dmp.DistributedGradientTape(tape).gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    graph = step.get_concrete_function(tf.TensorSpec([None, 3], tf.int64)).graph
    reads = [op for op in graph.get_operations() if op.type in ("ReadVariableOp", "DembReadBlock")]
    assert all(1000 not in op.outputs[0].shape.as_list() for op in reads)
    types = {op.type for op in graph.get_operations()}
    assert types >= ({"DembLookup", "DembUpdate"} if kernels.available() else {"ResourceGather"})


def test_policy_of_the_layers_is_adopted():
    tables = [dmp.Embedding(5, 2, "sum", invalid_ids="zero", name=n) for n in "ab"]
    layer = dmp.DistributedEmbedding(tables)
    np.testing.assert_array_equal(layer([np.array([[7]]), np.array([[-1]])])[0], np.zeros((1, 2)))
    with pytest.raises(ValueError, match="must be given where the embedding layers differ"):
        dmp.DistributedEmbedding([*tables, dmp.Embedding(5, 2, "sum", name="c")])


def test_bags_have_one_axis_and_sparse_weights_stand_where_their_ids_do():
    layer = dmp.DistributedEmbedding([dmp.Embedding(5, 2, "sum", name="a")])
    with pytest.raises(
        ValueError, match=r"'a', whose table has a combiner, must have shape \[B\] or \[B, h\]"
    ):
        layer([np.zeros((2, 2, 2), np.int64)])
    ids = tf.SparseTensor([[0, 0], [1, 1]], tf.constant([1, 2], tf.int64), [2, 2])
    weights = tf.SparseTensor([[0, 1], [1, 1]], [1.0, 2.0], [2, 2])
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="weights of feature 'a' must be where its ids are"
    ):
        layer([ids], [weights])


def test_rowwise_adagrad_by_name():
    assert dmp.DistributedOptimizer("rowwise_adagrad").wrapped.__class__ is dmp.RowwiseAdagrad


def test_bags_of_hotness_zero_are_empty_bags():
    for combiner in ("sum", "mean", "sqrtn"):
        layer = dmp.DistributedEmbedding([dmp.Embedding(5, 2, combiner, name="a")])
        np.testing.assert_array_equal(layer([np.zeros((3, 0), np.int64)])[0], np.zeros((3, 2)))


def test_a_built_layer_keeps_its_values():
    values = np.arange(12, dtype=np.float32).reshape(6, 2)
    built = keras.layers.Embedding(6, 2, weights=[values], name="pretrained")
    layer = dmp.DistributedEmbedding([built, keras.layers.Embedding(4, 2, name="fresh")])
    np.testing.assert_array_equal(layer.get_weights()[0], values)


def test_a_model_saved_before_training_loads(tmp_path):
    model = functional(dmp.DistributedEmbedding(embeddings()))
    model.compile(optimizer=dmp.DistributedOptimizer("adam"), loss="mse")
    dmp.save_model(model, tmp_path / "m.keras")
    with pytest.warns(UserWarning, match=r"start(s)? fresh|Skipping variable"):
        again = keras.saving.load_model(tmp_path / "m.keras")
    ids, labels = batch(8)
    np.testing.assert_array_equal(again.predict(ids, verbose=0), model.predict(ids, verbose=0))
    again.fit(ids, labels, verbose=0)


def test_a_table_unfrozen_later_gets_its_slots():
    layer = dmp.DistributedEmbedding([dmp.Embedding(5, 2, "sum", name="a")])
    layer.build()
    layer.set_weights([np.zeros((5, 2), np.float32)])
    optimizer = dmp.DistributedOptimizer(keras.optimizers.Adagrad(1.0))
    dense = keras.Variable(np.float32(1.0))
    optimizer.build([dense])
    with tf.GradientTape() as tape:
        loss = dense * tf.reduce_sum(layer([np.array([[2]])])[0])
    variables = [*layer.trainable_variables, dense]
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    np.testing.assert_allclose(layer.get_weights()[0][2], -1 / np.sqrt(1.1), rtol=1e-5)


@pytest.mark.parametrize("wrong", [None, [[1.0, 2.0]]])
def test_weights_that_are_no_arrays(wrong):
    layer = dmp.DistributedEmbedding([dmp.Embedding(5, 2, "sum", name="a")])
    with pytest.raises(ValueError, match=r"weights of table 'a' must have shape \(5, 2\)"):
        layer.set_weights([wrong])
    with pytest.raises(ValueError, match="must be a list of embedding layers. Received: Embedding"):
        dmp.DistributedEmbedding(dmp.Embedding(5, 2))
    with pytest.raises(ValueError, match="Received: optimizer=None"):
        dmp.DistributedOptimizer(None)
