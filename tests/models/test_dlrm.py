"""DLRM against its formula in NumPy, and its round trips."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from distributed_embeddings.layers import DistributedEmbedding, Embedding
from distributed_embeddings.models import DLRM, DotInteraction, EmbeddingDict

# NumPy 2 warns inside Keras's own reading of a TensorFlow variable.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

SIZES = {"C1": 7, "C2": 11, "C3": 5}
DIM = 4


def tables():
    return EmbeddingDict({name: keras.layers.Embedding(n, DIM, name=name) for name, n in SIZES.items()})


def batch(rows=6, seed=0):
    data = np.random.default_rng(seed)
    features = {name: tf.constant(data.integers(0, n, rows)) for name, n in SIZES.items()}
    return {"dense": tf.constant(data.normal(size=(rows, 3)), tf.float32), **features}


def numpy_dlrm(model, inputs, wide=False):
    def dense(layer, x, activate=True):
        kernel, bias = (np.asarray(w, np.float64) for w in layer.get_weights())
        y = x @ kernel + bias
        return np.maximum(y, 0) if activate else y

    bottom = inputs["dense"].numpy().astype(np.float64)
    for layer in model.bottom.layers:
        bottom = dense(layer, bottom)
    weights = {t.name: t.get_weights()[0].astype(np.float64) for t in model.embeddings.tables}
    vectors = [bottom, *(weights[name][inputs[name].numpy()] for name in sorted(SIZES))]
    pairs = [np.sum(vectors[i] * vectors[j], -1) for i in range(len(vectors)) for j in range(i)]
    plain = [inputs["dense"].numpy(), *vectors[1:]] if wide else []
    top = np.concatenate([bottom, np.stack(pairs, -1), *plain], -1)
    for layer in model.top.layers:
        top = dense(layer, top)
    top = np.concatenate([*plain, top], -1)
    return dense(model.logit, top, activate=False)


@pytest.mark.parametrize("wide", [False, True])
def test_forward_is_the_formula(wide):
    keras.utils.set_random_seed(1)
    model = DLRM(tables(), bottom_mlp=(8,), top_mlp=(6, 5), wide=wide)
    inputs = batch()
    got = model(inputs)
    assert got.shape == (6, 1)
    np.testing.assert_allclose(got, numpy_dlrm(model, inputs, wide), rtol=1e-4, atol=1e-6)


def test_without_numbers_only_embeddings_interact():
    model = DLRM(tables(), top_mlp=(5,))
    inputs = batch()
    inputs.pop("dense")
    assert model(inputs).shape == (6, 1)
    assert model.bottom is None
    assert model.top.layers[0].kernel.shape[0] == 3


def test_sharded_tables_in_one_process_give_the_same():
    keras.utils.set_random_seed(2)
    plain = DLRM(tables(), bottom_mlp=(8,), top_mlp=(6,))
    layers = [Embedding(n, DIM, name=name) for name, n in SIZES.items()]
    sharded = DLRM(DistributedEmbedding(layers, feature_names=list(SIZES)), bottom_mlp=(8,), top_mlp=(6,))
    inputs = batch()
    plain(inputs), sharded(inputs)
    sharded.embeddings.set_weights([t.get_weights()[0] for t in plain.embeddings.tables])
    for part in ("bottom", "top", "logit"):
        getattr(sharded, part).set_weights(getattr(plain, part).get_weights())
    np.testing.assert_allclose(sharded(inputs), plain(inputs), rtol=1e-6)


def test_keras_file_round_trip(tmp_path):
    model = DLRM(
        tables(), bottom_mlp=(8,), top_mlp=(6,), wide=True, dropout=0.25, embedding_l2=1e-3, name="net"
    )
    inputs = batch()
    expected = model(inputs)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again(inputs), expected)
    configs = again.get_config(), model.get_config()
    for config in configs:
        config.pop("embeddings")  # a loaded layer's config says how it was built, too
    assert configs[0] == configs[1]


def test_gradient_of_the_interaction_is_that_of_plain_operations():
    vectors = tf.constant(np.random.default_rng(3).normal(size=(5, 4, 3)), tf.float64)
    upstream = tf.constant(np.random.default_rng(4).normal(size=(5, 6)), tf.float64)
    rows, columns = np.tril_indices(4, -1)

    def gradient(function):
        with tf.GradientTape() as tape:
            tape.watch(vectors)
            out = function(vectors)
        return out, tape.gradient(out, vectors, output_gradients=upstream)

    ours = gradient(DotInteraction(dtype="float64"))
    plain = gradient(lambda v: tf.reduce_sum(tf.gather(v, rows, axis=1) * tf.gather(v, columns, axis=1), -1))
    for mine, other in zip(ours, plain, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-12)


def test_embedding_penalty_is_the_mean_of_squares_of_what_was_looked_up():
    model = DLRM(tables(), bottom_mlp=(8,), top_mlp=(6,), embedding_l2=0.5)
    inputs = batch()
    model(inputs, training=False)
    assert model.losses == []
    model(inputs, training=True)
    weights = {t.name: t.get_weights()[0] for t in model.embeddings.tables}
    squares = sum(np.sum(weights[n][inputs[n].numpy()] ** 2, -1) for n in SIZES)
    np.testing.assert_allclose(model.losses[0], 0.5 * squares.mean(), rtol=1e-5)


def test_differing_dims_are_an_error_naming_features():
    mixed = EmbeddingDict({"C1": keras.layers.Embedding(7, 4), "C2": keras.layers.Embedding(5, 8)})
    with pytest.raises(ValueError, match=r"one embedding dim.*'C1': 4, 'C2': 8"):
        DLRM(mixed)({"C1": tf.constant([1]), "C2": tf.constant([2])})


def test_unpooled_bags_are_an_error_naming_the_feature():
    bags = EmbeddingDict({"C1": keras.layers.Embedding(7, 4), "C2": keras.layers.Embedding(5, 4)})
    with pytest.raises(ValueError, match=r"'C2' of shape \(1, 2, 4\)"):
        DLRM(bags)({"C1": tf.constant([1]), "C2": tf.constant([[2, 3]])})


def test_missing_feature_is_an_error_naming_features():
    with pytest.raises(ValueError, match=r"features \['C1', 'C2', 'C3'\].*Received: \['C1'\]"):
        tables()({"C1": tf.constant([1])})
