"""`look_up` by kernel equals `look_up` by its twin, gradients too."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from distributed_embeddings.ops import kernels
from distributed_embeddings.ops.bags import make_bags
from distributed_embeddings.ops.block import Block
from distributed_embeddings.ops.features import Feature, GroupedTable, feature_arguments
from distributed_embeddings.ops.lookup import look_up
from twins import Drawn, DrawnFeature, drawn, flat, needs_kernels, without_kernels

pytestmark = needs_kernels


def _look_up(drawn, variables, ids, weights, policy="raise"):
    blocks = [Block.whole(v) for v in variables]
    tables = [GroupedTable(f"t{k}", *shape) for k, shape in enumerate(drawn.tables)]
    return look_up(blocks, tables, drawn.make(ids, weights), policy)


def _same(outputs, expected, **tolerance):
    tolerance = {"rtol": 2e-6, "atol": 2e-6, **tolerance}
    for out, twin in zip(outputs, expected, strict=True):
        assert type(out) is type(twin)
        assert out.dtype == tf.float32
        assert out.shape.as_list() == twin.shape.as_list()
        np.testing.assert_allclose(flat(out), flat(twin), **tolerance)


@settings(max_examples=60, deadline=None)
@given(
    drawn=drawn(),
    dtype=st.sampled_from((tf.float32, tf.bfloat16, tf.float16)),
    policy=st.sampled_from(("raise", "zero", "clip")),
)
def test_lookups_equal_the_twin(drawn, dtype, policy):
    variables = drawn.variables(dtype)
    ids = drawn.ids(invalid=0.0 if policy == "raise" else 0.3)
    weights = drawn.weights(ids)
    outputs, counts = _look_up(drawn, variables, ids, weights, policy)
    with without_kernels():
        expected, expected_counts = _look_up(drawn, variables, ids, weights, policy)
    _same(outputs, expected)
    assert counts.dtype == expected_counts.dtype
    assert counts.numpy().tolist() == expected_counts.numpy().tolist()


def _gradients(drawn, variables, ids, weights, factors, policy):
    """Outputs, gradients of the tables and of the weights that are there."""
    given = [w for w in weights if w is not None]
    watched = [getattr(w, "flat_values", w) for w in given]
    with tf.GradientTape() as tape:
        tape.watch(watched)
        outputs, _ = _look_up(drawn, variables, ids, weights, policy)
        loss = tf.add_n(
            [tf.reduce_sum(getattr(o, "flat_values", o) * c) for o, c in zip(outputs, factors, strict=True)]
        )
    tables, of_weights = tape.gradient(loss, [variables, watched])
    return outputs, tables, of_weights


def _dense(gradient, shape):
    """A table's gradient, dense in float64; None: zeros."""
    dense = np.zeros(shape)
    if gradient is not None:
        rows, values = gradient.indices.numpy(), tf.cast(gradient.values, tf.float64).numpy()
        np.add.at(dense, rows, values.reshape(len(rows), shape[1]))
    return dense


def _same_gradients(drawn, found, expected):
    for (gradient, twin), shape in zip(zip(found[1], expected[1], strict=True), drawn.tables, strict=True):
        np.testing.assert_allclose(_dense(gradient, shape), _dense(twin, shape), rtol=1e-5, atol=1e-5)
        if gradient is not None:
            rows = gradient.indices.numpy()
            assert (np.diff(rows) > 0).all(), "each row once"
            assert gradient.values.dtype == tf.float32
            assert gradient.dense_shape.numpy().tolist() == list(shape)
    for gradient, twin in zip(found[2], expected[2], strict=True):
        # Bags without ids: the twin does not look at the weights at all.
        expected_values = np.zeros(gradient.shape) if twin is None else twin.numpy()
        np.testing.assert_allclose(gradient.numpy(), expected_values, rtol=2e-5, atol=2e-5)


