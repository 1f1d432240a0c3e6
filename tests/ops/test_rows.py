import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from distributed_embeddings.ops.rows import gather_rows, scatter_rows, sum_duplicates


def _slices(ids, values, dtype=tf.float32):
    return tf.IndexedSlices(tf.constant(values, dtype), tf.constant(ids, tf.int64))


def _sums(ids, values):
    """Row → float64 sum, the plain way."""
    sums = {}
    for row, value in zip(ids, values, strict=True):
        sums[row] = sums.get(row, 0.0) + value.astype(np.float64)
    return sums


_ids = st.lists(st.integers(0, 7) | st.integers(2**31 - 3, 2**31 + 3) | st.just(2**62 + 1), max_size=60)


@settings(max_examples=40, deadline=None)
@given(ids=_ids, dim=st.integers(1, 5), seed=st.integers(0, 2**16))
def test_sum_duplicates_equals_a_dictionary_of_sums(ids, dim, seed):
    values = np.random.default_rng(seed).normal(size=(len(ids), dim)).astype(np.float32)
    ids = np.array(ids, np.int64)
    result = sum_duplicates(tf.IndexedSlices(tf.constant(values), tf.constant(ids)))
    expected = _sums(ids.tolist(), values)
    assert result.indices.dtype == tf.int64
    assert result.values.shape == (len(expected), dim)
    # First-seen order, which is a dictionary's order.
    assert result.indices.numpy().tolist() == list(expected)
    for got, row in zip(result.values.numpy(), expected, strict=True):
        np.testing.assert_allclose(got, expected[row], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32])
def test_sum_duplicates_accumulates_in_float32(dtype):
    ids = np.arange(100_000) % 8
    addend = tf.constant(0.01, dtype)
    result = sum_duplicates(tf.IndexedSlices(tf.fill([100_000, 2], addend), tf.constant(ids)))
    assert result.values.dtype == tf.float32
    np.testing.assert_allclose(result.values, 12_500 * float(addend), rtol=1e-4)


def test_sum_duplicates_repeats_bitwise_inside_a_function_and_outside():
    rng = np.random.default_rng(3)
    slices = _slices(rng.integers(0, 50, 5000), rng.normal(size=(5000, 8)))

    @tf.function
    def traced(indices, values):
        return sum_duplicates(tf.IndexedSlices(values, indices)).values

    first = traced(slices.indices, slices.values).numpy()
    for _ in range(3):
        assert (traced(slices.indices, slices.values).numpy() == first).all()
    assert (sum_duplicates(slices).values.numpy() == first).all()


def test_sum_duplicates_of_nothing_keeps_the_width_and_the_dense_shape():
    empty = tf.IndexedSlices(tf.zeros([0, 4], tf.bfloat16), tf.zeros([0], tf.int32), tf.constant([9, 4]))
    result = sum_duplicates(empty)
    assert result.values.shape == (0, 4)
    assert result.values.dtype == tf.float32
    assert result.indices.shape == (0,)
    assert result.dense_shape.numpy().tolist() == [9, 4]


def test_gather_and_scatter_touch_only_their_rows():
    start = np.arange(20, dtype=np.float32).reshape(10, 2)
    table = tf.Variable(start)
    rows = tf.constant([7, 2], tf.int64)
    scatter_rows(table, rows, gather_rows(table, rows) + 100.0)
    expected = start.copy()
    expected[[7, 2]] += 100.0
    assert (table.numpy() == expected).all()


def test_scatter_casts_to_the_dtype_of_the_table():
    table = tf.Variable(tf.zeros([3, 2], tf.bfloat16))
    scatter_rows(table, tf.constant([1]), tf.fill([1, 2], 1.2345678))
    assert table.dtype == tf.bfloat16
    assert (gather_rows(table, tf.constant([1])) == tf.cast(1.2345678, tf.bfloat16)).numpy().all()


def test_gather_has_a_sparse_gradient():
    table = tf.Variable(tf.ones([5, 2]))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(gather_rows(table, tf.constant([4, 4, 0])) * [[1.0], [2.0], [3.0]])
    gradient = tape.gradient(loss, table)
    assert isinstance(gradient, tf.IndexedSlices)
    summed = sum_duplicates(gradient)
    assert summed.indices.numpy().tolist() == [4, 0]
    assert summed.values.numpy().tolist() == [[3.0, 3.0], [3.0, 3.0]]


def test_order_of_reads_and_writes_inside_a_function():
    table = tf.Variable(tf.zeros([4, 1]))
    rows = tf.constant([1], tf.int64)

    @tf.function
    def step():
        before = gather_rows(table, rows)
        scatter_rows(table, rows, before + 1.0)
        middle = gather_rows(table, rows)
        scatter_rows(table, rows, middle - 5.0)
        return before, middle, gather_rows(table, rows)

    assert [float(x[0, 0]) for x in step()] == [0.0, 1.0, -4.0]


def test_no_read_of_the_whole_table_is_traced():
    table = tf.Variable(tf.zeros([4, 1]))

    @tf.function
    def step(rows):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(gather_rows(table, rows))
        gradient = sum_duplicates(tape.gradient(loss, table))
        scatter_rows(table, gradient.indices, gradient.values)

    graph = step.get_concrete_function(tf.TensorSpec([None], tf.int64)).graph
    users = {op.type for op in graph.get_operations() for x in op.inputs if x.dtype == tf.resource}
    assert users == {"ResourceGather", "ResourceScatterUpdate"}


@pytest.mark.parametrize("rows", [[1.0], np.array([1], np.uint64)])
def test_rows_of_another_dtype_are_refused(rows):
    with pytest.raises(ValueError, match="`rows` must be int32 or int64"):
        gather_rows(tf.Variable(tf.zeros([2, 1])), tf.constant(rows))


def test_a_tensor_is_no_table():
    with pytest.raises(TypeError, match=r"`variable` must be a tf\.Variable"):
        gather_rows(tf.zeros([2, 1]), tf.constant([1]))


@pytest.mark.slow
def test_rows_beyond_2_to_the_31():
    # int8 keeps this at 2 GiB. Offsets, not only ids, pass 2^31.
    size = 2**31 + 8
    table = tf.Variable(lambda: tf.zeros([size, 1], tf.int8))
    rows = tf.constant([size - 1, 2**31, 7], tf.int64)
    scatter_rows(table, rows, tf.constant([[1], [2], [3]]))
    assert gather_rows(table, rows).numpy().ravel().tolist() == [1, 2, 3]
    assert not gather_rows(table, tf.constant([size - 2, 0, 6, 8], tf.int64)).numpy().any()
