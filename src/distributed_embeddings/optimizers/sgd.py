"""Stochastic gradient descent, with momentum and Nesterov's momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import tensorflow as tf

from distributed_embeddings.ops.updates import RuleKernel
from distributed_embeddings.optimizers.rule import RowOptimizer, Slots, SlotSpec


@dataclass(frozen=True, kw_only=True)
class SGD(RowOptimizer):
    """w -= lr * g; with momentum m: v = m * v - lr * g, w += v (Nesterov: w += m * v - lr * g). As
    keras.optimizers.SGD.

    Without momentum equal to the dense result. With momentum lazy: a row's velocity moves it only when the
    row is touched. Nesterov: Sutskever et al., "On the importance of initialization and momentum in deep
    learning", ICML 2013. Raises ValueError if momentum is outside [0, 1].
    """

    name: ClassVar[str] = "sgd"

    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.momentum <= 1.0:
            raise ValueError(f"`momentum` must be in [0, 1]. Received: momentum={self.momentum}")

    @property
    def slots(self) -> tuple[SlotSpec, ...]:
        return (SlotSpec("momentum"),) if self.momentum else ()

    def kernel(self) -> RuleKernel:
        if not self.momentum:
            return self.make_kernel("sgd")
        return self.make_kernel("nesterov" if self.nesterov else "momentum", self.momentum)

    def update(
        self, rows: tf.Tensor, grads: tf.Tensor, slots: Slots, learning_rate: tf.Tensor, step: tf.Tensor
    ) -> tuple[tf.Tensor, Slots]:
        delta = learning_rate * grads
        if not self.momentum:
            return rows - delta, {}
        velocity = slots["momentum"] * self.momentum - delta
        new_rows = rows + (velocity * self.momentum - delta if self.nesterov else velocity)
        return new_rows, {"momentum": velocity}
