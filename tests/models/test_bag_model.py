"""BagModel: crosses against the sum over pairs, ragged and weighted inputs, its file."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from distributed_embeddings.layers import Embedding
from distributed_embeddings.models import BagModel, EmbeddingDict

# NumPy 2 warns inside Keras's own reading of a TensorFlow variable.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def model_and_batch(hidden=(5,)):
    keras.utils.set_random_seed(5)
    layers = {
        "user": Embedding(6, 3, name="user"),
        "genres": Embedding(4, 3, combiner="mean", name="genres"),
        "history": Embedding(9, 3, combiner="sum", name="history"),
    }
    inputs = {
        "user": tf.constant([5, 0, 2]),
        "genres": tf.ragged.constant([[0, 3], [], [1]], dtype=tf.int64),
        "history": tf.ragged.constant([[8, 8, 1], [2], []], dtype=tf.int64),
        "history_weights": tf.ragged.constant([[0.5, 1.0, 2.0], [3.0], []], dtype=tf.float32),
    }
    return BagModel(EmbeddingDict(layers), hidden), inputs


def pooled(model):
    tables = {t.name: t.get_weights()[0].astype(np.float64) for t in model.embeddings.tables}
    user, genres, history = tables["user"], tables["genres"], tables["history"]
    zero = np.zeros(3)
    return {
        "user": user[[5, 0, 2]],
        "genres": np.stack([(genres[0] + genres[3]) / 2, zero, genres[1]]),
        "history": np.stack([1.5 * history[8] + 2.0 * history[1], 3.0 * history[2], zero]),
    }


def test_linear_model_is_the_formula():
    model, inputs = model_and_batch(hidden=())
    got = model(inputs)
    vectors = [pooled(model)[name] for name in ("genres", "history", "user")]
    crosses = sum(a * b for a, b in itertools.combinations(vectors, 2))
    kernel, bias = model.logit.get_weights()
    expected = np.concatenate([*vectors, crosses], -1) @ kernel + bias
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)


def test_keras_file_round_trip(tmp_path):
    model, inputs = model_and_batch()
    expected = model(inputs)
    model.save(tmp_path / "bags.keras")
    again = keras.saving.load_model(tmp_path / "bags.keras")
    np.testing.assert_array_equal(again(inputs), expected)


def test_gradients_are_finite_with_empty_bags():
    model, inputs = model_and_batch()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(inputs, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    assert all(g is not None for g in gradients)
    for g in gradients:
        assert np.isfinite(tf.convert_to_tensor(g).numpy()).all()


def test_shared_table_for_two_features():
    shared = Embedding(6, 3, name="people")
    model = BagModel(EmbeddingDict({"writer": shared, "reader": shared}))
    model({"writer": tf.constant([1]), "reader": tf.constant([1])})
    assert len(model.embeddings.tables) == 1


def test_batch_without_categories_is_an_error():
    with pytest.raises(ValueError, match="at least one categorical feature"):
        BagModel(EmbeddingDict({"a": Embedding(2, 2)}))({"dense": tf.zeros([2, 3])})
