"""Tables whose optimizer slots lie beside the rows are, to everybody, ordinary variables."""

import gc
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import distributed_embeddings.dist_model_parallel as dmp
from distributed_embeddings.layers import slots
from distributed_embeddings.layers.slots import SlotView
from distributed_embeddings.ops.table_resource import TableResource
from twins import needs_kernels

pytestmark = needs_kernels

ROWS, DIM = 12, 5
IDS = tf.constant([[1, 1], [4, 7]])


def _layer(dtype="float32", rows=ROWS, dim=DIM):
    layer = dmp.Embedding(rows, dim, "sum", dtype=dtype, name="table")
    layer.build()
    layer.embeddings.assign(_start(rows, dim))
    return layer


def _start(rows=ROWS, dim=DIM):
    return (np.arange(rows * dim, dtype=np.float32).reshape(rows, dim) - 20) / 8


def _adagrad():
    return dmp.DistributedOptimizer(keras.optimizers.Adagrad(0.1))


def _step(layer, optimizer, ids=IDS):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(ids) * 2.0)
    variables = layer.trainable_variables
    optimizer.apply(tape.gradient(loss, variables), variables)


def _slots(optimizer):
    return [v for v in optimizer.inner_optimizer.variables if "embeddings" in v.name]


@pytest.fixture(autouse=True)
def small_tables_too(monkeypatch):
    monkeypatch.setattr(slots, "LEAST_BYTES", 0)


@pytest.fixture(params=["narrow", "wide"])
def layer(request):
    """A table without slots, and one with slots beside its rows."""
    made = _layer()
    if request.param == "wide":
        made.keep = _adagrad()
        made.keep.build(made.trainable_variables)
        (slot,) = _slots(made.keep)
        assert isinstance(slot, SlotView)
    assert isinstance(made.embeddings.value, TableResource)
    return made


def test_it_reads_as_a_variable_of_its_shape(layer):
    table = layer.embeddings
    assert tuple(table.shape) == tuple(table.value.shape) == (ROWS, DIM)
    for value in (
        table.numpy(),
        np.asarray(table),
        tf.convert_to_tensor(table).numpy(),
        table.value.numpy(),
        table.value.read_value().numpy(),
        table.value.value().numpy(),
        (table * 1.0).numpy(),
        table.value[:].numpy(),
        tf.function(lambda: table.value + 0.0)().numpy(),
        keras.ops.convert_to_numpy(table),
        layer.get_weights()[0],
    ):
        assert value.shape == (ROWS, DIM)
        assert (value == _start()).all()
    assert (table.value[3:5, 1].numpy() == _start()[3:5, 1]).all()


def test_rows_are_gathered(layer):
    table = layer.embeddings.value
    ids = tf.constant([[3, 3], [0, 11]])
    expected = _start()[ids.numpy()]
    for found in (
        tf.gather(table, ids),
        tf.gather(table, tf.cast(ids, tf.int64)),
        tf.gather(table, [4, 0], axis=1),
        tf.function(lambda: tf.gather(table, ids))(),
        tf.nn.embedding_lookup(table, ids),
        tf.gather_nd(table, ids[..., None]),
        keras.ops.take(layer.embeddings, ids, axis=0),
    ):
        want = expected if found.shape == expected.shape else _start()[:, [4, 0]]
        assert (found.numpy() == want).all()
    assert tf.gather_nd(table, [[3, 1]]).numpy() == _start()[3, 1]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"id 12 is outside \[0, 12\)"):
        tf.gather(table, [0, 12])


