"""The models of `demb bench train` and their prepared batches, for ours and for plain Keras."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import keras
import tensorflow as tf

import distributed_embeddings.dist_model_parallel as dmp
from distributed_embeddings.data import Batches, Feature, RandomIds
from distributed_embeddings.models import (
    DLRM,
    EmbeddingDict,
    RepeatedUniform,
    SyntheticModel,
    synthetic_size,
)
from distributed_embeddings.planner import ShardingPlan

from .peers import made_clicks
from .phases import EMBEDDINGS

_LEARNING_RATE = 0.01
_POOL = 2
"""Prepared batches of a model of the size ladder: 85 ids a sample and more."""

Tensors = list[tuple[dict[str, tf.Tensor], tf.Tensor]]
Mark = Callable[[str], None]


@dataclass
class Job:
    """What a worker trains: a built model, its optimizer, prepared batches."""

    model: Any
    optimizer: Any
    batches: Tensors
    checksum: int
    plan: ShardingPlan | None


def make_job(case: dict[str, Any], system: str, mark: Mark) -> Job:
    """The case's model for "ours" or "keras" on this rank. Collective for ours.

    mark(name) is called while the step is traced, where the lookup begins and ends.
    """
    if case["model"] == "dlrm":
        return _dlrm(case, system, mark)
    if system != "ours":
        raise ValueError(f"`system` must be 'ours' for the size ladder. Received: system={system!r}")
    return _ladder(case, mark)


def _dlrm(case: dict[str, Any], system: str, mark: Mark) -> Job:
    names = [f"C{i:02d}" for i in range(case["tables"])]
    shape = (case["rows"], case["dim"])
    embeddings: Any
    if system == "ours":
        layers = [dmp.Embedding(*shape, name=name) for name in names]
        embeddings = marked(mark)(layers, feature_names=names, name=EMBEDDINGS)
    else:
        embeddings = EmbeddingDict({name: keras.layers.Embedding(*shape, name=name) for name in names})
    model = DLRM(embeddings, case["bottom"], case["top"])
    model.build({"dense": (None, case["numbers"]), **dict.fromkeys(names, (None,))})
    made = made_clicks.worker_batches(case, dmp.rank())
    batches = [
        (
            {"dense": tf.constant(x), **{n: tf.constant(i) for n, i in zip(names, ids, strict=True)}},
            tf.constant(y[:, None]),
        )
        for x, ids, y in made
    ]
    return _job(model, embeddings, system, batches, made_clicks.checksum(made))


def _ladder(case: dict[str, Any], mark: Mark) -> Job:
    size = synthetic_size(case["model"])
    embeddings = marked(mark)(
        size.embedding_layers(RepeatedUniform()),
        input_table_map=list(size.input_table_map),
        feature_names=list(size.feature_names),
        name=EMBEDDINGS,
    )
    model = SyntheticModel(embeddings, size.mlp, size.interaction_stride)
    hotness, rows = size.hotness, size.vocabulary_sizes
    shapes = {name: (None,) if h == 1 else (None, h) for name, h in hotness.items()}
    model.build({"dense": (None, size.numerical_features), **shapes})
    features = [Feature(name, rows[name], hotness[name]) for name in size.feature_names]
    samples = case["batch"] * case["workers"]
    source = RandomIds(features, size.numerical_features, samples * _POOL)
    parts = Batches(source, samples, shard_index=dmp.rank(), num_shards=dmp.size())
    batches: Tensors = []
    for columns, labels in parts:
        inputs = {name: tf.constant(column) for name, column in columns.items()}
        batches.append((inputs, tf.constant(labels[:, None])))
    return _job(model, embeddings, "ours", batches, 0)


def _job(model: Any, embeddings: Any, system: str, batches: Tensors, checksum: int) -> Job:
    optimizer = keras.optimizers.Adagrad(_LEARNING_RATE)
    if system == "ours":
        dmp.broadcast_variables(model.variables)
        optimizer = dmp.DistributedOptimizer(optimizer)
    optimizer.build(model.trainable_variables)
    plan = with_slots(embeddings.plan) if system == "ours" else None
    return Job(model, optimizer, batches, checksum, plan)


def with_slots(plan: ShardingPlan) -> ShardingPlan:
    """The same plan, counting Adagrad's accumulator beside every element."""
    tables = [replace(t, slot_elements_per_row=t.embedding_dim) for t in plan.tables]
    return replace(plan, tables=tuple(tables))


def marked(mark: Mark) -> type[dmp.DistributedEmbedding]:
    """`DistributedEmbedding` that says while it is traced where the lookup's operations begin and end."""

    class Marked(dmp.DistributedEmbedding):
        @tf.autograph.experimental.do_not_convert
        def call(self, inputs: Any, weights: Any = None) -> Any:
            mark("lookup")
            outputs = super().call(inputs, weights)
            mark("dense forward")
            return outputs

    return Marked
