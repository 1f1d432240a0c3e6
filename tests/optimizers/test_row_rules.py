"""Every rule against Keras's own optimizer, applied densely to the summed gradient."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from distributed_embeddings import optimizers
from distributed_embeddings.ops import kernels
from distributed_embeddings.ops.rows import sum_duplicates

ROWS, DIM = 9, 3

KERAS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "sgd_decay": lambda: keras.optimizers.SGD(0.1, weight_decay=0.05),
    "sgd_clipvalue": lambda: keras.optimizers.SGD(0.1, clipvalue=0.5),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "nesterov": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adagrad_settings": lambda: keras.optimizers.Adagrad(0.1, initial_accumulator_value=0.7, epsilon=0.01),
    "adam": lambda: keras.optimizers.Adam(0.1),
    "amsgrad": lambda: keras.optimizers.Adam(0.1, beta_1=0.8, beta_2=0.9, epsilon=1e-3, amsgrad=True),
    "adamw": lambda: keras.optimizers.AdamW(0.1, weight_decay=0.1),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.1),
    "rmsprop_momentum": lambda: keras.optimizers.RMSprop(0.1, rho=0.8, momentum=0.9),
    "rmsprop_centered": lambda: keras.optimizers.RMSprop(0.1, momentum=0.5, centered=True),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1),
    "ftrl_settings": lambda: keras.optimizers.Ftrl(
        0.1,
        learning_rate_power=-0.7,
        initial_accumulator_value=0.3,
        l1_regularization_strength=0.01,
        l2_regularization_strength=0.02,
        l2_shrinkage_regularization_strength=0.03,
        beta=0.1,
    ),
}
# A zero gradient changes nothing: the lazy result is the dense one, every row of it.
DENSE_EXACT = ("sgd", "sgd_clipvalue", "adagrad", "adagrad_settings")

_steps = st.lists(st.lists(st.integers(0, ROWS - 1), max_size=15), min_size=1, max_size=4)


def _draw(steps, seed):
    """The table's start, and for each step ids (with duplicates) and their gradients."""
    rng = np.random.default_rng(seed)
    start = rng.normal(size=(ROWS, DIM)).astype(np.float32)
    return start, [
        (np.array(ids, np.int64), rng.normal(size=(len(ids), DIM)).astype(np.float32)) for ids in steps
    ]


def _train(rule, start, batches, learning_rate=0.1):
    """The table and its slots after the batches, inside a tf.function."""
    table = tf.Variable(start)
    slots = rule.create_slots(start.shape, "table")

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.int64),
            tf.TensorSpec([None, DIM], tf.float32),
            tf.TensorSpec([], tf.int64),
        ]
    )
    def train_step(ids, grads, step):
        rule.apply(
            rule.target(table, slots), sum_duplicates(tf.IndexedSlices(grads, ids)), learning_rate, step
        )

    for step, (ids, grads) in enumerate(batches):
        train_step(tf.constant(ids), tf.constant(grads), tf.constant(step + 1, tf.int64))
    return table.numpy(), {name: slot.numpy() for name, slot in slots.items()}


def _train_keras(optimizer, start, batches, lazy):
    """Keras on dense gradients; if lazy, untouched rows of table and slots are put back after every step."""
    table = keras.Variable(start, name="table")
    optimizer.build([table])
    state = [table, *(v for v in optimizer.variables if tuple(v.shape) == start.shape)]
    for ids, grads in batches:
        dense = np.zeros_like(start)
        np.add.at(dense, ids, grads)
        before = [v.numpy() for v in state]
        optimizer.apply([tf.constant(dense)], [table])
        untouched = np.setdiff1d(np.arange(ROWS), ids)
        for variable, old in zip(state, before, strict=True):
            new = variable.numpy()
            if lazy:
                new[untouched] = old[untouched]
            variable.assign(new)
    slots = {v.path.split("table_")[-1]: v.numpy() for v in state[1:]}
    return table.numpy(), slots


@pytest.mark.parametrize("name", KERAS)
@settings(max_examples=6, deadline=None)
@given(steps=_steps, seed=st.integers(0, 2**16))
def test_touched_rows_equal_keras(name, steps, seed):
    start, batches = _draw(steps, seed)
    table, slots = _train(optimizers.from_keras(KERAS[name]()), start, batches)
    expected_table, expected_slots = _train_keras(KERAS[name](), start, batches, lazy=True)
    np.testing.assert_allclose(table, expected_table, rtol=1e-5, atol=2e-6)
    assert set(slots) == set(expected_slots)
    for slot, value in slots.items():
        np.testing.assert_allclose(value, expected_slots[slot], rtol=1e-5, atol=2e-6, err_msg=slot)


@pytest.mark.parametrize("name", DENSE_EXACT)
@settings(max_examples=6, deadline=None)
@given(steps=_steps, seed=st.integers(0, 2**16))
def test_sgd_and_adagrad_equal_the_dense_result(name, steps, seed):
    start, batches = _draw(steps, seed)
    table, slots = _train(optimizers.from_keras(KERAS[name]()), start, batches)
    expected_table, expected_slots = _train_keras(KERAS[name](), start, batches, lazy=False)
    np.testing.assert_allclose(table, expected_table, rtol=1e-6, atol=1e-7)
    for slot, value in slots.items():
        np.testing.assert_allclose(value, expected_slots[slot], rtol=1e-6, atol=1e-7)


