"""The size ladder: models of the public synthetic recommender benchmark, from 4 GiB (tiny) to 22 TiB (colossal)."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from distributed_embeddings.layers import Embedding

from .inputs import id_specs, logit_layer, mlp, split_inputs


@dataclass(frozen=True)
class SyntheticTable:
    """One table: rows × width, and the ids a sample has of each feature that reads it."""

    name: str
    rows: int
    width: int
    hotness: tuple[int, ...]

    @property
    def feature_names(self) -> tuple[str, ...]:
        return tuple(f"{self.name}_x{h}" for h in self.hotness)


@dataclass(frozen=True)
class SyntheticSize:
    """One size of the ladder: its tables, the widths of its MLP, how many numbers a sample has, and the stride by which
    the embeddings are average-pooled before the MLP (None: not at all)."""

    name: str
    tables: tuple[SyntheticTable, ...]
    mlp: tuple[int, ...]
    numerical_features: int
    interaction_stride: int | None

    @property
    def table_bytes(self) -> int:
        """Bytes of all tables in float32, without optimizer slots."""
        return 4 * sum(t.rows * t.width for t in self.tables)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """All features, those of one table behind each other."""
        return tuple(name for t in self.tables for name in t.feature_names)

    @property
    def hotness(self) -> dict[str, int]:
        """Ids a sample has, by feature: ids are [B], or [B, hotness]."""
        return {n: h for t in self.tables for n, h in zip(t.feature_names, t.hotness, strict=True)}

    @property
    def vocabulary_sizes(self) -> dict[str, int]:
        """Rows of the table that a feature reads, by feature."""
        return {name: t.rows for t in self.tables for name in t.feature_names}

    @property
    def input_table_map(self) -> tuple[int, ...]:
        """The table of each feature."""
        return tuple(i for i, t in enumerate(self.tables) for _ in t.hotness)

    def embedding_layers(self, initializer: Any = "uniform") -> list[Embedding]:
        """One layer a table, bags summed: what `DistributedEmbedding` takes, with `input_table_map` and
        `feature_names`."""
        return [
            Embedding(t.rows, t.width, combiner="sum", embeddings_initializer=initializer, name=t.name)
            for t in self.tables
        ]


@functools.cache
def synthetic_sizes() -> dict[str, SyntheticSize]:
    """The sizes by name: criteo, tiny, small, medium, large, jumbo, colossal."""
    text = resources.files(__package__).joinpath("synthetic_models.json").read_text()
    return {name: _size(name, facts) for name, facts in json.loads(text).items() if name[0] != "_"}


def synthetic_size(name: str) -> SyntheticSize:
    """The size of that name. Raises ValueError with all names."""
    sizes = synthetic_sizes()
    if name not in sizes:
        raise ValueError(f"`name` must be one of {list(sizes)}. Received: name={name!r}")
    return sizes[name]


def _size(name: str, facts: Mapping[str, Any]) -> SyntheticSize:
    tables: list[SyntheticTable] = []
    for group in facts["groups"]:
        # Inputs that share a table, or one table for each of them.
        inputs = [group["hotness"]] if group["shared"] else [[h] for h in group["hotness"]]
        for _ in range(group["tables"]):
            for hotness in inputs:
                table = f"t{len(tables)}"
                tables.append(SyntheticTable(table, group["rows"], group["width"], tuple(hotness)))
    return SyntheticSize(
        name, tuple(tables), tuple(facts["mlp"]), facts["numerical_features"], facts["interaction_stride"]
    )


@keras.saving.register_keras_serializable("distributed_embeddings")
class SyntheticModel(keras.Model):
    """{"dense": float [B, n] (optional), feature: ids [B] or [B, h], …} → logit float32 [B, 1].

    embeddings: a layer {feature: ids} → {feature: [B, width]}; widths may differ. All vectors stand side by side, are
    average-pooled by `interaction_stride` where there is one, and go with the numbers through an MLP of widths `mlp`.
    """

    def __init__(
        self, embeddings: Any, mlp_widths: Sequence[int], interaction_stride: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(autocast=False, **kwargs)
        self.embeddings = embeddings
        self.mlp_widths, self.interaction_stride = tuple(mlp_widths), interaction_stride
        self.top = mlp(self.mlp_widths, "top")
        self.logit = logit_layer()

    def build(self, inputs_shape: Mapping[str, Any]) -> None:
        numbers, ids, _ = split_inputs(inputs_shape)
        vectors = self.embeddings.compute_output_spec(id_specs(ids))
        width = sum(int(v.shape[-1]) for v in vectors.values())
        if self.interaction_stride is not None:
            width = -(-width // self.interaction_stride)
        width += 0 if numbers is None else numbers[-1]
        # Dense layers draw their seeds first: how many draws tables take may depend on how they are held.
        self.top.build((None, width))
        self.logit.build((None, self.mlp_widths[-1] if self.mlp_widths else width))
        if not self.embeddings.built:
            self.embeddings.build(ids)
        self.built = True

    def call(self, inputs: Mapping[str, Any], training: bool | None = None) -> Any:
        numbers, ids, _ = split_inputs(inputs)
        looked_up = self.embeddings(ids)
        parts = [looked_up[name] for name in sorted(looked_up)]
        if self.interaction_stride is not None:
            parts = [_pool(tf.concat(parts, -1), self.interaction_stride)]
        if numbers is not None:
            parts.append(tf.cast(numbers, parts[0].dtype))
        return self.logit(self.top(tf.concat(parts, -1), training=training))

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config.pop("autocast", None)
        return {
            **config,
            "embeddings": keras.saving.serialize_keras_object(self.embeddings),
            "mlp_widths": list(self.mlp_widths),
            "interaction_stride": self.interaction_stride,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> SyntheticModel:
        config = dict(config)
        config["embeddings"] = keras.saving.deserialize_keras_object(config["embeddings"], custom_objects)
        return cls(**config)


def _pool(x: Any, stride: int) -> Any:
    """Means of `stride` neighbours, [B, n] → [B, ⌈n / stride⌉]; windows at the edges hold what is there."""
    return tf.squeeze(tf.nn.avg_pool1d(x[:, :, None], stride, stride, "SAME"), -1)


@keras.saving.register_keras_serializable("distributed_embeddings")
class RepeatedUniform(keras.initializers.Initializer):
    """Uniform numbers in ±scale, drawn once and repeated: a table is filled at the memory's speed.

    For benchmarks of tables of many GiB: rows far apart are alike, which no kernel's time depends on.
    """

    _DRAWN = 1 << 16

    def __init__(self, scale: float = 0.05) -> None:
        self.scale = scale

    def __call__(self, shape: Sequence[int], dtype: Any = None) -> Any:
        drawn = np.random.default_rng(0).uniform(-self.scale, self.scale, self._DRAWN)
        return tf.constant(np.resize(drawn.astype(np.float32), tuple(shape)), dtype or "float32")

    def get_config(self) -> dict[str, Any]:
        return {"scale": self.scale}
