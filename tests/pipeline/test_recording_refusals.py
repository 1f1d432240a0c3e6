"""Lookups whose ids cannot be had ahead of the step stay in it, with a warning that names layer, feature and path."""

from __future__ import annotations

import re
from typing import Any

import keras
import pytest
import tensorflow as tf
from recorded import DIM, ROWS, numbers, record, tables


def refusal(layer: str, reason: str) -> str:
    return f"^layer '{layer}' stays in the main graph and is not pipelined: {reason}"


def check_refused(step, *features: Any, reason: str, layer: str = "tables", feature: str = "x", trainable=()):
    """Refused with a warning that names layer, feature and path, and with nothing else refused."""
    warning = refusal(layer, f"the ids of feature '{feature}' depend on {reason}: .+ <- ")
    with pytest.warns(UserWarning, match=warning) as warned:
        _, sites, refused = record(step, *features, trainable=trainable)
    assert len(warned) == 1
    assert list(refused) == [layer]
    assert layer not in {s.layer.name for s in sites}
    path = str(warned[0].message).split(": ")[-1]
    return sites, path


def test_ids_from_a_trainable_variable():
    router = keras.layers.Dense(ROWS, name="router")
    router.build([None, 3])
    layer = tables("tables", "y", "x")

    def step(dense, y):
        return layer([y, tf.argmax(router(dense), -1)])

    _, path = check_refused(
        step,
        tf.ones([2, 3]),
        numbers(0, 2),
        reason="the trainable variable '(kernel|bias)'",
        trainable=router.trainable_variables,
    )
    assert re.match(r"ArgMax <- .*(MatMul|Add)", path)


def test_weights_from_a_trainable_variable():
    scale = keras.Variable(2.0, name="scale")
    layer = tables("tables", "x")
    reason = "the trainable variable 'scale'"

    def step(x):
        return layer([x], [tf.ones_like(x, tf.float32) * scale])

    check_refused(step, numbers(0, 2), reason=reason, trainable=[scale])


def test_ids_from_vectors_of_another_layer():
    first, second = tables("first", "y"), tables("second", "x")

    def step(y):
        return second([tf.argmax(first([y])[0], -1)])

    sites, path = check_refused(step, numbers(0, 2), reason="vectors of a lookup", layer="second")
    assert [s.layer for s in sites] == [first]
    assert path.startswith("ArgMax <- first")


RANDOM = {
    "an operation": lambda x: tf.random.uniform(tf.shape(x), 0, ROWS, tf.int32),
    "in a condition": lambda x: tf.cond(
        tf.size(x) > 1,
        lambda: tf.random.uniform(tf.shape(x), 0, ROWS, tf.int32),
        lambda: tf.cast(x, tf.int32),
    ),
    "Python": lambda x: tf.ensure_shape(tf.numpy_function(lambda a: a, [x], tf.int64), [None]),
}


@pytest.mark.parametrize("how", RANDOM)
def test_random_ids(how):
    layer = tables("tables", "x")
    check_refused(
        lambda x: layer([RANDOM[how](x) + 0]),
        numbers(0, 2),
        reason="an operation with side effects or chance, (RandomUniformInt|If|PyFunc)",
    )


def test_random_ids_of_keras():
    seeds = keras.random.SeedGenerator(1)
    layer = tables("tables", "x")

    def step(x):
        return layer([x + keras.random.randint(tf.shape(x), 0, 2, dtype="int64", seed=seeds)])

    check_refused(step, numbers(0, 2), reason="a variable that the step changes")


def plain_assign(counter):
    counter.assign_add(1)


def assign_in_a_condition(counter):
    tf.cond(counter > 10, lambda: counter.assign(0), lambda: counter.assign_add(1))


@tf.function
def assign_in_a_function(counter):
    counter.assign_add(1)


@pytest.mark.parametrize("change", [plain_assign, assign_in_a_condition, assign_in_a_function])
def test_ids_from_a_variable_that_the_step_assigned(change):
    counter = tf.Variable(0, dtype=tf.int64, trainable=False)
    layer = tables("tables", "x")

    def step(x):
        change(counter)
        return layer([(x + counter) % ROWS])

    # TensorFlow lets the reading wait for the call that writes.
    call = "an operation with side effects or chance, (If|StatefulPartitionedCall)"
    check_refused(step, numbers(0, 2), reason=f"(a variable that the step changes|{call})")


@pytest.mark.parametrize("change", [plain_assign, assign_in_a_condition, assign_in_a_function])
def test_ids_from_a_variable_that_the_step_will_assign(change):
    counter = tf.Variable(0, dtype=tf.int64, trainable=False)
    layer = tables("tables", "x")

    def step(x):
        found = layer([(x + counter) % ROWS])
        change(counter)
        return found

    check_refused(step, numbers(0, 2), reason="a variable that the step changes")


def test_ids_from_a_table_that_the_step_fills():
    seen = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)
    layer = tables("tables", "x")

    def step(x):
        found = layer([tf.ensure_shape(seen.lookup(x), [None])])
        seen.insert(x, x)
        return found

    check_refused(step, numbers(0, 2), reason="a variable that the step changes")


def test_a_layer_called_twice():
    layer, other = tables("tables", "x"), tables("other", "x")

    def step(x):
        return layer([x])[0] + layer([x + 1])[0] + other([x])[0]

    with pytest.warns(
        UserWarning, match=refusal("tables", "it is called more than once in a step")
    ) as warned:
        _, sites, _ = record(step, numbers(0, 2))
    assert len(warned) == 1
    assert [s.layer for s in sites] == [other]


def in_a_condition(lookup, x):
    return tf.cond(tf.size(x) > 1, lambda: lookup(x), lambda: tf.zeros([tf.size(x), DIM]))


def in_a_loop(lookup, x):
    zeros = tf.zeros([tf.size(x), DIM])
    shape = tf.TensorShape([None, DIM])
    loop = tf.while_loop(
        lambda i, _: i < 2, lambda i, v: (i + 1, v + lookup(x)), (0, zeros), (tf.TensorShape([]), shape)
    )
    return loop[1]


def in_a_function(lookup, x):
    return tf.function(lookup)(x)


HIDDEN = [in_a_condition, in_a_loop, in_a_function]


@pytest.mark.parametrize("where", HIDDEN)
def test_a_layer_called_inside(where):
    layer, other = tables("tables", "x"), tables("other", "x")

    def step(x):
        return where(lambda x: layer([x])[0], x) + other([x])[0]

    reason = "it is called inside a condition or a loop of the graph"
    with pytest.warns(UserWarning, match=refusal("tables", reason)) as warned:
        _, sites, _ = record(step, numbers(0, 2))
    assert len(warned) == 1
    assert [s.layer for s in sites] == [other]


@pytest.mark.parametrize("where", HIDDEN)
def test_ids_from_vectors_of_a_layer_called_inside(where):
    """Zeros stand in for its vectors in the trace: they must not become ids."""
    layer, other = tables("tables", "y"), tables("other", "x")

    def step(x):
        return other([tf.argmax(where(lambda x: layer([x])[0], x), -1)])

    with pytest.warns(UserWarning) as warned:
        _, sites, refused = record(step, numbers(0, 2))
    assert set(refused) == {"tables", "other"}
    assert len(warned) == 2
    assert not sites
