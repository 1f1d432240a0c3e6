"""Keras optimizer → the row rule of the same name and hyperparameters."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras

from distributed_embeddings.optimizers.adagrad import Adagrad
from distributed_embeddings.optimizers.adam import Adam
from distributed_embeddings.optimizers.ftrl import Ftrl
from distributed_embeddings.optimizers.rmsprop import RMSprop
from distributed_embeddings.optimizers.rowwise_adagrad import RowwiseAdagrad, RowwiseAdagradRule
from distributed_embeddings.optimizers.rule import RowOptimizer
from distributed_embeddings.optimizers.sgd import SGD

_RULES: dict[type[keras.optimizers.Optimizer], type[RowOptimizer]] = {
    keras.optimizers.SGD: SGD,
    keras.optimizers.Adagrad: Adagrad,
    RowwiseAdagrad: RowwiseAdagradRule,
    keras.optimizers.Adam: Adam,
    keras.optimizers.AdamW: Adam,
    keras.optimizers.RMSprop: RMSprop,
    keras.optimizers.Ftrl: Ftrl,
}

# What a rule that sees only some rows of one shard cannot do, and why.
_NOT_LAZY = {
    "use_ema": "the average of a table is a second table, and every step would read and write both whole",
    "gradient_accumulation_steps": "the accumulated gradient of a table is a second table",
    "clipnorm": "the norm spans all shards of a table; use clipvalue",
    "global_clipnorm": "the norm spans all shards of all tables; use clipvalue",
    "loss_scale_factor": "the gradients of tables arrive unscaled; use keras.optimizers.LossScaleOptimizer",
}


# What a rule has and no Keras optimizer.
OWN_FIELDS = ("stochastic_rounding", "seed")


def from_keras(optimizer: keras.optimizers.Optimizer) -> RowOptimizer:
    """The row rule with a Keras optimizer's hyperparameters. The learning rate is not one of them: `apply`
    takes it.

    Raises ValueError for an optimizer without a row rule (a subclass counts as another optimizer: it may have
    overridden the update), and for settings that cannot be had at a cost that follows the ids.
    """
    rule = _RULES.get(type(optimizer))
    if rule is None:
        supported = ", ".join(kind.__name__ for kind in _RULES)
        raise ValueError(
            f"`optimizer` must be one of {supported} to update embedding tables by rows. "
            f"Received: optimizer={optimizer.name!r} (of type {type(optimizer).__name__})."
        )
    for setting, reason in _NOT_LAZY.items():
        value = getattr(optimizer, setting)
        if value:
            raise ValueError(
                f"`{setting}` must be unset in an optimizer of embedding tables: {reason}. "
                f"Received: {type(optimizer).__name__}({setting}={value!r})"
            )
    names = [f.name for f in dataclasses.fields(rule) if f.name not in OWN_FIELDS]
    return rule(**{name: _plain(getattr(optimizer, name)) for name in names})


def _plain(value: Any) -> float | bool | None:
    """A Python number, so that the rule's config stays JSON-able when a user passed NumPy's."""
    return value if value is None or isinstance(value, bool) else float(value)
