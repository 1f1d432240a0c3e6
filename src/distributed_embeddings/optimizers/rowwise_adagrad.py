"""Row-wise Adagrad: one accumulator a row, so that the state is 1/dim of Adagrad's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import keras
import tensorflow as tf

from distributed_embeddings.ops.updates import RuleKernel
from distributed_embeddings.optimizers.rule import ROW_STATISTIC, RowOptimizer, Slots, SlotSpec


@dataclass(frozen=True, kw_only=True)
class RowwiseAdagradRule(RowOptimizer):
    """a += mean(g^2 over the row), w -= lr * g / sqrt(a + epsilon).

    The accumulator is that of EXACT_ROWWISE_ADAGRAD in FBGEMM and TorchRec. epsilon stands inside the root,
    as in Keras's Adagrad (FBGEMM: sqrt(a) + epsilon), so that for dim 1 the rule equals Adagrad with the same
    hyperparameters. Mudigere et al., "Software-hardware co-design for fast and scalable training of deep
    learning recommendation models", ISCA 2022.
    """

    name: ClassVar[str] = "rowwise_adagrad"

    initial_accumulator_value: float = 0.1
    epsilon: float = 1e-7

    @property
    def slots(self) -> tuple[SlotSpec, ...]:
        return (SlotSpec("accumulator", "scalar", self.initial_accumulator_value),)

    def kernel(self) -> RuleKernel:
        return self.make_kernel("rowwise_adagrad", self.epsilon)

    def row_statistic(self, grads: tf.Tensor, dim: int) -> tf.Tensor:
        return tf.reduce_sum(tf.square(grads), axis=1, keepdims=True) / dim

    def update(
        self, rows: tf.Tensor, grads: tf.Tensor, slots: Slots, learning_rate: tf.Tensor, step: tf.Tensor
    ) -> tuple[tf.Tensor, Slots]:
        accumulator = slots["accumulator"] + slots[ROW_STATISTIC]
        new_rows = rows - grads * (learning_rate / tf.sqrt(accumulator + self.epsilon))
        return new_rows, {"accumulator": accumulator}


@keras.saving.register_keras_serializable(package="distributed_embeddings")
class RowwiseAdagrad(keras.optimizers.Adagrad):
    """A Keras optimizer that asks for row-wise Adagrad on tables; dense variables get plain Adagrad.

    Takes the arguments of keras.optimizers.Adagrad. Use it as the inner optimizer of `DistributedOptimizer`;
    alone, it is plain Adagrad, because a Keras optimizer does not know which variable is a table.
    """
