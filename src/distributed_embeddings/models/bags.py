"""A model for bags of ids: pooled embeddings side by side, their second-order crosses, an MLP.

The crosses are the bi-interaction pooling of He and Chua, "Neural Factorization Machines", 2017.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from .inputs import common_dim, id_specs, logit_layer, mlp, split_inputs


@keras.saving.register_keras_serializable("distributed_embeddings")
class BagModel(keras.Model):
    """{feature: ids [B], [B, h] or ragged; optional "<feature>_weights" and "dense" [B, n]} → logit float32 [B, 1].

    embeddings: a layer ({feature: ids}, {feature: weights}) → {feature: [B, dim]}, one dim for all.
    hidden: widths of the MLP over concatenated vectors and their crosses. dropout: rate after each hidden layer.
    embedding_l2: see `DLRM`.
    Raises ValueError naming the features when their dims differ.
    """

    def __init__(
        self,
        embeddings: Any,
        hidden: Sequence[int] = (64, 32),
        dropout: float = 0.0,
        embedding_l2: float = 0.0,
        **kwargs: Any,
    ) -> None:
        # Weights of ids stay float32; layers cast what they get.
        super().__init__(autocast=False, **kwargs)
        self.embeddings = embeddings
        self.hidden = tuple(hidden)
        self.dropout, self.embedding_l2 = dropout, embedding_l2
        self.deep = mlp(self.hidden, "deep", dropout)
        self.logit = logit_layer()

    def build(self, inputs_shape: Mapping[str, Any]) -> None:
        numbers, ids, _ = split_inputs(inputs_shape)
        dim = common_dim(self.embeddings.compute_output_spec(id_specs(ids)), "BagModel's embeddings")
        if not self.embeddings.built:
            self.embeddings.build(ids)
        width = (len(ids) + 1) * dim + (numbers[-1] if numbers is not None else 0)
        self.deep.build((None, width))
        self.logit.build((None, (self.hidden[-1] if self.hidden else 0) + width))
        self.built = True

    def call(self, inputs: Mapping[str, Any], training: bool | None = None) -> Any:
        numbers, ids, weights = split_inputs(inputs)
        looked_up = self.embeddings(ids, weights) if weights else self.embeddings(ids)
        vectors = tf.stack([looked_up[name] for name in sorted(looked_up)], 1)
        if self.embedding_l2 and training:
            squares = tf.reduce_sum(tf.square(tf.cast(vectors, tf.float32)), [1, 2])
            self.add_loss(self.embedding_l2 * tf.reduce_mean(squares))
        # (Σv)² - Σv² = twice the sum of all products of two different vectors, in time linear in their number.
        crosses = 0.5 * (tf.square(tf.reduce_sum(vectors, 1)) - tf.reduce_sum(tf.square(vectors), 1))
        flat = tf.reshape(vectors, [-1, vectors.shape[1] * vectors.shape[2]])
        parts = [flat, crosses]
        if numbers is not None:
            parts.append(tf.cast(numbers, flat.dtype))
        wide = tf.concat(parts, -1)
        deep = self.deep(wide, training=training)
        return self.logit(tf.concat([wide, deep], -1) if self.hidden else wide)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config.pop("autocast", None)
        return {
            **config,
            "embeddings": keras.saving.serialize_keras_object(self.embeddings),
            "hidden": list(self.hidden),
            "dropout": self.dropout,
            "embedding_l2": self.embedding_l2,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> BagModel:
        config = dict(config)
        config["embeddings"] = keras.saving.deserialize_keras_object(config["embeddings"], custom_objects)
        return cls(**config)
