"""The dot interaction: kernel and twin against NumPy in float64, on random shapes."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from distributed_embeddings.ops import interaction, kernels

KERNEL = "kernel", interaction.dot_interaction
TWIN = "twin", interaction.plain_dot_interaction

shapes = st.tuples(st.integers(0, 140), st.integers(1, 37), st.integers(1, 40))


def ways():
    return [KERNEL, TWIN] if kernels.available() else [TWIN]


def numpy_interaction(vectors, keep_first):
    pairs = [np.sum(vectors[i] * vectors[j], -1) for i in range(len(vectors)) for j in range(i)]
    kept = [vectors[0]] if keep_first else []
    products = np.stack(pairs, -1) if pairs else np.zeros((len(vectors[0]), 0))
    return np.concatenate([*kept, products], -1)


def numpy_gradient(vectors, keep_first, upstream):
    gradients = [np.zeros_like(v) for v in vectors]
    kept = vectors[0].shape[-1] if keep_first else 0
    gradients[0] += upstream[:, :kept] if keep_first else 0
    pairs = [(i, j) for i in range(len(vectors)) for j in range(i)]
    for k, (i, j) in enumerate(pairs):
        gradients[i] += upstream[:, kept + k, None] * vectors[j]
        gradients[j] += upstream[:, kept + k, None] * vectors[i]
    return gradients


def forward_and_gradients(call, vectors, keep_first, upstream):
    @tf.function
    def both(vectors, upstream):
        with tf.GradientTape() as tape:
            tape.watch(vectors)
            out = call(vectors, keep_first)
        return out, tape.gradient(out, vectors, output_gradients=upstream)

    return both([tf.constant(v, tf.float32) for v in vectors], tf.constant(upstream, tf.float32))


def drawn(shape, keep_first, seed):
    batch, count, dim = shape
    data = np.random.default_rng(seed)
    vectors = [data.normal(size=(batch, dim)).astype(np.float32).astype(np.float64) for _ in range(count)]
    width = count * (count - 1) // 2 + (dim if keep_first else 0)
    return vectors, data.normal(size=(batch, width)).astype(np.float32).astype(np.float64)


@settings(max_examples=25, deadline=None)
@given(shape=shapes, keep_first=st.booleans(), seed=st.integers(0, 99))
def test_both_ways_are_the_formula(shape, keep_first, seed):
    vectors, upstream = drawn(shape, keep_first, seed)
    wanted = numpy_interaction(vectors, keep_first)
    wanted_gradients = numpy_gradient(vectors, keep_first, upstream)
    for name, call in ways():
        out, gradients = forward_and_gradients(call, vectors, keep_first, upstream)
        # Sums of at most 40 products of normal numbers: 1e-4 is some hundred roundings.
        np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-4, err_msg=name)
        for mine, other in zip(gradients, wanted_gradients, strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-4, err_msg=name)


@pytest.mark.skipif(not kernels.available(), reason="the kernels are not built")
@pytest.mark.parametrize("keep_first", [False, True])
def test_a_sample_does_not_depend_on_the_others(keep_first):
    vectors, upstream = drawn((700, 27, 16), keep_first, 5)
    out, gradients = forward_and_gradients(KERNEL[1], vectors, keep_first, upstream)
    few = [v[211:333] for v in vectors]
    part, part_gradients = forward_and_gradients(KERNEL[1], few, keep_first, upstream[211:333])
    np.testing.assert_array_equal(part, out[211:333])
    for mine, other in zip(part_gradients, gradients, strict=True):
        np.testing.assert_array_equal(mine, other[211:333])


def test_static_shape_is_known_in_a_graph():
    @tf.function(input_signature=[[tf.TensorSpec([None, 8])] * 4])
    def call(vectors):
        out = interaction.dot_interaction(vectors, keep_first=True)
        assert out.shape.as_list() == [None, 14]
        return out

    assert call([tf.ones([3, 8])] * 4).shape == (3, 14)


def test_other_dtypes_take_the_twin():
    vectors = [tf.ones([2, 3], tf.float64), 2 * tf.ones([2, 3], tf.float64)]
    assert not interaction.uses_kernel(vectors[0])
    np.testing.assert_array_equal(interaction.dot_interaction(vectors), [[6.0], [6.0]])


def test_xla_compiles_the_twin():
    vectors = [tf.constant(v, tf.float32) for v in drawn((5, 4, 3), True, 1)[0]]
    call = tf.function(lambda v: interaction.dot_interaction(v, True), jit_compile=True)
    outer = tf.function(lambda v: tf.cond(v[0][0, 0] > -9, lambda: call(v), lambda: call(v)))
    wanted = interaction.dot_interaction(vectors, True)
    for compiled in (call, outer):
        np.testing.assert_allclose(compiled(vectors), wanted, rtol=1e-5, atol=1e-6)


def test_vectors_that_differ_are_refused():
    with pytest.raises(ValueError, match="of one dtype"):
        interaction.dot_interaction([])
    with pytest.raises(ValueError, match="of one dtype"):
        interaction.dot_interaction([tf.ones([2, 3]), tf.ones([2, 3], tf.float64)])
    for wrong in ([tf.ones([2, 3]), tf.ones([2, 4])], [tf.ones([2, 3]), tf.ones([3, 3])]):
        with pytest.raises(tf.errors.InvalidArgumentError):
            interaction.dot_interaction(wrong)


@pytest.mark.skipif(not kernels.available(), reason="the kernels are not built")
def test_gradient_refuses_an_upstream_of_another_shape():
    with pytest.raises(tf.errors.InvalidArgumentError, match="upstream"):
        kernels.library().demb_dot_interaction_grad(
            tf.ones([2, 2]), [tf.ones([2, 3]), tf.ones([2, 3])], keep_first=False
        )
