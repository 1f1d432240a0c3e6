"""Ids are made without the rest of a step, and are those of the step."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from recorded import (
    ROWS,
    asked_by,
    check_alike,
    check_extraction,
    extracted,
    numbers,
    record,
    tables,
)

import distributed_embeddings.dist_model_parallel as dmp
from distributed_embeddings.pipeline.embedding_pipeline import make_step
from distributed_embeddings.pipeline.recording import Extraction
from distributed_embeddings.pipeline.tensors import flatten

WORDS = ["ant", "bee", "cat", "dog"]


def words(seed: int, *shape: int) -> tf.Tensor:
    return tf.constant(np.random.default_rng(seed).choice([*WORDS, "eel", ""], shape))


def ragged(values: tf.Tensor, *lengths: int) -> tf.RaggedTensor:
    return tf.RaggedTensor.from_row_lengths(values, lengths)


def sparse(values: tf.Tensor, rows: list[int], size: int) -> tf.SparseTensor:
    indices = [[r, rows[:i].count(r)] for i, r in enumerate(rows)]
    return tf.SparseTensor(indices, values, [size, 3])


PREPROCESSING = {
    "hashing": (lambda: keras.layers.Hashing(ROWS), [words(0, 3), words(1, 5)]),
    "salted hashing of bags": (lambda: keras.layers.Hashing(ROWS, salt=7), [words(0, 3, 2), words(1, 0, 2)]),
    "hashing of numbers": (lambda: keras.layers.Hashing(ROWS), [numbers(0, 3), numbers(1, 9)]),
    "string lookup": (lambda: keras.layers.StringLookup(vocabulary=WORDS), [words(0, 8), words(1, 2)]),
    "string lookup, many unknown": (
        lambda: keras.layers.StringLookup(vocabulary=WORDS, num_oov_indices=3, mask_token=""),
        [words(0, 8, 2), words(1, 2, 2)],
    ),
    "integer lookup": (
        lambda: keras.layers.IntegerLookup(vocabulary=[3, 5, 7]),
        [numbers(0, 9), numbers(1, 4)],
    ),
    "discretization": (
        lambda: keras.layers.Discretization(bin_boundaries=[0.0, 1.0, 2.5]),
        [tf.constant([-1.0, 0.5, 9.0]), tf.constant([2.5, 0.0])],
    ),
    "hashing of ragged bags": (
        lambda: keras.layers.Hashing(ROWS),
        [ragged(words(0, 4), 3, 0, 1), ragged(words(1, 2), 0, 2)],
    ),
    "string lookup of sparse bags": (
        lambda: keras.layers.StringLookup(vocabulary=WORDS),
        [sparse(words(0, 4), [0, 0, 2, 3], 4), sparse(words(1, 1), [1], 2)],
    ),
}


@pytest.mark.parametrize("which", PREPROCESSING)
def test_keras_preprocessing(which):
    make, batches = PREPROCESSING[which]
    prepare, layer = make(), tables("tables", "word")

    def step(dense, word):
        return layer({"word": prepare(word)})["word"] * tf.reduce_sum(dense)

    check_extraction(
        step, *((tf.ones([2, 3]), batch) for batch in batches), inputs=needed(batches[0], after=1)
    )


def needed(*features: Any, after: int = 0) -> list[int]:
    return list(range(after, after + len(flatten(features))))


def test_category_encoding_as_weights():
    """One row a category, weighted by how often a sample has it: ids without any input, weights of one."""
    encode = keras.layers.CategoryEncoding(num_tokens=6, output_mode="count")
    layer = tables("tables", "category")

    def step(dense, category):
        weights = encode(category)
        ids = tf.tile(tf.range(6)[None], [tf.shape(weights)[0], 1])
        return layer([ids], [weights])[0] * dense

    extraction = check_extraction(
        step,
        (tf.ones([2, 1]), tf.constant([[0, 5, 5], [1, 2, 3]])),
        (tf.ones([1, 1]), tf.constant([[4, 4, 4]])),
        inputs=[1],
    )
    (ids, weights), *_ = extracted(extraction, tf.ones([1, 1]), tf.constant([[0, 5, 5]]))
    assert (ids.tolist(), weights.tolist()) == ([[0, 1, 2, 3, 4, 5]], [[1, 0, 0, 0, 0, 2]])


def test_a_functional_model():
    dense, word = keras.Input([3], name="features"), keras.Input([2], dtype="string", name="word")
    found = tables("tables", "word")([keras.layers.Hashing(ROWS)(word)])[0]
    joined = keras.layers.Concatenate()([keras.layers.Dropout(0.5)(dense), found])
    model = keras.Model({"features": dense, "word": word}, keras.layers.Dense(1)(joined))
    batches = [({"features": tf.ones([n, 3]), "word": words(n, n, 2)},) for n in (4, 1)]
    check_extraction(lambda features: model(features, training=True), *batches, inputs=[1])


def test_checks_of_ids_go_with_them():
    layer = tables("tables", "x")

    def step(x, dense):
        with tf.control_dependencies([tf.debugging.assert_less(x, tf.constant(10, tf.int64))]):
            return layer([tf.identity(x)]), dense

    extraction = check_extraction(step, (numbers(0, 4) % 10, tf.ones([1])), inputs=[0])
    with pytest.raises(tf.errors.InvalidArgumentError, match="assertion failed"):
        extraction([tf.constant([3, 11], tf.int64)])


KINDS = {
    "one id a sample": (numbers(0, 4), numbers(1, 2)),
    "bags": (numbers(0, 4, 3), numbers(1, 0, 3)),
    "ragged": (ragged(numbers(0, 5), 2, 0, 3), ragged(numbers(1, 1), 1)),
    "ragged, narrow splits": (
        ragged(numbers(0, 5), 2, 0, 3).with_row_splits_dtype(tf.int32),
        ragged(numbers(1, 1), 1).with_row_splits_dtype(tf.int32),
    ),
    "sparse": (sparse(numbers(0, 3), [0, 2, 2], 4), sparse(numbers(1, 1), [0], 1)),
}


@pytest.mark.parametrize("combiner", ["mean", None])
@pytest.mark.parametrize("kind", KINDS)
def test_ids_straight_from_inputs(kind, combiner):
    """They are handed on as they are: there is no function to run."""
    layer = tables("tables", "x", combiner=combiner)

    def step(x, dense):
        return layer([x])[0], dense + 1

    one, two = KINDS[kind]
    extraction = check_extraction(step, (one, tf.ones([2])), (two, tf.ones([1])), inputs=needed(one))
    flat = flatten(two)
    made = extraction(flat)
    assert all(a is b for a, b in zip(flatten(made), flat, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_weighted_ids(kind):
    layer = tables("tables", "x", "y")

    def step(dense, x, y, w):
        return layer([x, y * 2 % ROWS], [as_weights(w), None]), dense

    def as_weights(w):
        return tf.cast(w, tf.float32)

    batches = [(tf.ones([2]), x, numbers(9, x.shape[0]), x) for x in KINDS[kind]]
    check_extraction(step, *batches, inputs=needed(*batches[0][1:], after=1))


def test_one_input_for_several_layers():
    """Each site gets its own ids; what two of them need is fed once."""
    one, two = tables("one", "x", "y"), tables("two", "z")

    def step(x, dense, y):
        return one([x, y]), two([(x + y) % ROWS]), dense

    batches = [(numbers(s, 3), tf.ones([1]), numbers(s + 1, 3)) for s in (0, 5)]
    check_extraction(step, *batches, inputs=[0, 2])


class Full(keras.Model):
    """Side effects of all kinds beside its ids, and a dense part."""

    def __init__(self) -> None:
        super().__init__()
        self.hash = keras.layers.Hashing(ROWS)
        self.lookup = keras.layers.StringLookup(vocabulary=WORDS)
        self.tables = tables("tables", "word", "bag", "straight")
        self.calls = tf.Variable(0, trainable=False)
        self.mean = keras.metrics.Mean()
        self.norm = keras.layers.BatchNormalization()
        self.dropout = keras.layers.Dropout(0.5, seed=3)
        self.dense = keras.layers.Dense(1)

    def call(self, inputs, training=False):
        self.calls.assign_add(1)
        self.mean.update_state(inputs["dense"])
        ids = {
            "word": self.hash(inputs["word"]),
            "bag": self.lookup(inputs["bag"]),
            "straight": inputs["straight"],
        }
        found = self.tables(ids)
        x = tf.concat([self.norm(inputs["dense"], training=training), *found.values()], -1)
        return self.dense(self.dropout(x, training=training))

    def state(self):
        return [keras.ops.convert_to_numpy(v) for v in [*self.variables, self.calls]]


def full_batch(seed: int, size: int):
    features = {
        "bag": words(seed, size, 2),
        "dense": tf.random.stateless_normal([size, 3], [seed, 0]),
        "straight": numbers(seed, size),
        "word": words(seed + 1, size),
    }
    return features, tf.ones([size, 1])


def test_a_training_step():
    """Forward, backward and update are traced; of all that only the ids are run."""
    model = Full()
    model(full_batch(0, 2)[0])
    optimizer = dmp.DistributedOptimizer(keras.optimizers.Adam())
    loss = keras.losses.MeanSquaredError()
    step = make_step(model, loss, optimizer)
    concrete, sites, refused = record(step, *full_batch(0, 4), trainable=model.trainable_variables)
    assert not refused and len(sites) == 1
    extraction = Extraction(concrete, sites)
    assert extraction.inputs == [0, 2, 3]  # of bag, dense, straight, word, labels
    before = model.state()
    found = [extracted(extraction, *full_batch(seed, 5)) for seed in range(3)]
    for one, two in zip(before, model.state(), strict=True):
        np.testing.assert_array_equal(one, two)
    assert int(model.calls) == 1
    for seed in range(3):
        wanted = asked_by(lambda features, _: model(features), *full_batch(seed, 5))
        check_alike(found[seed], wanted)


def test_the_trace_itself_changes_nothing():
    model = Full()
    model(full_batch(0, 2)[0])
    before = model.state()
    record(lambda features: model(features, training=True), full_batch(0, 2)[0])
    for one, two in zip(before, model.state(), strict=True):
        np.testing.assert_array_equal(one, two)


def test_variables_that_stand_still_may_be_read():
    remap = tf.Variable(tf.range(ROWS)[::-1], trainable=False)
    shift = keras.Variable(3, trainable=False, dtype="int64")
    layer = tables("tables", "x")

    def step(x):
        return layer([tf.cast(tf.gather(tf.identity(remap), x), tf.int64) - shift])

    check_extraction(step, (numbers(0, 4) % 5,))


def test_rows_of_a_variable_that_stands_still_may_be_read():
    remap = tf.Variable(tf.range(ROWS)[::-1], trainable=False)
    layer = tables("tables", "x")
    check_extraction(lambda x: layer([tf.gather(remap, x)]), (numbers(0, 4),))


def test_functions_and_loops_may_make_ids():
    layer, other = tables("tables", "x"), tables("other", "x")

    @tf.function
    def fold(x):
        return x * 7 % ROWS

    def step(x):
        odd = tf.map_fn(lambda i: tf.cond(i % 2 == 1, lambda: i, lambda: i + 1), x)
        return layer([fold(x)]), other([odd % ROWS])

    check_extraction(step, (numbers(0, 4),), (numbers(1, 6),))
