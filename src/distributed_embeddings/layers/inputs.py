"""The call's inputs and weights, aligned to features by position or by name."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from distributed_embeddings.comm import Communicator
from distributed_embeddings.ops.bags import Bags
from distributed_embeddings.planner import ShardingPlan


def align(inputs: Any, weights: Any, names: Sequence[str]) -> tuple[list[Any], list[Any]]:
    """Inputs and weights in the order of `names`. Raises ValueError naming what is missing or too much."""
    ids = _by_position(inputs, names, "inputs")
    if weights is None:
        return ids, [None] * len(names)
    if isinstance(weights, Mapping):
        unknown = sorted(set(weights) - set(names))
        if unknown:
            raise ValueError(
                f"`weights` must name features of the layer. Received: {unknown}. Features: {list(names)}"
            )
        return ids, [weights.get(name) for name in names]
    return ids, _by_position(weights, names, "weights")


def _by_position(values: Any, names: Sequence[str], label: str) -> list[Any]:
    if isinstance(values, Mapping):
        missing = [n for n in names if n not in values]
        unknown = sorted(set(values) - set(names))
        if missing or unknown:
            raise ValueError(
                f"`{label}` must have exactly the features {list(names)}. Missing: {missing}. Not known: {unknown}."
            )
        return [values[n] for n in names]
    if not isinstance(values, list | tuple):
        if len(names) == 1:
            return [values]
        raise ValueError(
            f"`{label}` must be a list of {len(names)} entries or a dict by feature name. "
            f"Received: {type(values).__name__}"
        )
    if len(values) != len(names):
        raise ValueError(
            f"`{label}` must have one entry for each of the features {list(names)}. Received: {len(values)} entries."
        )
    return list(values)


def numpy_to_tensors(values: Any) -> Any:
    """Arrays in a structure of inputs as tensors, dtypes kept: Keras refuses a mixture, and would cast floats."""
    if isinstance(values, Mapping):
        return {key: numpy_to_tensors(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [numpy_to_tensors(value) for value in values]
    return tf.convert_to_tensor(values) if isinstance(values, np.ndarray | np.generic) else values


def agree_inner_shapes(
    comm: Communicator, plan: ShardingPlan, names: Sequence[str], shapes: Sequence[tuple[int | None, ...]]
) -> list[tuple[int, ...] | None]:
    """Model-parallel input: the inner shape of every feature, told by the ranks that are given it. Eager, collective.

    Raises ValueError on every rank for a feature without combiner whose inner shape is not static.
    """
    mine = json.dumps({n: list(s)[1:] for n, s in zip(names, shapes, strict=True)})
    data, sizes = comm.all_gather(tf.io.decode_raw(tf.constant(mine), tf.uint8), phase="input shapes")
    raw, start, known = data.numpy().tobytes(), 0, {}
    for size in sizes.numpy().tolist():
        known.update(json.loads(raw[start : start + size]))
        start += size
    combiners = {t.name: t.combiner for t in plan.tables}
    result: list[tuple[int, ...] | None] = []
    for feature in plan.features:
        inner = known.get(feature.name)
        static = inner is not None and None not in inner
        if not static and combiners[feature.table] is None:
            raise ValueError(
                f"with dp_input=False, feature '{feature.name}' of table '{feature.table}', which has no "
                f"combiner, must be dense with a static shape. Received: inner shape {inner}. "
                "Give the table a combiner or use dp_input=True."
            )
        result.append(tuple(inner) if static else None)
    return result


def check_inner_shapes(
    plan: ShardingPlan,
    given: Mapping[int, Bags],
    ids: Sequence[Any],
    agreed: Sequence[tuple[int, ...] | None],
) -> None:
    """A feature without combiner keeps the inner shape that the ranks agreed on when the layer was built."""
    combiners = {t.name: t.combiner for t in plan.tables}
    for index, value in zip(given, ids, strict=True):
        feature = plan.features[index]
        if combiners[feature.table] is None and tuple(value.shape[1:]) != agreed[index]:
            raise ValueError(
                f"feature '{feature.name}' must keep the inner shape of the first call, {agreed[index]}. "
                f"Received: shape={tuple(value.shape)}"
            )
