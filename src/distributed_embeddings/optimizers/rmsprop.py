"""RMSprop, lazy, with momentum and the centered variant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import tensorflow as tf

from distributed_embeddings.ops.updates import RuleKernel
from distributed_embeddings.optimizers.rule import RowOptimizer, Slots, SlotSpec


@dataclass(frozen=True, kw_only=True)
class RMSprop(RowOptimizer):
    """keras.optimizers.RMSprop's formulas on the touched rows; an untouched row keeps its averages and its
    value.

    Tieleman, Hinton, "Lecture 6.5: RMSprop", 2012; centered: Graves, "Generating sequences with recurrent
    neural networks", 2013, equations 38 to 45.
    """

    name: ClassVar[str] = "rmsprop"

    rho: float = 0.9
    momentum: float = 0.0
    epsilon: float = 1e-7
    centered: bool = False

    @property
    def slots(self) -> tuple[SlotSpec, ...]:
        momentum = (SlotSpec("momentum"),) if self.momentum > 0 else ()
        average = (SlotSpec("average_gradient"),) if self.centered else ()
        return (SlotSpec("velocity"), *momentum, *average)

    def kernel(self) -> RuleKernel:
        return self.make_kernel(
            "rmsprop", self.rho, self.momentum, self.epsilon, float(self.centered), 1.0 - self.rho
        )

    def update(
        self, rows: tf.Tensor, grads: tf.Tensor, slots: Slots, learning_rate: tf.Tensor, step: tf.Tensor
    ) -> tuple[tf.Tensor, Slots]:
        velocity = self._average(slots["velocity"], tf.square(grads))
        new_slots = {"velocity": velocity}
        denominator = velocity + self.epsilon
        if self.centered:
            average = new_slots["average_gradient"] = self._average(slots["average_gradient"], grads)
            denominator = velocity - tf.square(average) + self.epsilon
        increment = learning_rate * grads / tf.sqrt(denominator)
        if self.momentum > 0:
            increment = new_slots["momentum"] = self.momentum * slots["momentum"] + increment
        return rows - increment, new_slots

    def _average(self, old: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
        return self.rho * old + (1.0 - self.rho) * new
