"""Adam, lazy, with AMSGrad."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import tensorflow as tf

from distributed_embeddings.ops.updates import RuleKernel
from distributed_embeddings.optimizers.rule import RowOptimizer, Slots, SlotSpec


@dataclass(frozen=True, kw_only=True)
class Adam(RowOptimizer):
    """keras.optimizers.Adam's formulas on the touched rows; with weight_decay, AdamW's.

    Lazy: an untouched row keeps its moments and its value, where dense Adam decays the moments and goes on
    moving the row. The bias correction counts all steps, not a row's own, as in Keras. Kingma, Ba, "Adam: a
    method for stochastic optimization", ICLR 2015; amsgrad: Reddi, Kale, Kumar, "On the convergence of Adam
    and beyond", ICLR 2018; weight_decay: Loshchilov, Hutter, "Decoupled weight decay regularization", ICLR
    2019.
    """

    name: ClassVar[str] = "adam"

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    amsgrad: bool = False

    @property
    def slots(self) -> tuple[SlotSpec, ...]:
        moments = (SlotSpec("momentum"), SlotSpec("velocity"))
        return (*moments, SlotSpec("velocity_hat")) if self.amsgrad else moments

    def kernel(self) -> RuleKernel:
        rule = "amsgrad" if self.amsgrad else "adam"
        return self.make_kernel(rule, 1.0 - self.beta_1, 1.0 - self.beta_2, self.epsilon)

    def rate(self, learning_rate: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        correction = tf.sqrt(1.0 - tf.pow(self.beta_2, step)) / (1.0 - tf.pow(self.beta_1, step))
        return learning_rate * correction

    def update(
        self, rows: tf.Tensor, grads: tf.Tensor, slots: Slots, learning_rate: tf.Tensor, step: tf.Tensor
    ) -> tuple[tf.Tensor, Slots]:
        momentum = slots["momentum"] + (grads - slots["momentum"]) * (1.0 - self.beta_1)
        velocity = slots["velocity"] + (tf.square(grads) - slots["velocity"]) * (1.0 - self.beta_2)
        new_slots = {"momentum": momentum, "velocity": velocity}
        scale = velocity
        if self.amsgrad:
            scale = new_slots["velocity_hat"] = tf.maximum(slots["velocity_hat"], velocity)
        return rows - momentum * self.rate(learning_rate, step) / (tf.sqrt(scale) + self.epsilon), new_slots