def test_it_is_assigned(layer):
    table = layer.embeddings
    table.assign_add(np.ones((ROWS, DIM), np.float32))
    table.assign_sub(np.full((ROWS, DIM), 3.0, np.float32))
    assert (table.numpy() == _start() - 2).all()
    table.value.assign_add(tf.fill([ROWS, DIM], 2.0))
    assert (table.numpy() == _start()).all()
    held = table.value.read_value()
    tf.function(lambda: table.assign(tf.zeros([ROWS, DIM])))()
    assert not table.numpy().any()
    assert (held.numpy() == _start()).all(), "what was read keeps its value"
    layer.set_weights([_start()])
    assert (table.numpy() == _start()).all()
    for wrong in (np.zeros((ROWS - 1, DIM)), np.zeros((ROWS, DIM + 1)), np.zeros(DIM)):
        with pytest.raises(ValueError, match="shape"):
            table.value.assign(wrong.astype(np.float32))


def test_rows_are_overwritten_in_place(layer):
    table, expected = layer.embeddings.value, _start()
    slices = tf.IndexedSlices(tf.fill([2, DIM], 5.0), tf.constant([3, 9]))
    expected[[3, 9]] = 5.0
    table.scatter_update(slices)
    assert (table.numpy() == expected).all()
    table.scatter_add(slices)
    expected[[3, 9]] += 5.0
    assert (table.numpy() == expected).all()
    table.scatter_sub(slices)
    expected[[3, 9]] -= 5.0
    assert (table.numpy() == expected).all()
    table.scatter_add(tf.IndexedSlices(tf.ones([3, DIM]), tf.constant([3, 3, 1], tf.int64)))
    np.add.at(expected, [3, 3, 1], 1.0)
    assert (table.numpy() == expected).all()
    with pytest.raises(NotImplementedError, match="can be changed by"):
        table.scatter_nd_update([[3], [9]], tf.zeros([2, DIM]))
    table[2:4].assign(tf.ones([2, DIM]))
    expected[2:4] = 1.0
    assert (table.numpy() == expected).all()


def test_an_assignment_of_unknown_shape_that_does_not_fit_is_an_error(layer):
    @tf.function(input_signature=[tf.TensorSpec([None, None])])
    def assign(value):
        layer.embeddings.value.assign(value)

    assign(tf.zeros([ROWS, DIM]))
    for shape in ([ROWS - 1, DIM], [ROWS, DIM - 1], [ROWS + 1, DIM]):
        with pytest.raises(tf.errors.InvalidArgumentError):
            assign(tf.ones(shape))
    assert not layer.embeddings.numpy().any()


@pytest.mark.parametrize("traced", [False, True])
def test_a_dense_read_has_a_dense_gradient(layer, traced):
    def gradient():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer.embeddings * 2.0) + tf.reduce_sum(layer.embeddings.value[1])
        return tape.gradient(loss, layer.embeddings.value)

    expected = np.full((ROWS, DIM), 2.0)
    expected[1] += 1.0
    found = (tf.function(gradient) if traced else gradient)()
    assert (tf.convert_to_tensor(found).numpy() == expected).all()


@pytest.mark.parametrize("traced", [False, True])
def test_a_regularized_table_gets_both_gradients(traced):
    """Looked up and read whole in one step."""
    layer, twin = _layer(), _layer()
    optimizer = _adagrad()

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(IDS)) + tf.reduce_sum(layer.embeddings**2)
        optimizer.apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)

    (tf.function(step) if traced else step)()
    dense = 2 * _start()
    np.add.at(dense, IDS.numpy().ravel(), 1.0)
    expected = _start() - 0.1 * dense / np.sqrt(0.1 + dense**2 + 1e-7)
    np.testing.assert_allclose(layer.embeddings.numpy(), expected, rtol=1e-5, atol=1e-6)
    assert (twin.embeddings.numpy() == _start()).all()


def test_functions_traced_before_the_slots_were_laid_stay_right():
    layer = _layer()
    table = layer.embeddings.value
    reads = [
        tf.function(lambda: layer(IDS)),
        tf.function(lambda: tf.gather(table, [3, 4])),
        tf.function(lambda: table.read_value()),
        tf.function(lambda: tf.gather_nd(table, [[2]])),
    ]
    write = tf.function(lambda value: layer.embeddings.assign(value))
    before = [r().numpy() for r in reads]
    write(_start())
    optimizer = _adagrad()
    optimizer.build(layer.trainable_variables)
    assert isinstance(_slots(optimizer)[0], SlotView)
    for read, value in zip(reads, before, strict=True):
        assert (read().numpy() == value).all()
    write(_start() + 1)
    assert (layer.embeddings.numpy() == _start() + 1).all()
    assert (_slots(optimizer)[0].numpy() == np.float32(0.1)).all()


