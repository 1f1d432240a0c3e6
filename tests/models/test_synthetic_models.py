"""The size ladder: its facts, and a model of that shape against NumPy."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from distributed_embeddings.data import Batches, Feature, RandomIds
from distributed_embeddings.layers import DistributedEmbedding, DistributedOptimizer
from distributed_embeddings.models import (
    EmbeddingDict,
    RepeatedUniform,
    SyntheticModel,
    synthetic_size,
    synthetic_sizes,
)

# GiB, tables and features as published with the benchmark set.
PUBLISHED = {
    "criteo": (1.2, 26, 26),
    "tiny": (4.2, 55, 58),
    "small": (26.3, 107, 116),
    "medium": (206.2, 311, 337),
    "large": (773.8, 612, 669),
    "jumbo": (3109.5, 1022, 1097),
    "colossal": (22327.4, 2002, 2153),
}


def small(stride=None):
    """The shape of tiny with tables of at most 20 rows and few of them."""
    tiny = synthetic_size("tiny")
    tables = [tiny.tables[i] for i in (0, 1, 3, 4, 40)]
    tables = tuple(dataclasses.replace(t, rows=min(t.rows, 20)) for t in tables)
    return dataclasses.replace(tiny, tables=tables, mlp=(8, 4), interaction_stride=stride)


def inputs_of(size, rows=6):
    data = np.random.default_rng(1)
    ids = {n: data.integers(0, size.vocabulary_sizes[n], (rows, h)) for n, h in size.hotness.items()}
    numbers = data.normal(size=(rows, size.numerical_features)).astype(np.float32)
    return {"dense": tf.constant(numbers), **{n: tf.constant(x) for n, x in ids.items()}}


def numpy_model(model, size, inputs, weights):
    vectors = {}
    for table, name in zip(size.input_table_map, size.feature_names, strict=True):
        vectors[name] = weights[table][inputs[name].numpy()].sum(1)
    x = np.concatenate([vectors[n] for n in sorted(vectors)], -1)
    stride = size.interaction_stride
    if stride:
        # "SAME": the missing elements of the last window are put on both sides.
        missing = -x.shape[1] % stride
        padded = np.pad(x, [(0, 0), (missing // 2, missing - missing // 2)], constant_values=np.nan)
        x = np.nanmean(padded.reshape(len(x), -1, stride), -1)
    x = np.concatenate([x, inputs["dense"].numpy()], -1)
    for layer in model.top.layers:
        kernel, bias = layer.get_weights()
        x = np.maximum(x @ kernel + bias, 0)
    kernel, bias = model.logit.get_weights()
    return x @ kernel + bias


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_are_as_published(name):
    gigabytes, tables, features = PUBLISHED[name]
    size = synthetic_size(name)
    assert round(size.table_bytes / 2**30, 1) == gigabytes
    assert len(size.tables) == tables
    assert len(size.feature_names) == len(set(size.feature_names)) == len(size.input_table_map) == features
    assert list(synthetic_sizes()) == list(PUBLISHED)


def test_shared_tables_are_read_by_both_features():
    size = synthetic_size("tiny")
    assert size.tables[2].rows == 25_000_000
    assert size.tables[2].hotness == (1, 10)
    assert size.input_table_map[4:6] == (2, 2)
    assert [size.hotness[n] for n in size.feature_names[4:6]] == [1, 10]


def test_an_unknown_size_is_refused_with_all_names():
    with pytest.raises(ValueError, match="colossal"):
        synthetic_size("huge")


@pytest.mark.parametrize("stride", [None, 7])
def test_sharded_model_is_the_formula(stride):
    size = small(stride)
    embeddings = DistributedEmbedding(
        size.embedding_layers(),
        input_table_map=size.input_table_map,
        feature_names=list(size.feature_names),
    )
    model = SyntheticModel(embeddings, size.mlp, size.interaction_stride)
    inputs = inputs_of(size)
    got = model(inputs)
    assert got.shape == (6, 1)
    wanted = numpy_model(model, size, inputs, embeddings.get_weights())
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-6)


def test_trains_on_random_ids_of_its_features():
    size = small()
    layers = DistributedEmbedding(
        size.embedding_layers(), input_table_map=size.input_table_map, feature_names=list(size.feature_names)
    )
    model = SyntheticModel(layers, size.mlp)
    rows, hotness = size.vocabulary_sizes, size.hotness
    features = [Feature(name, rows[name], hotness[name]) for name in size.feature_names]
    source = RandomIds(features, size.numerical_features, 64)
    dataset = Batches(source, 32, shard_index=1, num_shards=2).to_tf_dataset()
    model.compile(DistributedOptimizer("adagrad"), keras.losses.BinaryCrossentropy(from_logits=True))
    history = model.fit(dataset, shuffle=False, verbose=0)
    assert np.isfinite(history.history["loss"][0])
    assert model.optimizer.iterations == 2


def test_keras_file_round_trip(tmp_path):
    size = small(3)
    layers = size.embedding_layers(RepeatedUniform())
    tables = {n: layers[t] for n, t in zip(size.feature_names, size.input_table_map, strict=True)}
    model = SyntheticModel(EmbeddingDict(tables), size.mlp, 3)
    inputs = inputs_of(size)
    expected = model(inputs)
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(keras.saving.load_model(tmp_path / "model.keras")(inputs), expected)


def test_repeated_uniform_is_uniform_and_of_any_shape():
    values = RepeatedUniform(0.5)((30_000, 7)).numpy()
    assert values.shape == (30_000, 7)
    assert abs(values.mean()) < 0.01
    assert np.abs(values).max() <= 0.5
    assert values.std() == pytest.approx(0.5 / np.sqrt(3), rel=0.02)
    assert RepeatedUniform()((2, 3), "float16").dtype == tf.float16