# Weights that are all 0, and an empty batch.
@example(Drawn([(3, 8)], [DrawnFeature(0, "dense", "sqrtn", True, "int64", 1)], 9, 0), "raise")
@example(Drawn([(3, 8)], [DrawnFeature(0, "ragged", "mean", True, "int32", 2)], 0, 0), "zero")
@settings(max_examples=40, deadline=None)
@given(drawn=drawn(), policy=st.sampled_from(("raise", "zero", "clip")))
def test_gradients_equal_the_twin(drawn, policy):
    variables = drawn.variables()
    ids = drawn.ids(invalid=0.0 if policy == "raise" else 0.3)
    weights = drawn.weights(ids)
    with without_kernels():
        factors = drawn.like(_look_up(drawn, variables, ids, weights, policy)[0])
        expected = _gradients(drawn, variables, ids, weights, factors, policy)
    found = _gradients(drawn, variables, ids, weights, factors, policy)
    _same(found[0], expected[0])
    _same_gradients(drawn, found, expected)


@settings(max_examples=8, deadline=None)
@given(drawn=drawn(), policy=st.sampled_from(("raise", "zero", "clip")))
def test_a_function_gives_the_bits_of_eager_mode(drawn, policy):
    variables = drawn.variables()
    ids = drawn.ids(invalid=0.0 if policy == "raise" else 0.3)
    weights = drawn.weights(ids)
    factors = drawn.like(_look_up(drawn, variables, ids, weights, policy)[0])
    eager = _gradients(drawn, variables, ids, weights, factors, policy)

    @tf.function(reduce_retracing=True)
    def traced(ids, weights, factors):
        return _gradients(drawn, variables, ids, weights, factors, policy)

    found = traced(ids, weights, factors)
    for a, b in zip(tf.nest.flatten(found, True), tf.nest.flatten(eager, True), strict=True):
        assert (flat(a) == flat(b)).all()


def test_shapes_are_known_inside_a_function():
    table = tf.Variable(tf.zeros([5, 3]))
    shapes = []

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 4], tf.int32),
            tf.RaggedTensorSpec([None, None], tf.int64),
            tf.TensorSpec([None, 4, 2], tf.int64),
        ]
    )
    def step(dense, ragged, cube):
        features = [
            Feature("dense", 0, "mean", make_bags(dense, feature="dense", pooled=True)),
            Feature("ragged", 0, "sum", make_bags(ragged, feature="ragged", pooled=True)),
            Feature("cube", 0, None, make_bags(cube, feature="cube")),
        ]
        outputs, _ = look_up([Block.whole(table)], [GroupedTable("t", 5, 3)], features)
        shapes.extend(o.shape.as_list() for o in outputs)

    step.get_concrete_function()
    assert shapes == [[None, 3], [None, 3], [None, 4, 2, 3]]


@settings(max_examples=30, deadline=None)
@given(drawn=drawn(), where=st.integers(0, 2**31))
def test_the_error_for_an_invalid_id_reads_as_the_twins(drawn, where):
    variables = drawn.variables()
    ids = drawn.ids()
    ids = [_spoil(i, f, drawn, where + k) for k, (f, i) in enumerate(zip(drawn.features, ids, strict=True))]
    weights = drawn.weights(ids)
    if not any((flat(i) < 0).any() for i in ids):
        return
    texts = []
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        _look_up(drawn, variables, ids, weights)
    texts.append(_core(error.value.message))
    with without_kernels(), pytest.raises(tf.errors.InvalidArgumentError) as error:
        _look_up(drawn, variables, ids, weights)
    texts.append(_core(error.value.message))
    assert texts[0] == texts[1]
    assert "row " in texts[0]


def _spoil(ids, feature, drawn, where):
    """Some of the feature's ids become negative."""
    values = flat(ids).copy()
    if values.size and where % 3:
        values.reshape(-1)[where % values.size :: 4] = -1 - where % 5
    return ids.with_flat_values(values) if feature.kind == "ragged" else tf.constant(values)


def _core(message):
    """From the feature's name to the end of the sentence: TensorFlow adds the name of its op."""
    start = message.index("feature ")
    return message[start : message.index("). ", start) + 3]