def test_the_optimizer_shows_the_slots():
    layer, optimizer = _layer(), _adagrad()
    optimizer.build(layer.trainable_variables)
    (slot,) = _slots(optimizer)
    assert slot.name == "embeddings_accumulator"
    assert tuple(slot.shape) == (ROWS, DIM)
    assert slot.dtype == "float32"
    assert (slot.numpy() == np.float32(0.1)).all()
    slot.assign(_start() + 10)
    assert (np.asarray(slot) == _start() + 10).all()
    assert (slot.value.numpy() == _start() + 10).all()
    assert (layer.embeddings.numpy() == _start()).all()
    with pytest.raises(ValueError, match="`value` must be of shape"):
        slot.assign(np.zeros(3))
    _step(layer, optimizer)
    assert (slot.numpy()[[0, 2, 3]] == (_start() + 10)[[0, 2, 3]]).all()
    np.testing.assert_allclose(slot.numpy()[1], _start()[1] + 10 + 16, rtol=1e-6)


@pytest.mark.parametrize("restored_into", ["narrow", "wide"])
def test_a_checkpoint_brings_back_the_table_and_its_slots(tmp_path, restored_into):
    layer, optimizer = _layer(), _adagrad()
    _step(layer, optimizer)
    path = tf.train.Checkpoint(layer=layer, optimizer=optimizer).write(str(tmp_path / "checkpoint"))
    table, accumulator = layer.embeddings.numpy(), _slots(optimizer)[0].numpy()
    _step(layer, optimizer)
    after = layer.embeddings.numpy()
    other, fresh = dmp.Embedding(ROWS, DIM, "sum", name="table"), _adagrad()
    other.build()
    if restored_into == "wide":
        fresh.build(other.trainable_variables)
    status = tf.train.Checkpoint(layer=other, optimizer=fresh).read(path)
    fresh.build(other.trainable_variables)
    status.assert_existing_objects_matched()
    assert (other.embeddings.numpy() == table).all()
    assert (_slots(fresh)[0].numpy() == accumulator).all()
    _step(other, fresh)
    assert (other.embeddings.numpy() == after).all()


def test_a_second_optimizer_keeps_its_slots_elsewhere_while_the_first_lives():
    layer, first, second = _layer(), _adagrad(), dmp.DistributedOptimizer(keras.optimizers.Adam(0.1))
    _step(layer, first)
    (accumulator,) = _slots(first)
    held = accumulator.numpy()
    _step(layer, second)
    assert len(_slots(second)) == 2
    assert not any(isinstance(s, SlotView) for s in _slots(second))
    assert (accumulator.numpy() == held).all()
    _step(layer, first)
    assert (accumulator.numpy()[[1, 4, 7]] > held[[1, 4, 7]]).all()


def test_the_place_beside_the_rows_is_free_again_when_its_optimizer_is_gone():
    layer, first = _layer(), _adagrad()
    _step(layer, first)
    table = layer.embeddings.numpy()
    del first
    gc.collect()
    second = dmp.DistributedOptimizer(keras.optimizers.Adam(0.1))
    second.build(layer.trainable_variables)
    assert (layer.embeddings.numpy() == table).all()
    slots = _slots(second)
    assert [type(s) for s in slots] == [SlotView, SlotView]
    assert not any(s.numpy().any() for s in slots)
    _step(layer, second)
    assert (layer.embeddings.numpy() != table).any(axis=1).tolist() == [i in (1, 4, 7) for i in range(ROWS)]


