"""Slots, configs, names and the way from a Keras optimizer to a rule."""

import dataclasses
import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from distributed_embeddings import optimizers
from distributed_embeddings.optimizers.registry import RULES


def test_keras_hyperparameters_and_defaults_are_the_rules_own():
    pairs = [
        (keras.optimizers.SGD(), optimizers.SGD()),
        (keras.optimizers.Adagrad(), optimizers.Adagrad()),
        (optimizers.RowwiseAdagrad(), optimizers.RowwiseAdagradRule()),
        (keras.optimizers.Adam(), optimizers.Adam()),
        (keras.optimizers.AdamW(), optimizers.Adam(weight_decay=0.004)),
        (keras.optimizers.RMSprop(), optimizers.RMSprop()),
        (keras.optimizers.Ftrl(), optimizers.Ftrl()),
        (
            keras.optimizers.SGD(momentum=0.9, nesterov=True, clipvalue=2.0),
            optimizers.SGD(momentum=0.9, nesterov=True, clipvalue=2.0),
        ),
        (
            keras.optimizers.Adam(epsilon=np.float32(0.5), amsgrad=True),
            optimizers.Adam(epsilon=0.5, amsgrad=True),
        ),
    ]
    for keras_optimizer, rule in pairs:
        assert optimizers.from_keras(keras_optimizer) == rule
        assert optimizers.get(keras_optimizer) == rule


@pytest.mark.parametrize("kind", ["Lion", "Adamax", "Nadam", "Adadelta", "Lamb"])
def test_an_optimizer_without_a_row_rule_is_refused_by_name(kind):
    with pytest.raises(ValueError, match=rf"SGD, Adagrad, RowwiseAdagrad, Adam, .*{kind}"):
        optimizers.from_keras(getattr(keras.optimizers, kind)())


def test_a_subclass_is_another_optimizer():
    class Mine(keras.optimizers.SGD):
        def update_step(self, gradient, variable, learning_rate):
            """Something else."""

    with pytest.raises(ValueError, match="Mine"):
        optimizers.from_keras(Mine())


@pytest.mark.parametrize(
    "setting",
    [
        {"use_ema": True},
        {"gradient_accumulation_steps": 2},
        {"clipnorm": 1.0},
        {"global_clipnorm": 1.0},
        {"loss_scale_factor": 8.0},
    ],
)
def test_settings_that_cannot_be_lazy_are_refused(setting):
    with pytest.raises(ValueError, match=rf"`{next(iter(setting))}` must be unset.*Adam"):
        optimizers.from_keras(keras.optimizers.Adam(**setting))


@pytest.mark.parametrize("name", RULES)
def test_configs_survive_json(name):
    rule = optimizers.get(name)
    assert rule.name == name
    changed = dataclasses.replace(rule, weight_decay=0.5, clipvalue=3.0)
    assert optimizers.get(json.loads(json.dumps(changed.get_config()))) == changed
    assert type(rule).from_config(changed.get_config()) == changed
    assert optimizers.get(rule) is rule


@pytest.mark.parametrize("identifier", ["lamb", {"name": "lamb"}, {}, 3])
def test_unknown_names_are_refused_with_the_list(identifier):
    with pytest.raises(ValueError, match="rowwise_adagrad"):
        optimizers.get(identifier)


def test_bad_hyperparameters_are_refused():
    with pytest.raises(ValueError, match=r"`momentum`.*1\.5"):
        optimizers.SGD(momentum=1.5)
    with pytest.raises(ValueError, match="`learning_rate_power`"):
        optimizers.Ftrl(learning_rate_power=0.5)
    with pytest.raises(ValueError, match="`l1_regularization_strength`"):
        optimizers.Ftrl(l1_regularization_strength=-1.0)


def test_slots_have_their_shape_value_and_name_and_are_the_variable_itself():
    rule = optimizers.RowwiseAdagradRule(initial_accumulator_value=0.25)
    slot = rule.create_slots((6, 4), "tower/table")["accumulator"]
    assert slot.name == "tower_table_accumulator"
    assert slot.trainable is False
    assert (slot.numpy() == np.full((6, 1), 0.25, np.float32)).all()
    with keras.src.backend.common.variables.AutocastScope("bfloat16"):
        assert isinstance(slot.value, tf.Variable)
    assert rule.couples_columns
    assert not optimizers.Adagrad().couples_columns
    adam = optimizers.Adam(amsgrad=True)
    assert {name: tuple(v.shape) for name, v in adam.create_slots((6, 4), "t").items()} == {
        "momentum": (6, 4),
        "velocity": (6, 4),
        "velocity_hat": (6, 4),
    }
    assert optimizers.SGD().create_slots((6, 4), "t") == {}


def test_slots_can_be_tracked_by_a_keras_optimizer():
    optimizer = keras.optimizers.SGD()
    slots = optimizers.Adagrad().create_slots((3, 2), "table")
    optimizer.row_slots = slots
    assert any(v is slots["accumulator"] for v in optimizer.variables)


def test_rowwise_adagrad_is_a_keras_optimizer_that_can_be_saved():
    optimizer = optimizers.RowwiseAdagrad(0.5, initial_accumulator_value=0.3, epsilon=1e-4)
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(again) is optimizers.RowwiseAdagrad
    assert again.get_config() == optimizer.get_config()
    rule = optimizers.RowwiseAdagradRule(initial_accumulator_value=0.3, epsilon=1e-4)
    assert optimizers.from_keras(again) == rule


def test_rowwise_adagrad_updates_dense_variables_as_adagrad():
    results = []
    for kind in (optimizers.RowwiseAdagrad, keras.optimizers.Adagrad):
        variable = keras.Variable(np.ones((2, 2), np.float32))
        kind(0.1).apply([tf.constant([[1.0, 2.0], [3.0, 4.0]])], [variable])
        results.append(variable.numpy())
    assert (results[0] == results[1]).all()
