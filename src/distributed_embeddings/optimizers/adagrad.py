"""Adagrad, one accumulator an element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import tensorflow as tf

from distributed_embeddings.ops.updates import RuleKernel
from distributed_embeddings.optimizers.rule import RowOptimizer, Slots, SlotSpec


@dataclass(frozen=True, kw_only=True)
class Adagrad(RowOptimizer):
    """a += g^2, w -= lr * g / sqrt(a + epsilon). As keras.optimizers.Adagrad; equal to the dense result.

    Duchi, Hazan, Singer, "Adaptive subgradient methods for online learning and stochastic optimization", JMLR
    2011.
    """

    name: ClassVar[str] = "adagrad"

    initial_accumulator_value: float = 0.1
    epsilon: float = 1e-7

    @property
    def slots(self) -> tuple[SlotSpec, ...]:
        return (SlotSpec("accumulator", initial_value=self.initial_accumulator_value),)

    def kernel(self) -> RuleKernel:
        return self.make_kernel("adagrad", self.epsilon)

    def update(
        self, rows: tf.Tensor, grads: tf.Tensor, slots: Slots, learning_rate: tf.Tensor, step: tf.Tensor
    ) -> tuple[tf.Tensor, Slots]:
        accumulator = slots["accumulator"] + tf.square(grads)
        new_rows = rows - learning_rate * grads / tf.sqrt(accumulator + self.epsilon)
        return new_rows, {"accumulator": accumulator}
