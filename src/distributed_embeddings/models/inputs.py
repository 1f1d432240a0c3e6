"""What the models share: splitting a batch's features, and multi-layer perceptrons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras

DENSE_INPUT = "dense"
"""The feature with a sample's numbers, float [B, n]."""

WEIGHTS_SUFFIX = "_weights"
"""Feature `x_weights` holds the per-id weights of feature `x`."""


def split_inputs(inputs: Mapping[str, Any]) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """(numbers or None, ids by feature, weights by feature) of a batch, or of the shapes of one.

    Raises ValueError when there is no categorical feature.
    """
    weights = {
        name.removesuffix(WEIGHTS_SUFFIX): x for name, x in inputs.items() if _is_weights(name, inputs)
    }
    ids = {n: x for n, x in inputs.items() if n != DENSE_INPUT and not _is_weights(n, inputs)}
    if not ids:
        raise ValueError(
            f"`inputs` must hold at least one categorical feature. Received: features {sorted(inputs)}"
        )
    return inputs.get(DENSE_INPUT), ids, weights


def _is_weights(name: str, inputs: Mapping[str, Any]) -> bool:
    return name.endswith(WEIGHTS_SUFFIX) and name.removesuffix(WEIGHTS_SUFFIX) in inputs


def mlp(units: Sequence[int], name: str, dropout: float = 0.0) -> keras.Sequential:
    """Dense layers with ReLU, He-initialised, dropout after each; the identity for no units."""
    layers: list[Any] = []
    for i, width in enumerate(units):
        layers.append(keras.layers.Dense(width, "relu", kernel_initializer="he_normal", name=f"{name}_{i}"))
        if dropout:
            layers.append(keras.layers.Dropout(dropout))
    # A Sequential without a layer cannot be built.
    return keras.Sequential(layers or [keras.layers.Identity()], name=name)


def logit_layer(name: str = "logit") -> keras.layers.Dense:
    """Dense(1); float32 under mixed precision, so that the loss is."""
    return keras.layers.Dense(1, dtype="float32", name=name)


def common_dim(vectors: Mapping[str, Any], what: str) -> int:
    """The last dimension of all `vectors`. Raises ValueError naming features of differing dims or without pooling."""
    dims = {name: int(v.shape[-1]) for name, v in vectors.items()}
    if len(set(dims.values())) != 1:
        raise ValueError(f"{what} must all have one embedding dim. Received: dims by feature {dims}")
    for name, v in vectors.items():
        if len(v.shape) != 2:
            raise ValueError(
                f"{what} must be [batch, dim]. Received: feature {name!r} of shape {tuple(v.shape)}. "
                "Give its embedding layer a combiner, or ids of shape [batch]."
            )
    return next(iter(dims.values()))


def id_specs(shapes: Mapping[str, Any]) -> dict[str, Any]:
    """Symbolic ids of these shapes, to ask an embedding layer for its outputs' shapes."""
    return {name: keras.KerasTensor(tuple(shape), "int64") for name, shape in shapes.items()}
