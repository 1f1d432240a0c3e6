"""DLRM: bottom MLP for the numbers, pairwise dot interaction of all vectors, top MLP.

Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems", 2019.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from .inputs import common_dim, id_specs, logit_layer, mlp, split_inputs
from .interaction import DotInteraction


@keras.saving.register_keras_serializable("distributed_embeddings")
class DLRM(keras.Model):
    """{"dense": float [B, n] (optional), feature: ids, …} → logit float32 [B, 1].

    embeddings: a layer {feature: ids} → {feature: [B, dim]}, one dim for all: `EmbeddingDict`,
    `DistributedEmbedding`, …. bottom_mlp, top_mlp: widths of hidden layers; a last bottom layer of width dim is
    added. wide: top MLP and logit also see numbers and vectors as they are, which few samples suffice to learn from
    (Cheng et al., "Wide & Deep Learning for Recommender Systems", 2016); without it the DLRM of the paper.
    dropout: rate in the top MLP. embedding_l2: this times the mean over samples of the summed squares of the
    vectors looked up is added to the loss; a penalty whose cost follows the ids and not the tables.
    Raises ValueError naming the features when their dims differ.
    """

    def __init__(
        self,
        embeddings: Any,
        bottom_mlp: Sequence[int] = (64, 32),
        top_mlp: Sequence[int] = (64, 32),
        wide: bool = False,
        dropout: float = 0.0,
        embedding_l2: float = 0.0,
        **kwargs: Any,
    ) -> None:
        # Numbers stay float32 up to the first layer, which casts them itself.
        super().__init__(autocast=False, **kwargs)
        self.embeddings = embeddings
        self.bottom_mlp, self.top_mlp = tuple(bottom_mlp), tuple(top_mlp)
        self.wide = wide
        self.dropout, self.embedding_l2 = dropout, embedding_l2
        self.interaction: Any = None
        self.top = mlp(self.top_mlp, "top", dropout)
        self.logit = logit_layer()
        self.bottom: Any = None

    def build(self, inputs_shape: Mapping[str, Any]) -> None:
        numbers, ids, _ = split_inputs(inputs_shape)
        dim = common_dim(self.embeddings.compute_output_spec(id_specs(ids)), "DLRM's embeddings")
        vectors = len(ids) + (numbers is not None)
        crosses = vectors * (vectors - 1) // 2
        # Dense layers draw their seeds first: how many draws tables take may depend on how they are held.
        if numbers is not None:
            self.bottom = mlp((*self.bottom_mlp, dim), "bottom")
            self.bottom.build((None, numbers[-1]))
        if not self.embeddings.built:
            self.embeddings.build(ids)
        self.interaction = DotInteraction(keep_first=numbers is not None, name="interaction")
        self.interaction.build([(None, dim)] * vectors)
        plain = len(ids) * dim + (0 if numbers is None else numbers[-1]) if self.wide else 0
        width = dim * (numbers is not None) + crosses + plain
        self.top.build((None, width))
        self.logit.build((None, (self.top_mlp[-1] if self.top_mlp else width) + plain))
        self.built = True

    def call(self, inputs: Mapping[str, Any], training: bool | None = None) -> Any:
        numbers, ids, weights = split_inputs(inputs)
        looked_up = self.embeddings(ids, weights) if weights else self.embeddings(ids)
        vectors = [looked_up[name] for name in sorted(looked_up)]
        if self.embedding_l2 and training:
            squares = [tf.reduce_sum(tf.square(tf.cast(v, tf.float32)), -1) for v in vectors]
            self.add_loss(self.embedding_l2 * tf.reduce_mean(tf.add_n(squares)))
        bottom = [] if self.bottom is None else [self.bottom(numbers)]
        crossed = self.interaction([*bottom, *vectors])
        if not self.wide:
            return self.logit(self.top(crossed, training=training))
        plain = vectors if numbers is None else [tf.cast(numbers, vectors[0].dtype), *vectors]
        top = self.top(tf.concat([crossed, *plain], -1), training=training)
        return self.logit(tf.concat([*plain, top], -1))

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config.pop("autocast", None)
        return {
            **config,
            "embeddings": keras.saving.serialize_keras_object(self.embeddings),
            "bottom_mlp": list(self.bottom_mlp),
            "top_mlp": list(self.top_mlp),
            "wide": self.wide,
            "dropout": self.dropout,
            "embedding_l2": self.embedding_l2,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> DLRM:
        config = dict(config)
        config["embeddings"] = keras.saving.deserialize_keras_object(config["embeddings"], custom_objects)
        return cls(**config)
