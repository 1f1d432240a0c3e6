"""Name → rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from distributed_embeddings.optimizers.adagrad import Adagrad
from distributed_embeddings.optimizers.adam import Adam
from distributed_embeddings.optimizers.convert import from_keras
from distributed_embeddings.optimizers.ftrl import Ftrl
from distributed_embeddings.optimizers.rmsprop import RMSprop
from distributed_embeddings.optimizers.rowwise_adagrad import RowwiseAdagradRule
from distributed_embeddings.optimizers.rule import RowOptimizer
from distributed_embeddings.optimizers.sgd import SGD

RULES: dict[str, type[RowOptimizer]] = {
    rule.name: rule for rule in (SGD, Adagrad, RowwiseAdagradRule, Adam, RMSprop, Ftrl)
}


def get(identifier: str | Mapping[str, Any] | RowOptimizer | keras.optimizers.Optimizer) -> RowOptimizer:
    """The rule meant by a name ("adagrad"), a config (`RowOptimizer.get_config`), a Keras optimizer, or a
    rule.

    Raises ValueError if there is no such rule, TypeError for a hyperparameter it does not have.
    """
    if isinstance(identifier, RowOptimizer):
        return identifier
    if isinstance(identifier, keras.optimizers.Optimizer):
        return from_keras(identifier)
    config = {"name": identifier} if isinstance(identifier, str) else identifier
    name = config.get("name") if isinstance(config, Mapping) else None
    if name not in RULES:
        raise ValueError(
            f"`identifier` must name a row rule, one of {sorted(RULES)}, or be its config, a Keras optimizer "
            f"or a RowOptimizer. Received: identifier={identifier!r} (of type {type(identifier).__name__})"
        )
    return RULES[name].from_config(config)
