"""What the exact == 0 suite trains: small models of every sharding type, input kind and row rule."""

from __future__ import annotations

import itertools
import random
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import distributed_embeddings.dist_model_parallel as dmp
from distributed.cases import COMBINERS, RULES, _placement
from distributed_embeddings.planner import FeatureSpec, ShardingPlan, TableSpec

STEPS = 6
# Rows by regime: nearly all rows conflict, nearly none do, some do.
ROWS = {"tiny": (4, 5, 6, 4), "huge": (100_003, 50_021, 200_003, 99_991), "zipf": (997, 1009, 701, 499)}
DIMS = (5, 8, 7, 4)
# (table, kind) of the features: without combiner, shared tables, one-hot and multi-hot, weighted.
FEATURES = (
    ((0, "ragged"), (1, "one"), (2, "weighted_fixed"), (3, "sparse"), (1, "fixed")),
    ((0, "fixed"), (1, "ragged"), (2, "one"), (3, "weighted_ragged"), (0, "one")),
)
SHARDINGS = (
    "table_destination",
    "table_owner",
    "column_destination",
    "row_contiguous_destination",
    "row_cyclic_owner",
    "row_cyclic_destination",
    "mixed",
)
MIXED = ("row_cyclic_destination", "data_parallel", "column_owner", "row_contiguous_owner")


@dataclass(frozen=True)
class Case:
    """regime: of ROWS. batch: "even", "uneven" (in size and number), "empty" (a rank without samples), "same" (one id
    everywhere)."""

    sharding: str
    rule: str = "adagrad"
    regime: str = "zipf"
    batch: str = "even"
    features: int = 0
    wire_dtype: str = "float32"
    invalid_ids: str = "raise"
    loss_scale: bool = False

    @property
    def name(self) -> str:
        parts = [self.sharding, self.rule, self.regime, self.batch, str(self.features)]
        parts += [self.wire_dtype] if self.wire_dtype != "float32" else []
        parts += [self.invalid_ids] if self.invalid_ids != "raise" else []
        return "/".join([*parts, *(["loss_scale"] if self.loss_scale else [])])

    @property
    def program(self) -> str:
        """The same for cases that differ in their batches alone."""
        return replace(self, batch="any").name


def everyday() -> list[Case]:
    """Every sharding, rule, regime and batch at least once."""
    batches, regimes = ("even", "uneven", "same", "empty"), tuple(ROWS)
    cases = [
        Case(s, RULES[i % len(RULES)], regimes[i % 3], batches[i % 4], i % 2) for i, s in enumerate(SHARDINGS)
    ]
    cases += [
        Case("mixed", "rowwise_adagrad", "tiny", "uneven", 1),
        Case("column_destination", "rowwise_adagrad", "zipf", "even", 0),
        Case("row_cyclic_destination", "adam", "zipf", "even", 1, wire_dtype="bfloat16"),
        Case("mixed", "adam", "tiny", "even", 0, invalid_ids="zero"),
        Case("mixed", "adam", "zipf", "even", 1, loss_scale=True),
    ]
    return cases


def few() -> list[Case]:
    return [
        Case("mixed", "adam", "zipf", "uneven", 0),
        Case("row_cyclic_destination", "momentum", "tiny", "empty", 1),
        Case("column_owner", "rowwise_adagrad", "zipf", "even", 1),
    ]


def one() -> list[Case]:
    return [Case("mixed", "adagrad", "zipf", "uneven", 0)]


def whole() -> list[Case]:
    product = itertools.product(SHARDINGS, RULES, ROWS, ("even", "uneven", "empty", "same"), (0, 1))
    return [*everyday(), *(Case(*p) for p in product)]


SETS = {"everyday": everyday, "few": few, "one": one, "all": whole}


def make_layer(case: Case, size: int) -> dmp.DistributedEmbedding:
    rows, features = ROWS[case.regime], FEATURES[case.features]
    tables = tuple(
        TableSpec(f"t{i}", r, d, c) for i, (r, d, c) in enumerate(zip(rows, DIMS, COMBINERS, strict=True))
    )
    names = feature_names(case)
    specs = tuple(FeatureSpec(n, f"t{t}", None) for n, (t, _) in zip(names, features, strict=True))
    kinds = MIXED if case.sharding == "mixed" else [case.sharding] * len(tables)
    placements = tuple(_placement(t, k, size, i) for i, (t, k) in enumerate(zip(tables, kinds, strict=True)))
    return dmp.DistributedEmbedding(
        [dmp.Embedding(t.vocabulary_size, t.embedding_dim, combiner=t.combiner, name=t.name) for t in tables],
        ShardingPlan(size, tables, specs, placements),
        input_table_map=[t for t, _ in features],
        feature_names=names,
        wire_dtype=case.wire_dtype,
        invalid_ids=case.invalid_ids,
        name="tables",
    )


def feature_names(case: Case) -> list[str]:
    return [f"f{i}_{kind}" for i, (_, kind) in enumerate(FEATURES[case.features])]


@keras.saving.register_keras_serializable("tests")
class Net(keras.Model):
    """A dense layer beside the tables, and a head over all."""

    def __init__(self, layer: Any) -> None:
        super().__init__(name="net")
        self.tables = layer
        self.bottom = keras.layers.Dense(6, activation="relu", name="bottom")
        self.head = keras.layers.Dense(1, name="head")

    def call(self, inputs, training=None):
        vectors = self.tables(dict(inputs["ids"]), inputs["weights"] or None)
        return self.head(tf.concat([self.bottom(inputs["dense"]), *map(vector, vectors.values())], -1))


