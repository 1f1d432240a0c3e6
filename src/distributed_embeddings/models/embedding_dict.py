"""One embedding layer a feature, called with a dict: what `DistributedEmbedding` is on one process without a plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras


@keras.saving.register_keras_serializable("distributed_embeddings")
class EmbeddingDict(keras.layers.Layer):
    """Embedding layers by feature name: {feature: ids} → {feature: output of its layer}.

    embeddings: {feature: layer}; a layer given for two features is one shared table. call(inputs, weights=None):
    weights is {feature: per-id weights}, for layers that take them, such as the library's `Embedding`.
    Raises ValueError naming the features that are missing or unknown.
    """

    def __init__(self, embeddings: Mapping[str, Any], **kwargs: Any) -> None:
        kwargs["autocast"] = False  # weights of ids must not become float16 under mixed precision
        super().__init__(**kwargs)
        if not embeddings:
            raise ValueError(
                "`embeddings` must be a non-empty dict {feature: layer}. Received: embeddings={}"
            )
        self._convert_input_args = False
        self.feature_names = tuple(embeddings)
        # A list and not a dict: Keras saves lists of layers by position, whatever characters a feature's name has.
        self.tables = list({id(layer): layer for layer in embeddings.values()}.values())
        position = {id(layer): i for i, layer in enumerate(self.tables)}
        self._table_of = {name: position[id(layer)] for name, layer in embeddings.items()}

    def build(self, inputs_shape: Any = None, weights_shape: Any = None) -> None:
        for table in self.tables:
            if not table.built:
                table.build(None)
        self.built = True

    def call(self, inputs: Mapping[str, Any], weights: Mapping[str, Any] | None = None) -> dict[str, Any]:
        self._check(inputs)
        weights = weights or {}
        outputs = {}
        for name in self.feature_names:
            table = self.tables[self._table_of[name]]
            weight = weights.get(name)
            outputs[name] = table(inputs[name]) if weight is None else table(inputs[name], weight)
        return outputs

    def compute_output_spec(self, inputs: Mapping[str, Any], weights: Any = None) -> dict[str, Any]:
        self._check(inputs)
        return {n: self.tables[self._table_of[n]].compute_output_spec(inputs[n]) for n in self.feature_names}

    def _check(self, inputs: Mapping[str, Any]) -> None:
        if not isinstance(inputs, Mapping) or set(inputs) != set(self.feature_names):
            received = sorted(inputs) if isinstance(inputs, Mapping) else type(inputs).__name__
            raise ValueError(
                f"`inputs` must be a dict with the features {sorted(self.feature_names)}. Received: {received}"
            )

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config.pop("autocast", None)
        return {
            **config,
            "tables": [keras.saving.serialize_keras_object(table) for table in self.tables],
            "table_of": dict(self._table_of),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> EmbeddingDict:
        config = dict(config)
        tables = [keras.saving.deserialize_keras_object(table) for table in config.pop("tables")]
        table_of = config.pop("table_of")
        return cls({name: tables[i] for name, i in table_of.items()}, **config)