@settings(max_examples=10, deadline=None)
@given(steps=_steps, seed=st.integers(0, 2**16))
def test_rowwise_adagrad_equals_its_formula_in_float64(steps, seed):
    start, batches = _draw(steps, seed)
    rule = optimizers.RowwiseAdagradRule(initial_accumulator_value=0.2, epsilon=1e-3)
    table, slots = _train(rule, start, batches)
    rows, accumulator = start.astype(np.float64), np.full((ROWS, 1), 0.2)
    for ids, grads in batches:
        dense = np.zeros_like(rows)
        np.add.at(dense, ids, grads)
        accumulator += np.sum(dense * dense, axis=1, keepdims=True) / DIM
        rows -= 0.1 * dense / np.sqrt(accumulator + 1e-3)
    np.testing.assert_allclose(slots["accumulator"], accumulator, rtol=1e-5)
    np.testing.assert_allclose(table, rows, rtol=1e-5, atol=1e-6)


RULES = {name: optimizers.from_keras(make()) for name, make in KERAS.items()}
RULES["rowwise_adagrad"] = optimizers.RowwiseAdagradRule()


@pytest.mark.parametrize("name", RULES)
def test_untouched_rows_and_their_slots_stay_bitwise(name):
    rule = RULES[name]
    start, batches = _draw([[1, 1, 4, 7], [4], [], [1, 7, 7]], seed=5)
    # All rows first, so that every slot holds something that a dense rule would let decay.
    _, first = _draw([list(range(ROWS))], seed=6)
    table_before, slots_before = _train(rule, start, first)
    table_after, slots_after = _train(rule, start, first + batches)
    untouched = [0, 2, 3, 5, 6, 8]
    assert (table_after[untouched] == table_before[untouched]).all()
    assert (table_after[[1, 4, 7]] != table_before[[1, 4, 7]]).any(axis=1).all()
    for slot in slots_before:
        assert (slots_after[slot][untouched] == slots_before[slot][untouched]).all(), slot


@pytest.mark.parametrize("name", RULES)
def test_no_row_no_change(name):
    start, batches = _draw([[]], seed=1)
    table, _ = _train(RULES[name], start, batches)
    assert (table == start).all()


@pytest.mark.parametrize("name", RULES)
def test_the_traced_update_reads_no_table_and_no_slot_whole(name):
    rule = RULES[name]
    table = tf.Variable(tf.zeros([ROWS, DIM]))
    slots = rule.create_slots((ROWS, DIM), "table")

    @tf.function
    def step(ids, grads, learning_rate, step):
        rule.apply(
            rule.target(table, slots), sum_duplicates(tf.IndexedSlices(grads, ids)), learning_rate, step
        )

    scalar = tf.TensorSpec([], tf.float32)
    signature = (
        tf.TensorSpec([None], tf.int64),
        tf.TensorSpec([None, DIM]),
        scalar,
        tf.TensorSpec([], tf.int64),
    )
    graph = step.get_concrete_function(*signature).graph
    users = {op.type for op in graph.get_operations() for x in op.inputs if x.dtype == tf.resource}
    assert users == (
        {"DembApplyRows"} if kernels.available() else {"ResourceGather", "ResourceScatterUpdate"}
    )
    # Nothing of the table's size is made either: no shape in the graph has its rows.
    shapes = [x.shape for op in graph.get_operations() for x in op.outputs if x.dtype != tf.resource]
    assert not [shape for shape in shapes if shape.rank and shape[0] == ROWS]


@pytest.mark.parametrize("name", ["sgd", "adagrad", "rowwise_adagrad", "adam", "rmsprop", "ftrl"])
def test_a_bfloat16_table_is_updated_in_float32(name):
    start, batches = _draw([[1, 1, 4]], seed=2)
    start = tf.cast(start, tf.bfloat16)
    table, slots = _train(RULES[name], start, batches)
    exact, exact_slots = _train(RULES[name], tf.cast(start, tf.float32), batches)
    assert table.dtype == tf.bfloat16.as_numpy_dtype
    assert (table == exact.astype(table.dtype)).all()
    for slot in slots:
        assert slots[slot].dtype == np.float32
        assert (slots[slot] == exact_slots[slot]).all()


def test_ids_seen_twice_count_as_one_gradient():
    # Adagrad, lr 1, accumulator 0.1: row 1 has gradient 2, row 2 has 1: -2 / sqrt(4.1) and -1 / sqrt(1.1).
    # Updating row 1 once per occurrence gives -2 / sqrt(2.1) = -1.38013, which is what Keras 3.15 does with a
    # sparse gradient.
    table = tf.Variable(tf.zeros([3, 1]))
    rule = optimizers.from_keras(keras.optimizers.Adagrad(1.0, initial_accumulator_value=0.1))
    slots = rule.create_slots((3, 1), "table")
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(table, tf.constant([[1, 1, 2]])))
    rule.apply(rule.target(table, slots), sum_duplicates(tape.gradient(loss, table)), 1.0, 1)
    np.testing.assert_allclose(table.numpy().ravel(), [0.0, -0.98773, -0.95346], atol=5e-6)


def test_a_step_late_in_training_is_corrected_by_its_number():
    rule = optimizers.Adam()
    grads = tf.fill([1, 1], 1.0)
    slots = {"momentum": tf.zeros([1, 1]), "velocity": tf.zeros([1, 1])}
    rows, _ = rule.update(tf.zeros([1, 1]), grads, slots, tf.constant(1.0), tf.constant(1000.0))
    expected = -0.1 * np.sqrt(1 - 0.999**1000) / (1 - 0.9**1000) / (np.sqrt(0.001) + 1e-7)
    np.testing.assert_allclose(float(rows[0, 0]), expected, rtol=1e-5)