def vector(output):
    """[B, dim] of a feature: vectors of an input without combiner are summed."""
    if isinstance(output, tf.RaggedTensor):
        return tf.reduce_sum(output, axis=1)
    return output if output.shape.rank == 2 else tf.reduce_sum(output, axis=1)


def make_model(case: Case, size: int) -> tuple[Any, Any]:
    """A model and its optimizer, from one start on all ranks."""
    keras.utils.set_random_seed(7)
    model = Net(make_layer(case, size))
    rule = {
        "sgd": keras.optimizers.SGD,
        "momentum": lambda lr: keras.optimizers.SGD(lr, momentum=0.9),
        "adagrad": keras.optimizers.Adagrad,
        "rowwise_adagrad": dmp.RowwiseAdagrad,
        "adam": keras.optimizers.Adam,
        "rmsprop": keras.optimizers.RMSprop,
        "ftrl": keras.optimizers.Ftrl,
    }[case.rule](0.05)
    if case.loss_scale:
        # The first steps overflow and are skipped, the later ones count.
        rule = keras.optimizers.LossScaleOptimizer(rule, initial_scale=2.0**127)
    return model, dmp.DistributedOptimizer(rule)


def loss_fn(labels, outputs):
    return tf.reduce_mean(tf.square(labels - outputs))


class Batches:
    """This rank's batches: an iterable with `element_spec`."""

    def __init__(self, case: Case, rank: int, size: int, steps: int = STEPS) -> None:
        self._case, self._rank = case, rank
        self._sizes = batch_sizes(case, rank, size, steps)
        self.element_spec = tf.nest.map_structure(spec_of, self._element(0, 3))

    def __iter__(self) -> Iterator[Any]:
        for step, count in enumerate(self._sizes):
            yield self._element(step, count)

    def _element(self, step: int, count: int) -> Any:
        case = self._case
        rng = np.random.default_rng([zlib.crc32(case.name.encode()), step, self._rank])
        ids, weights = {}, {}
        for name, (table, kind) in zip(feature_names(case), FEATURES[case.features], strict=True):
            ids[name], weight = bags(rng, case, table, kind, count)
            if weight is not None:
                weights[name] = weight
        dense = tf.constant(rng.normal(size=(count, 3)), tf.float32)
        labels = tf.constant(rng.normal(size=(count, 1)), tf.float32)
        return {"ids": ids, "weights": weights, "dense": dense}, labels


def batch_sizes(case: Case, rank: int, size: int, steps: int) -> list[int]:
    if case.batch == "uneven":
        return [3 + (rank + step) % 3 for step in range(steps - rank % 2 - (2 if rank == 3 else 0))]
    if case.batch == "empty" and rank == size - 1 and size > 1:
        return [0] * steps
    return [4] * steps


def bags(rng, case: Case, table: int, kind: str, count: int):
    """Ids and weights of one feature."""
    rows = ROWS[case.regime][table]
    fixed = {"one": 1, "fixed": 3, "weighted_fixed": 2}.get(kind)
    lengths = np.full(count, fixed) if fixed else rng.integers(0, 4, count)
    total = int(lengths.sum())
    ids = rng.integers(0, rows, total)
    if case.regime == "zipf":
        ids = np.minimum(rng.zipf(1.3, total) - 1, rows - 1)
    if case.batch == "same":
        ids = np.full(total, 1)
    if case.invalid_ids != "raise":
        ids = np.where(rng.random(total) < 0.2, rows + 3, ids)
    weights = rng.uniform(0.1, 2.0, total).astype(np.float32) if kind.startswith("weighted") else None
    if fixed:
        shape = (count,) if kind == "one" else (count, fixed)
        dense = tf.constant(ids.reshape(shape), tf.int64)
        return dense, None if weights is None else tf.constant(weights.reshape(shape))
    ragged = tf.RaggedTensor.from_row_lengths(tf.constant(ids, tf.int64), lengths)
    if kind == "sparse":
        value = ragged.to_sparse()
        return tf.SparseTensor(value.indices, value.values, [count, 3]), None
    return ragged, None if weights is None else tf.RaggedTensor.from_row_lengths(weights, lengths)


def spec_of(value: Any) -> Any:
    """The spec of batches of any size."""
    spec = tf.type_spec_from_value(value)
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec([None, None], spec.dtype, 1, spec.row_splits_dtype)
    if isinstance(spec, tf.SparseTensorSpec):
        return tf.SparseTensorSpec([None, 3], spec.dtype)
    return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype)


class RandomSleeps:
    """An observer that sleeps before stages, differently on every rank and in every run."""

    def __init__(self, seed: int, most: float = 0.01) -> None:
        self._random, self._most = random.Random(seed), most

    def __call__(self, graph: str, stage: str, batch: int) -> None:
        if self._random.random() < 0.4:
            time.sleep(self._random.random() * self._most)


def state_of(model: Any, optimizer: Any) -> dict[str, np.ndarray]:
    """Tables, slots and dense weights, by name. Collective."""
    state = {f"table {i}": w for i, w in enumerate(model.tables.get_weights())}
    slots: dict[str, np.ndarray] = {}
    optimizer.inner_optimizer.save_own_variables(slots)
    state |= {f"slot {name}": value for name, value in slots.items()}
    dense = [*model.bottom.variables, *model.head.variables, *optimizer.wrapped.variables]
    return state | {f"dense {i} {v.name}": v.numpy() for i, v in enumerate(dense)}