@pytest.mark.parametrize("lengths", [[2, 0, 1], [0, 0, 3], [3, 0, 0], [1, 1, 1]])
def test_the_error_names_the_row_of_a_ragged_input_without_combiner(lengths):
    ids = tf.RaggedTensor.from_row_lengths(tf.constant([0, 1, 99], tf.int64), lengths)
    features = [Feature("f", 0, None, make_bags(ids, feature="f"))]
    row = max(k for k, n in enumerate(lengths) if n)
    table = tf.Variable(tf.zeros([9, 2]))
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"id 99 is outside \[0, 9\) at row {row} of"):
        look_up([Block.whole(table)], [GroupedTable("t", 9, 2)], features)


def test_batch_sizes_that_differ_are_named_as_by_the_twin():
    table = Block.whole(tf.Variable(tf.zeros([9, 2])))
    given = {"a": tf.constant([1, 2]), "b": tf.constant([[1, 2]]), "c": tf.ragged.constant([[1], [2], []])}
    features = [Feature(n, 0, "sum", make_bags(i, feature=n, pooled=True)) for n, i in given.items()]
    text = "one batch size. Received on rank 0: a: 2, b: 1, c: 3. "
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        look_up([table], [GroupedTable("t", 9, 2)], features)
    with without_kernels(), pytest.raises(tf.errors.InvalidArgumentError, match=text):
        look_up([table], [GroupedTable("t", 9, 2)], features)


def _call(table, changes):
    ids = tf.ragged.constant([[1, 2], [3]], dtype=tf.int64, row_splits_dtype=tf.int64)
    weights = ids.with_flat_values(tf.ones([3]))
    bags = make_bags(ids, weights, feature="f", pooled=True)
    arguments = feature_arguments([Feature("f", 0, "mean", bags)], "raise")
    arguments.update(changes)
    return kernels.library().demb_lookup(
        [table.handle],
        **arguments,
        num_features=1,
        num_rows=[9],
        dims=[2],
        feature_names=["f"],
        table_names=["t"],
    )


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"splits": [[0, 2, 4]]}, "row splits"),
        ({"splits": [[0, 2]]}, "row splits"),
        ({"splits": [[1, 2, 3]]}, "row splits"),
        ({"splits": [[0, 4, 3]]}, "row splits"),
        ({"splits": [[0, -1, 3]]}, "row splits"),
        ({"splits": [[]]}, "splits must be a vector|Negative dimension"),
        ({"splits": [[[0, 2, 3]]]}, "splits must be a vector"),
        ({"weights": [[1.0, 1.0]]}, "one weight an id"),
        ({"weights": [[]]}, "one weight an id"),
        ({"ids": [tf.constant(3)], "splits": [], "splits_of": [-1], "weights": [[1.0]]}, "batch axis"),
        ({"splits_of": [1]}, "must name inputs that are there"),
        ({"weights_of": [1]}, "must name inputs that are there"),
        ({"table_of": [1]}, "tables that are there"),
        ({"table_of": [-1]}, "tables that are there"),
        ({"combiners": ["sum", "sum"]}, "one entry a feature"),
    ],
)
@pytest.mark.parametrize("traced", [False, True])
def test_what_does_not_fit_is_an_error_and_no_crash(changes, text, traced):
    table = tf.Variable(tf.zeros([9, 2]))
    call = tf.function(_call, autograph=False) if traced else _call
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match=text):
        call(table, changes)


def test_a_table_narrower_than_said_is_an_error():
    with pytest.raises(tf.errors.InvalidArgumentError, match="a table must be of shape"):
        _call(tf.Variable(tf.zeros([9, 1])), {})


def test_reads_and_updates_of_a_function_keep_their_order():
    table = tf.Variable(tf.zeros([4, 1]))
    block, ids = Block.whole(table), tf.constant([1], tf.int64)

    def read():
        features = [Feature("f", 0, None, make_bags(ids, feature="f"))]
        return look_up([block], [GroupedTable("t", 4, 1)], features)[0][0]

    @tf.function
    def step():
        before = read()
        block.scatter(ids, before + 1.0)
        middle = read()
        block.scatter(ids, middle - 5.0)
        return before, middle, read()

    assert [float(x[0, 0]) for x in step()] == [0.0, 1.0, -4.0]
