"""Keras embedding layers and the call's arguments → the planner's specs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from distributed_embeddings.ops.ids import POLICIES
from distributed_embeddings.planner import FeatureSpec, TableSpec


def table_specs(layers: Sequence[Any], dtype: str | None) -> tuple[TableSpec, ...]:
    """One spec a layer. Accepts Keras's Embedding, the library's, and layers with input_dim, output_dim, get_config.

    Raises ValueError naming the layer and what of it cannot be sharded.
    """
    if not layers:
        raise ValueError("`embeddings` must be a non-empty list of embedding layers. Received: embeddings=[]")
    names: dict[str, int] = {}
    specs = []
    for layer in layers:
        _check(layer)
        count = names.get(layer.name, 0)
        names[layer.name] = count + 1
        if count:
            raise ValueError(
                f"every embedding layer must have a name of its own. Received: two layers named '{layer.name}'."
            )
        initializer = getattr(layer, "embeddings_initializer", None)
        specs.append(
            TableSpec(
                name=layer.name,
                vocabulary_size=int(layer.input_dim),
                embedding_dim=int(layer.output_dim),
                combiner=getattr(layer, "combiner", None),
                dtype=dtype or getattr(layer, "variable_dtype", "float32"),
                initializer=None if initializer is None else keras.initializers.serialize(initializer),
            )
        )
    return tuple(specs)


def _check(layer: Any) -> None:
    for attribute in ("input_dim", "output_dim", "get_config", "name"):
        if not hasattr(layer, attribute):
            raise ValueError(
                "`embeddings` must be layers with input_dim, output_dim and get_config. "
                f"Received: {layer!r} (of type {type(layer).__name__}), which has no {attribute}."
            )
    for attribute, why in (
        ("embeddings_regularizer", "a regularizer reads the whole table every step"),
        ("embeddings_constraint", "a constraint rewrites the whole table every step"),
        ("lora_rank", "LoRA is not supported for sharded tables"),
        ("quantization_mode", "quantised tables are not supported"),
    ):
        if getattr(layer, attribute, None) is not None:
            raise ValueError(
                f"embedding layer '{layer.name}' cannot be sharded with {attribute}: {why}. "
                f"Received: {attribute}={getattr(layer, attribute)!r}"
            )
    if getattr(layer, "mask_zero", False):
        raise ValueError(
            f"embedding layer '{layer.name}' must not have mask_zero. Received: mask_zero=True. "
            "Use ragged inputs with a combiner, or compute the mask from the ids."
        )


def agreed_policy(layers: Sequence[Any], invalid_ids: str | None) -> str:
    """The policy for invalid ids: the argument, else the one the layers share. Raises ValueError where they differ."""
    if invalid_ids is None:
        policies = sorted({getattr(layer, "invalid_ids", "raise") for layer in layers})
        if len(policies) > 1:
            raise ValueError(
                f"`invalid_ids` must be given where the embedding layers differ in it. Received: {policies}"
            )
        invalid_ids = policies[0]
    if invalid_ids not in POLICIES:
        raise ValueError(f"`invalid_ids` must be one of {POLICIES}. Received: invalid_ids={invalid_ids!r}")
    return invalid_ids


def feature_specs(
    tables: Sequence[TableSpec],
    input_table_map: Sequence[int] | None,
    feature_names: Sequence[str] | None,
) -> tuple[FeatureSpec, ...]:
    """One spec an input: input i reads table input_table_map[i] (default: table i)."""
    mapping = list(range(len(tables))) if input_table_map is None else list(input_table_map)
    for i, table in enumerate(mapping):
        if not isinstance(table, int) or not 0 <= table < len(tables):
            raise ValueError(
                f"`input_table_map` must hold table indices in [0, {len(tables)}). "
                f"Received: input_table_map[{i}]={table!r}"
            )
    names = _default_names(tables, mapping) if feature_names is None else list(feature_names)
    if len(names) != len(mapping) or len(set(names)) != len(names):
        raise ValueError(
            f"`feature_names` must be {len(mapping)} different names, one an input. Received: feature_names={names}"
        )
    return tuple(
        FeatureSpec(name, tables[t].name, hotness=None) for name, t in zip(names, mapping, strict=True)
    )


def _default_names(tables: Sequence[TableSpec], mapping: Sequence[int]) -> list[str]:
    """The table's name; an input that is not the first of its table gets its position added."""
    names, seen = [], set()
    for i, table in enumerate(mapping):
        name = tables[table].name
        names.append(f"{name}_input_{i}" if name in seen else name)
        seen.add(name)
    return names
