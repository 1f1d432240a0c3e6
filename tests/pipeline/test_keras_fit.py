"""`fit` over two graphs: the same bits as without pipeline, callbacks, ways to stop, errors and the way back."""

from __future__ import annotations

import json
from pathlib import Path

import keras
import numpy as np
import pytest
from fit_model import BATCH, BATCHES, arrays, bits, data, fit, learnt, make_model

import distributed_embeddings.dist_model_parallel as dmp
from distributed.run import run_workers
from distributed_embeddings.pipeline import DirtyTablesError

WORKER = Path(__file__).with_name("fit_worker.py")


def tables(model):
    return model.get_layer("tables").get_weights()


def at_batch(number: int, do) -> keras.callbacks.Callback:
    return keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: batch == number and do())


def whole_epochs(model):
    """Epochs with validation, evaluation, prediction; tables read at the end of a batch in the midst of them."""
    seen = []
    reading = at_batch(2, lambda: seen.append(tables(model)))
    history = fit(model, data(), epochs=2, validation_data=data(2, 7), callbacks=[reading])
    assert len(seen) == 2
    return history, seen, model.evaluate(data(2, 3), verbose=0), model.predict(data(2, 3), verbose=0)


def parts_of_epochs(model):
    """The second epoch goes on where the first has stopped reading."""
    return fit(model, data().repeat(), epochs=2, steps_per_epoch=BATCHES - 3)


def stop_and_go_on(model):
    def stop():
        model.stop_training = True

    first = fit(model, data(), epochs=2, callbacks=[at_batch(2, stop)])
    steps = int(model.optimizer.iterations)
    assert steps == 3
    between = learnt(model)
    return first, between, fit(model, data())


def batch_by_batch(model):
    features, labels = arrays(3)
    logs = []
    for start in range(0, 3 * BATCH, BATCH):
        part = slice(start, start + BATCH)
        logs.append(model.train_on_batch({n: f[part] for n, f in features.items()}, labels[part]))
    return logs


def fit_on_arrays(model):
    """With a last batch that is smaller."""
    features, labels = arrays(3)
    return model.fit(features, labels, batch_size=BATCH - 1, epochs=1, verbose=0, shuffle=False).history


WAYS = [whole_epochs, parts_of_epochs, stop_and_go_on, batch_by_batch, fit_on_arrays]


@pytest.mark.parametrize("train", WAYS, ids=lambda f: f.__name__)
def test_same_bits_as_without_pipeline(train):
    found = {}
    for staleness in (None, 0, "exact"):
        model = make_model()
        if staleness is not None:
            dmp.pipeline(model, staleness)
        result = train(model)
        found[staleness] = bits([result, learnt(model)])
    assert found[0] == found[None]
    assert found["exact"] == found[None]


def weights_after_none(model):
    """The data's form changes: weights of samples come that the first step did not have."""
    features, labels = arrays(1)
    model.train_on_batch(features, labels)
    return model.train_on_batch(features, labels, sample_weight=np.zeros(BATCH, "f"))


def none_after_weights(model):
    features, labels = arrays(1)
    model.train_on_batch(features, labels, sample_weight=np.zeros(BATCH, "f"))
    return model.train_on_batch(features, labels)


def compiled_anew(model):
    fit(model, data())
    model.compile(optimizer=dmp.DistributedOptimizer(keras.optimizers.SGD(0.01)), loss="mse")
    return fit(model, data())


@pytest.mark.parametrize(
    "train", [weights_after_none, none_after_weights, compiled_anew], ids=lambda f: f.__name__
)
def test_what_changes_after_the_first_step_counts_or_is_refused(train):
    plain, model = make_model(), make_model()
    wanted = bits([train(plain), learnt(plain)])
    dmp.pipeline(model)
    try:
        result = train(model)
    except ValueError:
        return
    assert bits([result, learnt(model)]) == wanted


def test_a_lag_learns_something_else():
    results = []
    for staleness in (0, 1):
        model = make_model()
        dmp.pipeline(model, staleness)
        fit(model, data())
        results.append(bits(tables(model)))
    assert results[0] != results[1]


class Broken(RuntimeError):
    """What a callback raises."""


def test_an_error_of_a_callback_leaves_tables_that_must_be_restored(tmp_path):
    def fail():
        raise Broken("no disk left")

    model = make_model()
    kept = learnt(model)["tables"]
    dmp.pipeline(model)
    with pytest.raises(Broken, match="no disk left"):
        fit(model, data(), callbacks=[at_batch(2, fail)])
    for read in (
        lambda: tables(model),
        lambda: model.save_weights(tmp_path / "m.weights.h5"),
        lambda: model.predict(data(1), verbose=0),
    ):
        with pytest.raises((DirtyTablesError, Broken), match="no disk left"):
            read()
    with pytest.raises(DirtyTablesError, match="no disk left"):
        tables(model)
    model.get_layer("tables").set_weights(kept)
    assert bits(tables(model)) == bits(kept)
    dmp.pipeline(model)
    with pytest.raises(DirtyTablesError, match="slots"):  # Adam's moments hold half an update still
        fit(model, data())
    model.compile(optimizer=dmp.DistributedOptimizer(keras.optimizers.Adam(0.05)), loss="mse")
    dmp.pipeline(model)
    fit(model, data())
    after = tables(model)
    assert all(np.isfinite(t).all() for t in after) and bits(after) != bits(kept)
    model.save_weights(tmp_path / "m.weights.h5")


def test_remove_restores_fit():
    model, plain = make_model(), make_model()
    pipeline = dmp.pipeline(model)
    fit(model, data())
    pipeline.remove()
    assert "fit" not in vars(model) and "make_train_function" not in vars(model)
    fit(plain, data())
    assert bits(fit(model, data())) == bits(fit(plain, data()))
    assert bits(learnt(model)) == bits(learnt(plain))


def test_a_second_pipeline_replaces_the_first():
    model, other = make_model(), make_model()
    first = dmp.pipeline(model, 1)
    second = dmp.pipeline(model, "exact")
    fit(model, data())
    fit(other, data())
    assert bits(learnt(model)) == bits(learnt(other))
    assert second.report() is not None
    with pytest.raises(RuntimeError, match="nothing to report"):
        first.report()


@pytest.mark.parametrize(
    ("compiling", "reason"),
    [
        ({"optimizer": "sgd"}, "must be compiled with a dmp.DistributedOptimizer.*Received: optimizer SGD"),
        ({"run_eagerly": True}, "must not be compiled with run_eagerly=True"),
        ({"steps_per_execution": 2}, "steps_per_execution=1.*Received: steps_per_execution=2"),
    ],
)
def test_models_that_have_no_pipeline(compiling, reason):
    model = make_model(**compiling)
    with pytest.raises(ValueError, match=reason):
        dmp.pipeline(model)
    assert "fit" not in vars(model)


def test_a_model_that_is_not_compiled():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    with pytest.raises(ValueError, match="Received: optimizer NoneType"):
        dmp.pipeline(model)


def test_uneven_numbers_of_batches_on_two_workers(tmp_path):
    """Rank 1 has a batch less, which `fit` does not know of."""
    out = tmp_path / "out"
    run_workers([WORKER, out], 2, "mpi", timeout=120).check()
    ranks = [json.loads(Path(f"{out}.{rank}").read_text()) for rank in range(2)]
    for found in ranks:
        assert found["exact"] == found["0"]
        assert found["1"] != found["0"]
        assert {f["steps"] for f in found.values()} == {2 * BATCHES}
    for mode in ("0", "exact", "1"):
        assert ranks[0][mode]["learnt"] == ranks[1][mode]["learnt"]
