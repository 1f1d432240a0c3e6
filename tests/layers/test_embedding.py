"""`Embedding` and `embedding_lookup` in one process."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from distributed_embeddings.dist_model_parallel import Embedding, embedding_lookup

TABLE = np.random.default_rng(0).normal(size=(11, 3)).astype(np.float32)
bags = st.lists(st.lists(st.integers(0, 10), max_size=5), min_size=1, max_size=6)


def expected(bag, weights, combiner):
    w = np.ones(len(bag)) if weights is None else np.asarray(weights, np.float64)
    total = (TABLE[np.asarray(bag, int)].astype(np.float64) * w[:, None]).sum(0)
    norm = {"sum": 1.0, "mean": w.sum(), "sqrtn": np.sqrt((w**2).sum())}[combiner]
    return total / norm if norm else total * 0


@settings(max_examples=60, deadline=None)
@given(bags, st.sampled_from(["sum", "mean", "sqrtn"]), st.booleans(), st.booleans(), st.randoms())
def test_bags_of_any_shape(batch, combiner, weighted, sparse, random):
    """Empty bags anywhere, repeated ids, zero weights; ragged and sparse give the same."""
    weights = [[random.choice([0.0, 0.5, 2.0]) for _ in bag] for bag in batch] if weighted else None
    ids = tf.ragged.constant(batch, tf.int64, ragged_rank=1)
    w = tf.ragged.constant(weights, tf.float32, ragged_rank=1) if weighted else None
    if sparse:
        ids = ids.to_sparse()
        w = None if w is None else tf.SparseTensor(ids.indices, w.flat_values, ids.dense_shape)
    got = embedding_lookup(tf.Variable(TABLE), ids, combiner, w).numpy()
    want = [expected(b, weights[i] if weighted else None, combiner) for i, b in enumerate(batch)]
    np.testing.assert_allclose(got, np.array(want), rtol=1e-5, atol=1e-6)


def test_sparse_entries_in_no_order():
    ids = tf.SparseTensor([[2, 0], [0, 1], [0, 0]], tf.constant([5, 2, 1], tf.int64), [4, 2])
    got = embedding_lookup(tf.Variable(TABLE), ids, "sum").numpy()
    np.testing.assert_allclose(got, [TABLE[1] + TABLE[2], np.zeros(3), TABLE[5], np.zeros(3)], rtol=1e-6)


@pytest.mark.parametrize("shape", [(4,), (4, 1), (4, 3), (2, 3, 2)])
def test_without_combiner_is_keras_embedding(shape):
    ids = np.random.default_rng(1).integers(0, 11, shape)
    reference = keras.layers.Embedding(11, 3)
    reference.build()
    reference.embeddings.assign(TABLE)
    layer = Embedding(11, 3)
    layer.build()
    layer.embeddings.assign(TABLE)
    np.testing.assert_array_equal(layer(ids).numpy(), reference(ids).numpy())


def test_ragged_without_combiner_stays_ragged():
    ids = tf.ragged.constant([[1, 2], [], [3]], tf.int64)
    out = embedding_lookup(tf.Variable(TABLE), ids)
    assert out.to_list() == [TABLE[[1, 2]].tolist(), [], TABLE[[3]].tolist()]


def test_gradient_is_sparse_and_finite_for_empty_bags_and_zero_weights():
    table = tf.Variable(TABLE)
    ids = tf.ragged.constant([[], [3, 3], [4]], tf.int64, ragged_rank=1)
    weights = tf.ragged.constant([[], [1.0, 2.0], [0.0]], tf.float32, ragged_rank=1)
    with tf.GradientTape() as tape:
        tape.watch(weights.flat_values)
        loss = tf.reduce_sum(embedding_lookup(table, ids, "sqrtn", weights))
    by_table, by_weight = tape.gradient(loss, [table, weights.flat_values])
    assert isinstance(by_table, tf.IndexedSlices)
    assert set(by_table.indices.numpy()) == {3, 4}
    assert np.isfinite(by_table.values.numpy()).all() and np.isfinite(by_weight.numpy()).all()


@pytest.mark.parametrize("bad", [-1, 11, 2**40])
def test_invalid_id_is_named(bad):
    layer = Embedding(11, 3, "sum", name="items")
    ids = tf.constant([[1, 2], [3, bad]], tf.int64)
    text = rf"feature items \(table items\): id {bad} is outside \[0, 11\) at row 1 of the batch on rank 0"
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        layer(ids)
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        tf.function(layer)(ids)


def test_zero_and_clip_policies():
    ids = tf.constant([[1, -4], [20, 3]], tf.int64)
    zero = embedding_lookup(tf.Variable(TABLE), ids, "mean", invalid_ids="zero").numpy()
    np.testing.assert_allclose(zero, [TABLE[1], TABLE[3]], rtol=1e-6)
    clip = embedding_lookup(tf.Variable(TABLE), ids, "sum", invalid_ids="clip").numpy()
    np.testing.assert_allclose(clip, [TABLE[1] + TABLE[0], TABLE[10] + TABLE[3]], rtol=1e-6)
    unpooled = embedding_lookup(tf.Variable(TABLE), ids, None, invalid_ids="zero").numpy()
    np.testing.assert_allclose(unpooled, [[TABLE[1], np.zeros(3)], [np.zeros(3), TABLE[3]]], rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.uint64, np.bool_])
def test_wrong_dtype_names_the_feature(dtype):
    with pytest.raises(
        ValueError,
        match="feature 'items' must be integers of 8 to 64 bits, unsigned ones of 8 to 32. Received: dtype=",
    ):
        Embedding(11, 3, name="items")(np.ones(4, dtype))


def test_weights_must_match_their_ids():
    layer = Embedding(11, 3, "sum", name="items")
    with pytest.raises(ValueError, match="same kind"):
        layer(tf.ragged.constant([[1]], tf.int64), weights=tf.constant([[1.0]]))
    with pytest.raises(ValueError, match="shape of its ids"):
        layer(tf.constant([[1, 2]]), weights=tf.constant([[1.0]]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="row lengths"):
        layer(
            tf.ragged.constant([[1, 2], []], tf.int64, ragged_rank=1),
            weights=tf.ragged.constant([[1.0], [1.0]], ragged_rank=1),
        )


@pytest.mark.parametrize(
    "arguments", [{"combiner": "max"}, {"input_dim": 0}, {"output_dim": 2.5}, {"invalid_ids": "wrap"}]
)
def test_wrong_arguments(arguments):
    with pytest.raises(ValueError, match=f"`{next(iter(arguments))}` must be"):
        Embedding(**{"input_dim": 3, "output_dim": 2, **arguments})


def test_config_round_trip():
    layer = Embedding(11, 3, "mean", keras.initializers.RandomNormal(seed=3), "clip", name="items")
    again = Embedding.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
