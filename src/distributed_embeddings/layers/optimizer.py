"""`DistributedOptimizer`: a Keras optimizer for hybrid-parallel models, in `compile` or in an own loop."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from distributed_embeddings import comm
from distributed_embeddings.layers import hand_over
from distributed_embeddings.layers.gradients import reduce_gradients
from distributed_embeddings.layers.routing import RoutedOptimizer
from distributed_embeddings.optimizers import RowwiseAdagrad


@keras.saving.register_keras_serializable("distributed_embeddings")
class DistributedOptimizer(keras.optimizers.LossScaleOptimizer):
    """Averages dense gradients over the workers and updates tables by the row rule of the wrapped optimizer.

    optimizer: a Keras optimizer or its name ("adagrad", "rowwise_adagrad"): SGD, Adagrad, RowwiseAdagrad, Adam,
    AdamW, RMSprop, Ftrl, or a LossScaleOptimizer around one. Under the global policy "mixed_float16" the loss is
    scaled as Keras would. stochastic_rounding, rounding_seed: bfloat16 tables are rounded up or down by chance, right
    on the average, where rounding to the nearest would lose every update below half a unit in the last place. Raises
    ValueError for an optimizer without a row rule.

    It is a LossScaleOptimizer so that `compile` puts none around it: Keras's own would decide on each worker alone
    whether a step is skipped, and the workers' exchanges would no longer match. Here they decide together.
    """

    def __init__(
        self,
        optimizer: Any,
        scale_loss: bool | None = None,
        name: str | None = None,
        *,
        stochastic_rounding: bool = True,
        rounding_seed: int = 0,
        **kwargs: Any,
    ) -> None:
        if optimizer is None:
            raise ValueError("`optimizer` must be a Keras optimizer or its name. Received: optimizer=None")
        optimizer = RowwiseAdagrad() if optimizer == "rowwise_adagrad" else keras.optimizers.get(optimizer)
        scaling: dict[str, Any] = {}
        if type(optimizer) is keras.optimizers.LossScaleOptimizer:
            scaling = {
                "initial_scale": optimizer.initial_scale,
                "dynamic_growth_steps": optimizer.dynamic_growth_steps,
            }
            optimizer = optimizer.inner_optimizer
            scale_loss = True
        if scale_loss is None:
            scale_loss = keras.config.dtype_policy().name == "mixed_float16"
        if isinstance(optimizer, DistributedOptimizer):
            raise ValueError(f"`optimizer` must not be wrapped twice. Received: optimizer={optimizer!r}")
        routed = RoutedOptimizer(
            optimizer, stochastic_rounding=stochastic_rounding, rounding_seed=rounding_seed
        )
        super().__init__(routed, name=name or "distributed", **{**scaling, **kwargs})
        self.wrapped = optimizer
        self.stochastic_rounding, self.rounding_seed = stochastic_rounding, rounding_seed
        self.scales_loss = scale_loss

    def build(self, var_list: Sequence[Any]) -> None:
        if not self.built:
            super().build(list(var_list))

    @tf.autograph.experimental.do_not_convert
    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Reduce local gradients over the workers and apply them. Gradients from a DistributedGradientTape are reduced
        already and pass. Collective."""
        if trainable_variables is None:
            trainable_variables = self._trainable_variables
        with tf.init_scope():
            self.build(trainable_variables)
        grads = reduce_gradients(grads, trainable_variables)
        if self.scales_loss:
            super().apply(grads, trainable_variables)
        else:
            self.inner_optimizer.apply(grads, trainable_variables)

    def check_finite(self, grads: Sequence[Any]) -> tf.Tensor:
        """Whether every worker's gradients are finite: one decision for all. Collective."""
        stand_in = hand_over.current()
        values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in grads if g is not None]
        values += [] if stand_in is None else stand_in.gradients()
        finite = tf.reduce_all([True, *[tf.reduce_all(tf.math.is_finite(v)) for v in values]])
        everywhere = comm.current().all_reduce(tf.cast(finite, tf.float32), "min", phase="finite gradients")
        finite = everywhere > 0
        if stand_in is not None:
            stand_in.decide(finite, tf.convert_to_tensor(self.dynamic_scale))
        return finite

    def scale_loss(self, loss: Any) -> Any:
        return super().scale_loss(loss) if self.scales_loss else loss

    @property
    def routed(self) -> RoutedOptimizer:
        """What updates the tables."""
        return self.inner_optimizer

    @property
    def dense_variables(self) -> list[Any]:
        """State that every worker has: the wrapped optimizer's, not the tables' slots."""
        return [*self._variables, *self.wrapped.variables]

    def save_own_variables(self, store: Any) -> None:
        for i, variable in enumerate(self._variables):
            store[str(i)] = variable.numpy()

    def load_own_variables(self, store: Any) -> None:
        if len(store.keys()) != len(self._variables):
            warnings.warn("the file is of an optimizer that never ran: its state starts fresh", stacklevel=2)
            return
        for i, variable in enumerate(self._variables):
            variable.assign(store[str(i)])

    def get_config(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "optimizer": keras.saving.serialize_keras_object(self.wrapped),
            "scale_loss": self.scales_loss,
            "stochastic_rounding": self.stochastic_rounding,
            "rounding_seed": self.rounding_seed,
            "initial_scale": self.initial_scale,
            "dynamic_growth_steps": self.dynamic_growth_steps,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> DistributedOptimizer:
        config = dict(config)
        config["optimizer"] = keras.saving.deserialize_keras_object(
            config["optimizer"], custom_objects=custom_objects
        )
        return cls(**config)
