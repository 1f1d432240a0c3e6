"""Ids are made without the rest of a step, and are those of the step; what cannot be so is refused by name."""

from __future__ import annotations

import re
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import distributed_embeddings.dist_model_parallel as dmp
from distributed_embeddings.layers.hand_over import handed_over
from distributed_embeddings.pipeline.embedding_pipeline import make_step
from distributed_embeddings.pipeline.recording import Extraction, Recorder
from distributed_embeddings.pipeline.tensors import Form, any_batch, flatten

ROWS, DIM = 20, 4

functions_not_read = pytest.mark.xfail(
    strict=True, reason="recording.py does not look into the functions that conditions, loops and calls run"
)


def tables(name: str, *features: str, combiner: str | None = "sum", **options) -> dmp.DistributedEmbedding:
    embeddings = [dmp.Embedding(ROWS, DIM, combiner, name=f"table_{f}") for f in features]
    return dmp.DistributedEmbedding(embeddings, feature_names=features, name=name, **options)


def record(step, *features: Any, trainable=()):
    """Trace a step as the pipeline does. Returns the concrete function, the sites that can be cut off, and why others
    cannot. Warnings are errors in tests: where something is refused, the test must say so."""
    spec = tuple(tf.nest.map_structure(lambda f: any_batch(tf.type_spec_from_value(f)), f) for f in features)
    form, recorder = Form(spec), Recorder()
    concrete = recorder.trace(lambda *flat: step(*form.pack(flat)), flatten(spec))
    return concrete, recorder.usable(concrete.graph, trainable), recorder.refused


class Spy:
    """Notes what each lookup of an eager step is asked, and lets it be."""

    def __init__(self) -> None:
        self.asked: list[list[np.ndarray]] = []

    def on_lookup(self, layer, ids, weights):
        self.asked.append([t.numpy() for t in flatten([ids, weights])])

    def covers(self, plan):
        return False


def asked_by(step, *features: Any) -> list[list[np.ndarray]]:
    spy = Spy()
    with handed_over(spy):
        step(*features)
    return spy.asked


def extracted(extraction: Extraction, *features: Any) -> list[list[np.ndarray]]:
    """Made eagerly and, alike, inside a function, as the embedding graph does."""
    flat = flatten(features)
    part = [flat[i] for i in extraction.inputs]
    made = [[t.numpy() for t in flatten(site)] for site in extraction(part)]
    traced = tf.function(lambda *part: [flatten(site) for site in extraction(part)])(*part)
    check_alike([[t.numpy() for t in site] for site in traced], made)
    return made


def check_extraction(step, *batches: tuple[Any, ...], inputs: list[int] | None = None) -> Extraction:
    """The extraction recorded from the first batch gives every batch the ids that the step would look up."""
    concrete, sites, refused = record(step, *batches[0])
    assert not refused
    extraction = Extraction(concrete, sites)
    for batch in batches:
        check_alike(extracted(extraction, *batch), asked_by(step, *batch))
    if inputs is not None:
        assert extraction.inputs == inputs
    return extraction


def check_alike(found: list[list[np.ndarray]], wanted: list[list[np.ndarray]]) -> None:
    for site, asked in zip(found, wanted, strict=True):
        for mine, theirs in zip(site, asked, strict=True):
            assert mine.dtype == theirs.dtype
            np.testing.assert_array_equal(mine, theirs)


# What ids may be made of

WORDS = ["ant", "bee", "cat", "dog"]


def words(seed: int, *shape: int) -> tf.Tensor:
    return tf.constant(np.random.default_rng(seed).choice([*WORDS, "eel", ""], shape))


def numbers(seed: int, *shape: int) -> tf.Tensor:
    return tf.constant(np.random.default_rng(seed).integers(0, ROWS, shape))


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


@functions_not_read
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


@pytest.mark.xfail(strict=True, reason="recording.py takes ResourceGather for a side effect")
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


# What ids must not be made of


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


@pytest.mark.parametrize(
    "change",
    [
        plain_assign,
        pytest.param(assign_in_a_condition, marks=functions_not_read),
        pytest.param(assign_in_a_function, marks=functions_not_read),
    ],
)
def test_ids_from_a_variable_that_the_step_will_assign(change):
    counter = tf.Variable(0, dtype=tf.int64, trainable=False)
    layer = tables("tables", "x")

    def step(x):
        found = layer([(x + counter) % ROWS])
        change(counter)
        return found

    check_refused(step, numbers(0, 2), reason="a variable that the step changes")


@pytest.mark.xfail(strict=True, reason="recording.py knows writes of variables only, not of tables")
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


@functions_not_read
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
