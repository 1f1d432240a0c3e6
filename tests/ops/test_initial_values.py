"""A table's initial values do not depend on how it is cut."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributed_embeddings.ops.initial_values import CUSTOM_BLOCK_ROWS, make_block_initializer, row_blocks

INITIALIZERS = [
    keras.initializers.RandomUniform(-0.2, 0.3, seed=1),
    keras.initializers.RandomNormal(1.0, 2.0, seed=1),
    keras.initializers.TruncatedNormal(0.5, 0.1, seed=1),
    keras.initializers.GlorotUniform(seed=1),
    keras.initializers.HeNormal(seed=1),
    keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal", seed=1),
    keras.initializers.Zeros(),
    keras.initializers.Constant(0.25),
    keras.initializers.OrthogonalInitializer(seed=1),
    lambda shape, dtype: np.arange(np.prod(shape), dtype=np.float32).reshape(shape),
]


def whole(initializer, shape, seed=5, table="t"):
    return make_block_initializer(initializer, table, shape, seed)(range(shape[0]), range(shape[1]))


@pytest.mark.parametrize("initializer", INITIALIZERS)
@settings(max_examples=15, deadline=None)
@given(st.data())
def test_any_block_is_a_block_of_the_whole(initializer, data):
    shape = data.draw(st.tuples(st.integers(1, 60), st.integers(1, 9)))
    step = data.draw(st.integers(1, 5))
    start = data.draw(st.integers(0, shape[0] - 1))
    columns = sorted(data.draw(st.tuples(st.integers(0, shape[1]), st.integers(0, shape[1]))))
    rows = range(start, shape[0], step)
    block = make_block_initializer(initializer, "t", shape, 5)(rows, range(*columns))
    np.testing.assert_array_equal(block, whole(initializer, shape)[start::step, slice(*columns)])


def test_a_custom_initializer_sees_blocks_of_rows():
    shapes = []

    def custom(shape, dtype):
        shapes.append(shape)
        return np.zeros(shape, dtype)

    rows = CUSTOM_BLOCK_ROWS + 10
    make_block_initializer(custom, "t", (rows, 2), 0)(range(3, rows, 4), range(1))
    assert shapes == [(CUSTOM_BLOCK_ROWS, 2), (10, 2)]


@pytest.mark.parametrize("initializer", INITIALIZERS[:6])
def test_distribution_is_the_initializers(initializer):
    """Mean, deviation and limits of 200k values against Keras's own, for the whole table's shape."""
    shape = (50_000, 4)
    ours, keras_values = whole(initializer, shape), np.asarray(initializer(shape))
    deviation = keras_values.std()
    assert abs(ours.mean() - keras_values.mean()) < 0.02 * deviation
    assert abs(ours.std() / deviation - 1) < 0.02
    for q in (0.001, 0.1, 0.5, 0.9, 0.999):
        assert abs(np.quantile(ours, q) - np.quantile(keras_values, q)) < 0.12 * deviation


def test_columns_rows_tables_and_seeds_differ():
    values = whole(INITIALIZERS[0], (200, 8))
    assert len(np.unique(values)) > 1550
    assert abs(np.corrcoef(values.T) - np.eye(8)).max() < 0.3
    assert (values != whole(INITIALIZERS[0], (200, 8), seed=6)).mean() > 0.99
    assert (values != whole(INITIALIZERS[0], (200, 8), table="u")).mean() > 0.99


def test_cells_above_two_to_the_31():
    shape = (2**34, 8)
    block = make_block_initializer(INITIALIZERS[0], "t", shape, 1)(range(2**33, 2**33 + 4), range(8))
    low = make_block_initializer(INITIALIZERS[0], "t", shape, 1)(range(4), range(8))
    assert len(np.unique(np.concatenate([block, low]))) == 64


@given(st.integers(0, 1000), st.integers(1, 7), st.integers(1, 40))
def test_row_blocks_cover_a_shard(count, step, width):
    rows = range(3, 3 + count * step, step)
    seen = [r for start, block in row_blocks(rows, width, 100) for r in block]
    assert seen == list(rows)
    assert all(start == rows.index(block[0]) for start, block in row_blocks(rows, width, 100))