def test_slots_of_an_optimizer_that_is_gone_do_not_show_those_of_the_next():
    layer, first = _layer(), _adagrad()
    _step(layer, first)
    (slot,) = _slots(first)
    held = slot.numpy()
    del first
    gc.collect()
    second = dmp.DistributedOptimizer(keras.optimizers.Adam(0.1))
    _step(layer, second)
    assert (slot.numpy() == held).all()
    slot.assign(held + 1)
    assert not any((s.numpy() == held + 1).any() for s in _slots(second))


class OneTable(keras.Model):
    def __init__(self):
        super().__init__()
        self.table = dmp.DistributedEmbedding([dmp.Embedding(ROWS, DIM, "sum")])
        self.head = keras.layers.Dense(1)

    def call(self, inputs):
        return self.head(self.table([inputs])[0])


def _fit(model, epochs=1):
    ids = np.random.default_rng(0).integers(0, ROWS, (32, 2))
    labels = (ids.sum(1) % 2).astype(np.float32)
    return model.fit(ids, labels, batch_size=8, epochs=epochs, verbose=0, shuffle=False).history["loss"]


def test_a_model_is_compiled_again_with_another_optimizer():
    keras.utils.set_random_seed(0)
    model = OneTable()
    losses = []
    for name in ("adagrad", "adam", "rowwise_adagrad", "sgd", "rmsprop"):
        model.compile(dmp.DistributedOptimizer(name), "mse")
        losses += _fit(model, 3)
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]


def test_a_plain_keras_optimizer_works_after_a_distributed_one():
    layer, first = _layer(), _adagrad()
    _step(layer, first)
    table = layer.embeddings.numpy()
    (accumulator,) = _slots(first)
    held = accumulator.numpy()
    plain = keras.optimizers.SGD(0.5)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(IDS))
    plain.apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)
    expected = table.copy()
    expected[[1, 4, 7]] -= 0.5 * np.array([[2.0], [1.0], [1.0]], np.float32)
    np.testing.assert_allclose(layer.embeddings.numpy(), expected, rtol=1e-6)
    assert (accumulator.numpy() == held).all()


@pytest.mark.parametrize("traced", [False, True])
def test_a_frozen_table_keeps_its_values_and_one_frozen_later_too(traced):
    tables = dmp.DistributedEmbedding(
        [dmp.Embedding(ROWS, DIM, "sum", name=n) for n in "ab"], strategy="basic"
    )
    tables.build()
    a, b = tables.trainable_variables
    optimizer = _adagrad()

    def step():
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(o) for o in tables([IDS, IDS])])
        variables = tables.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)

    def moved(variable, run):
        before = variable.numpy()
        run()
        return (variable.numpy() != before).any()

    a.trainable = False
    assert len(tables.trainable_variables) == 1
    run = tf.function(step) if traced else step
    assert not moved(a, run)
    assert moved(b, run)
    a.trainable = True
    run = tf.function(step) if traced else step
    assert moved(a, run)
    b.trainable = False
    run = tf.function(step) if traced else step
    assert not moved(b, run)
    assert moved(a, run)


_LOAD = """
import sys
import distributed_embeddings.dist_model_parallel
import tensorflow as tf
loaded = tf.saved_model.load(sys.argv[1])
print(loaded.serve(tf.constant([[1, 1], [4, 7]])).numpy().tolist())
"""


@pytest.mark.parametrize("wide", [False, True])
def test_a_saved_model_serves_in_another_process(tmp_path, wide):
    layer, optimizer = _layer(), _adagrad()
    if wide:
        _step(layer, optimizer)
    module = tf.Module()
    module.layer = layer
    module.serve = tf.function(lambda ids: layer(ids), input_signature=[tf.TensorSpec([None, 2], tf.int32)])
    tf.saved_model.save(module, str(tmp_path / "model"))
    run = subprocess.run(
        [sys.executable, "-c", _LOAD, str(tmp_path / "model")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.strip() == str(layer(IDS).numpy().tolist())
