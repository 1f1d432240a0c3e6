"""Grouped lookup: the vectors of all features out of all tables in one op, with unique-row gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import variable_accessed

from distributed_embeddings.ops import kernels, reference
from distributed_embeddings.ops.block import Block
from distributed_embeddings.ops.features import Feature, GroupedTable, feature_arguments, shaped
from distributed_embeddings.ops.pending import FeatureGradients, slices


def look_up(
    blocks: Sequence[Block],
    tables: Sequence[GroupedTable],
    features: Sequence[Feature],
    invalid_ids: str = "raise",
) -> tuple[list[Any], tf.Tensor]:
    """Vectors of all features, float32, and how many of their ids are invalid, int64 [features].

    blocks, tables: the tables, whole rows each. Returns [B, dim] where pooled, else the ids' shape + [dim] (ragged for
    ragged ids); zeros for empty bags, for bags whose weights sum to 0, and for ids left out (invalid_ids "zero").
    Raises InvalidArgumentError for an invalid id under "raise", naming feature, table, id and row of the batch, and for
    features of different batch sizes.
    """
    if all(kernels.enabled_for(b.variable) for b in blocks):
        return _kernel(blocks, tables, features, invalid_ids)
    return reference.look_up(blocks, tables, features, invalid_ids)


def gradients_of(
    blocks: Sequence[Block],
    tables: Sequence[GroupedTable],
    features: Sequence[Feature],
    invalid_ids: str,
    upstream: Sequence[tf.Tensor],
) -> list[tf.IndexedSlices]:
    """The tables' gradients, unique rows each, of a `look_up` whose outputs are not at hand.

    upstream: gradients of the outputs, float32; of ragged ones, of their flat values.
    """
    if all(kernels.enabled_for(b.variable) for b in blocks):
        rows, dims = tuple(t.vocabulary_size for t in tables), tuple(t.dim for t in tables)
        arguments = feature_arguments(features, invalid_ids)
        return slices(FeatureGradients(rows, dims, arguments, tuple(upstream)))
    with tf.GradientTape() as tape:
        outputs, _ = reference.look_up(blocks, tables, features, invalid_ids)
        flat = [o.flat_values if isinstance(o, tf.RaggedTensor) else o for o in outputs]
    return tape.gradient(flat, [b.variable for b in blocks], output_gradients=list(upstream))


def watch(blocks: Sequence[Block]) -> list[tf.Tensor]:
    """The handles of the blocks' variables, seen by the gradient tapes.

    A kernel reads through the handle, where no tape notices; reading the variable's value would copy the table.
    """
    for block in blocks:
        variable_accessed(block.variable)
    return [b.variable.handle for b in blocks]


def _kernel(
    blocks: Sequence[Block], tables: Sequence[GroupedTable], features: Sequence[Feature], invalid_ids: str
) -> tuple[list[Any], tf.Tensor]:
    vectors, invalid = kernels.library().demb_lookup(
        watch(blocks),
        **feature_arguments(features, invalid_ids),
        num_features=len(features),
        num_rows=[t.vocabulary_size for t in tables],
        dims=[t.dim for t in tables],
        feature_names=[f.name for f in features],
        table_names=[t.name for t in tables],
    )
    return shaped(features, vectors), invalid


@tf.RegisterGradient("DembLookup")
def _lookup_gradient(op: Any, *upstream: Any) -> list[Any]:
    gradients = FeatureGradients.of_lookup(op, upstream[:-1])
    weights = gradients.weights_gradients(op.inputs[: op.get_attr("num_tables")])
    rest = len(op.inputs) - op.get_attr("num_tables") - len(weights)
    return [*slices(gradients), *[None] * rest, *weights]
