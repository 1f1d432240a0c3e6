"""From options and a source's features to a model and its optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

import distributed_embeddings.dist_model_parallel as dmp
from distributed_embeddings.models import DLRM, BagModel

from .options import ModelOptions, ShardingOptions, TrainOptions


def build_model(options: TrainOptions, source: Any) -> Any:
    """The options' model over sharded tables, one a feature of `source`; its variables exist. Collective.

    The random state is set here: the same start on every rank and for every number of workers.
    """
    keras.utils.set_random_seed(options.seed)
    keras.config.set_dtype_policy("mixed_bfloat16" if options.network.mixed_precision else "float32")
    tables = sharded_tables(options.network, options.sharding, source.features)
    model = _network(options.network, tables)
    model.build(input_shapes(source.features, source.num_dense))
    dmp.broadcast_variables(model.variables)
    return model


def sharded_tables(network: ModelOptions, sharding: ShardingOptions, features: Sequence[Any]) -> Any:
    """One table a feature; bags are averaged, weighted bags too."""
    layers = [
        dmp.Embedding(
            f.vocabulary_size,
            network.embedding_dim,
            combiner=None if f.hotness == 1 else "mean",
            name=f"table_{f.name}",
        )
        for f in features
    ]
    return dmp.DistributedEmbedding(
        layers,
        strategy=sharding.strategy,
        column_slice_threshold=sharding.column_slice_threshold,
        row_slice_threshold=sharding.row_slice_threshold,
        data_parallel_threshold=sharding.data_parallel_threshold,
        row_pooling=sharding.row_pooling,
        wire_dtype=sharding.wire_dtype,
        feature_names=[f.name for f in features],
        name="embeddings",
    )


def build_optimizer(options: TrainOptions) -> Any:
    """The named Keras optimizer, wrapped. Raises ValueError for one without a row rule."""
    if options.optimizer == "rowwise_adagrad":  # not one of Keras's own names
        return dmp.DistributedOptimizer(dmp.RowwiseAdagrad(options.learning_rate))
    config = {"class_name": options.optimizer, "config": {"learning_rate": options.learning_rate}}
    return dmp.DistributedOptimizer(keras.optimizers.get(config))


def input_shapes(features: Sequence[Any], num_dense: int) -> dict[str, tuple[int | None, ...]]:
    """Shapes of a batch by feature name."""
    shapes: dict[str, tuple[int | None, ...]] = {"dense": (None, num_dense)} if num_dense else {}
    for f in features:
        shape = (None,) if f.hotness == 1 else (None, f.hotness)
        shapes[f.name] = shape
        if f.weighted:
            shapes[f"{f.name}_weights"] = shape
    return shapes


def _network(options: ModelOptions, tables: Any) -> Any:
    common = {"dropout": options.dropout, "embedding_l2": options.embedding_l2, "name": options.model}
    if options.model == "dlrm":
        return DLRM(tables, options.bottom_mlp, options.top_mlp, wide=options.wide, **common)
    return BagModel(tables, options.top_mlp, **common)
