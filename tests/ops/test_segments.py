from __future__ import annotations

import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from distributed_embeddings.ops.segments import run_of_each
from distributed_embeddings.ops.take import permute, take


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 4), max_size=12))
def test_run_of_each_is_repeat(lengths):
    got = run_of_each(tf.constant(lengths, tf.int64), tf.constant(sum(lengths), tf.int64))
    np.testing.assert_array_equal(got, np.repeat(np.arange(len(lengths)), lengths))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.lists(st.integers(0, 5), max_size=9), st.integers(1, 4))
def test_take_and_its_gradient(rows, indices, width):
    indices = [i % rows for i in indices]
    values = tf.random.normal([rows, width])
    upstream = tf.random.normal([len(indices), width])
    with tf.GradientTape() as tape:
        tape.watch(values)
        out = take(values, tf.constant(indices, tf.int64))
    got = tape.gradient(out, values, output_gradients=upstream)
    want = np.zeros((rows, width), np.float32)
    np.add.at(want, np.asarray(indices, int), upstream.numpy())
    np.testing.assert_array_equal(out, values.numpy()[np.asarray(indices, int)])
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


@given(st.permutations(range(6)))
@settings(max_examples=30, deadline=None)
def test_permute_and_its_gradient(order):
    values = tf.random.normal([6, 2])
    with tf.GradientTape() as tape:
        tape.watch(values)
        out = permute(values, tf.constant(order, tf.int64))
        loss = tf.reduce_sum(out * tf.constant(np.arange(12.0).reshape(6, 2), tf.float32))
    want = np.empty((6, 2), np.float32)
    want[list(order)] = values.numpy()
    np.testing.assert_array_equal(out, want)
    np.testing.assert_array_equal(tape.gradient(loss, values), np.arange(12.0).reshape(6, 2)[list(order)])
