"""FTRL-Proximal, lazy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import tensorflow as tf

from distributed_embeddings.ops.updates import RuleKernel
from distributed_embeddings.optimizers.rule import RowOptimizer, Slots, SlotSpec


@dataclass(frozen=True, kw_only=True)
class Ftrl(RowOptimizer):
    """keras.optimizers.Ftrl's formulas on the touched rows.

    Lazy: an untouched row keeps its value, where the dense rule sets it to what its linear term says already
    in the first step (with no gradient so far: to 0). McMahan et al., "Ad click prediction: a view from the
    trenches", KDD 2013. Raises ValueError for a setting of the wrong sign.
    """

    name: ClassVar[str] = "ftrl"

    learning_rate_power: float = -0.5
    initial_accumulator_value: float = 0.1
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0
    l2_shrinkage_regularization_strength: float = 0.0
    beta: float = 0.0

    def __post_init__(self) -> None:
        if self.learning_rate_power > 0:
            raise ValueError(
                "`learning_rate_power` must be negative or zero. "
                f"Received: learning_rate_power={self.learning_rate_power}"
            )
        for field in (
            "initial_accumulator_value",
            "l1_regularization_strength",
            "l2_regularization_strength",
            "l2_shrinkage_regularization_strength",
        ):
            if getattr(self, field) < 0:
                raise ValueError(
                    f"`{field}` must be positive or zero. Received: {field}={getattr(self, field)}"
                )

    @property
    def slots(self) -> tuple[SlotSpec, ...]:
        return (SlotSpec("accumulator", initial_value=self.initial_accumulator_value), SlotSpec("linear"))

    def kernel(self) -> RuleKernel:
        return self.make_kernel(
            "ftrl",
            self.learning_rate_power,
            self.l1_regularization_strength,
            self.l2_regularization_strength,
            self.l2_shrinkage_regularization_strength,
            self.beta,
        )

    def update(
        self, rows: tf.Tensor, grads: tf.Tensor, slots: Slots, learning_rate: tf.Tensor, step: tf.Tensor
    ) -> tuple[tf.Tensor, Slots]:
        power = -self.learning_rate_power
        old_power = tf.pow(slots["accumulator"], power)
        # The shrinkage gradient enters the linear term only; the accumulator sees the loss's gradient.
        accumulator = slots["accumulator"] + tf.square(grads)
        new_power = tf.pow(accumulator, power)
        shrunk_grads = grads + 2.0 * self.l2_shrinkage_regularization_strength * rows
        linear = slots["linear"] + shrunk_grads - (new_power - old_power) / learning_rate * rows
        l2 = self.l2_regularization_strength + self.beta / (2.0 * learning_rate)
        quadratic = new_power / learning_rate + 2.0 * l2
        l1 = self.l1_regularization_strength
        new_rows = (tf.clip_by_value(linear, -l1, l1) - linear) / quadratic
        return new_rows, {"accumulator": accumulator, "linear": linear}
