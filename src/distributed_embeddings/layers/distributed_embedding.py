"""`DistributedEmbedding`: many embedding tables as one Keras layer, cut over the workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from distributed_embeddings import comm
from distributed_embeddings.layers import hand_over
from distributed_embeddings.layers.embedding import initializer_seed, output_spec
from distributed_embeddings.layers.inputs import (
    agree_inner_shapes,
    align,
    check_inner_shapes,
    numpy_to_tensors,
)
from distributed_embeddings.layers.symbolic import in_symbolic_trace, placeholder_output, real_variables
from distributed_embeddings.layers.table_specs import agreed_policy, feature_specs, table_specs
from distributed_embeddings.layers.tables import TableSet
from distributed_embeddings.layers.whole_tables import read_whole, write_whole
from distributed_embeddings.ops.bags import Bags, make_bags
from distributed_embeddings.planner import ShardingPlan, TableSpec, make_layout, make_plan
from distributed_embeddings.sharding import (
    LookupSettings,
    local_features,
    model_parallel_lookup,
    owner_pooled_layout,
    sharded_lookup,
)

_DEFAULT = keras.initializers.RandomUniform(seed=0)
WIRE_DTYPES = ("float32", "bfloat16", "float16")


@keras.saving.register_keras_serializable("distributed_embeddings")
class DistributedEmbedding(keras.layers.Layer):
    """Embedding tables sharded over the workers.

    embeddings: Keras `Embedding`, the library's `Embedding`, or layers with input_dim/output_dim/get_config.
    strategy: "auto", "basic", "memory_balanced", "memory_optimized" or a ShardingPlan, executed as it is.
    column_slice_threshold, row_slice_threshold, data_parallel_threshold: elements (rows × dim); see
    `planner.make_plan`. dp_input: True = every rank gives its own samples of all features; False = every rank gives
    the global batch of `local_inputs`, the features whose shards it holds. input_table_map: input i reads table
    input_table_map[i]. feature_names: names of the inputs, for dicts and errors. invalid_ids: "raise", "zero" or
    "clip"; None as the layers have it, "raise" where they do not say. wire_dtype: dtype of vectors and their
    gradients between workers. row_pooling: "destination" (each id travels once) or
    "owner". row_layout: "contiguous" or "cyclic"; None as the strategy has it. table_dtype: None as the layers have it.

    call(inputs, weights=None): a list (or dict by feature name) of ids [B], [B, h], RaggedTensor or SparseTensor;
    weights alike, entries may be None. Returns a list (or dict) of [B, dim] where pooled, else the ids' shape +
    [dim]; output i belongs to input i. Raises ValueError naming the feature; InvalidArgumentError on all ranks for
    an id outside a table.
    """

    def __init__(
        self,
        embeddings: Sequence[Any],
        strategy: str | ShardingPlan = "auto",
        column_slice_threshold: int | None = None,
        row_slice_threshold: int | None = None,
        data_parallel_threshold: int | None = None,
        dp_input: bool = True,
        input_table_map: Sequence[int] | None = None,
        *,
        feature_names: Sequence[str] | None = None,
        invalid_ids: str | None = None,
        wire_dtype: str = "float32",
        row_pooling: str = "destination",
        row_layout: str | None = None,
        table_dtype: str | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs["autocast"] = False  # weights of ids must not become float16 under mixed precision
        super().__init__(**kwargs)
        if wire_dtype not in WIRE_DTYPES:
            raise ValueError(
                f"`wire_dtype` must be one of {WIRE_DTYPES}. Received: wire_dtype={wire_dtype!r}"
            )
        # Exchanges of the mpi backend are Python functions inside the graph: XLA cannot compile them.
        self.supports_jit = False
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True
        self.dp_input = dp_input
        self.wire_dtype = wire_dtype
        if not isinstance(embeddings, Sequence):
            raise ValueError(
                f"`embeddings` must be a list of embedding layers. Received: {type(embeddings).__name__}"
            )
        _release(embeddings)
        embeddings = list(embeddings)
        specs = table_specs(embeddings, table_dtype)
        features = feature_specs(specs, input_table_map, feature_names)
        self.invalid_ids = agreed_policy(embeddings, invalid_ids)
        self._options = {
            "column_slice_threshold": column_slice_threshold,
            "row_slice_threshold": row_slice_threshold,
            "data_parallel_threshold": data_parallel_threshold,
            "row_pooling": row_pooling,
            "row_layout": row_layout,
        }
        self._table_dtype = table_dtype
        self._strategy = strategy
        self._embedding_configs = [keras.saving.serialize_keras_object(e) for e in embeddings]
        self._input_table_map = None if input_table_map is None else list(input_table_map)
        self._feature_names = None if feature_names is None else list(feature_names)
        self._comm = comm.current()
        self.plan = self._make_plan(specs, features)
        self._layout = make_layout(self.plan) if dp_input else owner_pooled_layout(self.plan)
        # The very initializers, not copies from their configs: a copy without a seed draws one from Python's random
        # state, and the draws that follow would depend on the plan.
        self._initializers = [_initial(e) for e in embeddings]
        combiners = {t.name: t.combiner for t in self.plan.tables}
        self._has_combiner = {f.name: combiners[f.table] is not None for f in self.plan.features}
        self._tables: TableSet | None = None
        self.guard: hand_over.TableGuard | None = None
        self._inner_shapes: list[tuple[int, ...] | None] = []

    def _make_plan(self, specs: Any, features: Any) -> ShardingPlan:
        size = self._comm.size
        if not isinstance(self._strategy, ShardingPlan):
            return make_plan(specs, features, size, self._strategy, **self._options)
        plan = self._strategy
        if plan.world_size != size:
            raise ValueError(
                f"the plan must be made for this job's {size} workers. Received: world_size={plan.world_size}. "
                "Make it again with make_plan, or pass a strategy's name."
            )
        shapes = {t.name: (t.vocabulary_size, t.embedding_dim, t.combiner) for t in plan.tables}
        wanted = {t.name: (t.vocabulary_size, t.embedding_dim, t.combiner) for t in specs}
        pairs = [(f.name, f.table) for f in plan.features], [(f.name, f.table) for f in features]
        if shapes != wanted or pairs[0] != pairs[1]:
            raise ValueError(
                "the plan must hold exactly the given tables and inputs. "
                f"Received: plan {shapes} {pairs[0]}, layers {wanted} {pairs[1]}."
            )
        return plan

    @property
    def local_inputs(self) -> tuple[str, ...]:
        """The features that this rank must be given: all with dp_input, else those whose shards it holds."""
        if self.dp_input or self._comm.size == 1:
            return tuple(f.name for f in self.plan.features)
        return tuple(self.plan.features[i].name for i in local_features(self._layout, self._comm.rank))

    @property
    def table_names(self) -> tuple[str, ...]:
        """The tables in the order given: the order of `get_weights`."""
        return tuple(t.name for t in self.plan.tables)

    def build(self, inputs_shape: Any = None, weights_shape: Any = None) -> None:
        if self._tables is not None:
            return
        with real_variables():
            seeds = [initializer_seed(i) for i in self._initializers]  # 0 for a built layer's values
            # Attributes of a layer that hold variables are tracked by Keras: model.trainable_variables sees them.
            self._tables = TableSet(self.plan, self._comm, self._initializers, seeds, self.name)
            self._table_variables = list(self._tables.variables)
            if self._tables.anchor is not None:
                self._exchange_anchor = self._tables.anchor
            self._invalid_counts = keras.Variable(
                np.zeros(len(self.plan.features), np.int64),
                dtype="int64",
                trainable=False,
                name="invalid_ids",
            )
        self.built = True

    def __call__(self, inputs: Any, weights: Any = None, **kwargs: Any) -> Any:
        return super().__call__(numpy_to_tensors(inputs), numpy_to_tensors(weights), **kwargs)

    # AutoGraph would take the library apart, line by line, in every trace.
    @tf.autograph.experimental.do_not_convert
    def call(self, inputs: Any, weights: Any = None) -> Any:
        names = self.local_inputs
        ids, per_id = align(inputs, weights, names)
        self._agree_inner_shapes(ids)
        if in_symbolic_trace():
            return self._like(inputs, self._placeholders(dict(zip(names, ids, strict=True))))
        stand_in = hand_over.current()
        outputs = None if stand_in is None else stand_in.on_lookup(self, ids, per_id)
        if outputs is None:
            outputs = self._look_up(ids, per_id)
        return self._like(inputs, [tf.cast(o, self.compute_dtype) for o in outputs])

    def _look_up(self, ids: Sequence[Any], per_id: Sequence[Any]) -> list[Any]:
        if self.guard is not None and tf.executing_eagerly():
            self.guard.before_read(f"the tables of layer '{self.name}'")
        names, bags = self.local_inputs, self.bags(ids, per_id)
        count = None if self.invalid_ids == "raise" else self.count_invalid
        tables = self.tables.for_lookup()
        if self.dp_input or self._comm.size == 1:
            return sharded_lookup(self._comm, self._layout, tables, bags, self.lookup_settings, count)
        index = {f.name: i for i, f in enumerate(self.plan.features)}
        given = {index[n]: b for n, b in zip(names, bags, strict=True)}
        check_inner_shapes(self.plan, given, ids, self._inner_shapes)
        shapes = [s or () for s in self._inner_shapes]
        return model_parallel_lookup(
            self._comm, self._layout, tables, given, shapes, self.lookup_settings, count
        )

    def bags(self, ids: Sequence[Any], per_id: Sequence[Any]) -> list[Bags]:
        """Inputs in the order of `local_inputs` as bags."""
        return [
            make_bags(x, w, feature=n, pooled=self._has_combiner[n])
            for x, w, n in zip(ids, per_id, self.local_inputs, strict=True)
        ]

    @property
    def lookup_settings(self) -> LookupSettings:
        """What lookups of this layer need to know beside its plan."""
        return LookupSettings(self.invalid_ids, tf.as_dtype(self.wire_dtype))

    @property
    def tables(self) -> TableSet:
        """This rank's blocks; the layer is built."""
        return self._tables

    def _agree_inner_shapes(self, ids: Sequence[Any]) -> None:
        """Model-parallel input, first call: every rank learns the shapes of the features it is not given."""
        if self.dp_input or self._comm.size == 1 or self._inner_shapes:
            return
        with real_variables():
            shapes = [tuple(x.shape) for x in ids]
            self._inner_shapes = agree_inner_shapes(self._comm, self.plan, self.local_inputs, shapes)

    def _like(self, inputs: Any, outputs: list[Any]) -> Any:
        """A dict for a dict, a list for a list."""
        if isinstance(inputs, Mapping):
            return dict(zip((f.name for f in self.plan.features), outputs, strict=True))
        return outputs

    def count_invalid(self, counts: tf.Tensor) -> None:
        """Add invalid ids by feature, int64."""
        self._invalid_counts.assign_add(counts)

    def invalid_id_counts(self) -> dict[str, int]:
        """Invalid ids of this rank's inputs that were zeroed or clipped so far, by feature."""
        counts = self._invalid_counts.numpy().tolist()
        return {f.name: n for f, n in zip(self.plan.features, counts, strict=True)}

    def compute_output_spec(self, inputs: Any, weights: Any = None) -> Any:
        ids, _ = align(inputs, weights, self.local_inputs)
        self._agree_inner_shapes(ids)
        return self._like(
            inputs, self._per_feature(dict(zip(self.local_inputs, ids, strict=True)), output_spec)
        )

    def _placeholders(self, given: dict[str, Any]) -> list[Any]:
        return self._per_feature(given, placeholder_output)

    def _per_feature(self, given: dict[str, Any], make: Callable[..., Any]) -> list[Any]:
        """make(ids, dim, combiner, dtype) for every feature; ids that this rank is not given are taken from the agreed
        shapes."""
        specs = {t.name: t for t in self.plan.tables}
        outputs = []
        for i, feature in enumerate(self.plan.features):
            ids = given.get(feature.name)
            if ids is None:
                inner = (self._inner_shapes[i] if self._inner_shapes else None) or ()
                shape = [None, *inner]
                ids = (
                    keras.KerasTensor(shape, "int64")
                    if make is output_spec
                    else tf.zeros([1, *inner], tf.int64)
                )
            table = specs[feature.table]
            outputs.append(make(ids, table.embedding_dim, table.combiner, self.compute_dtype))
        return outputs

    def get_weights(self) -> list[np.ndarray]:
        """Whole tables in the order given, on every rank. Collective: call it on all ranks."""
        self._ensure_built()
        return [self._read_table(table) for table in self.plan.tables]

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Set whole tables, in the order given, from arrays or memory-mapped files (`np.load(..., mmap_mode="r")` or
        a path to a .npy file): each rank reads only its rows and columns, in chunks. No communication.

        Raises ValueError naming the table for a wrong number or shape.
        """
        self._ensure_built()
        if len(weights) != len(self.table_names):
            raise ValueError(
                f"`weights` must hold {len(self.table_names)} tables. Received: {len(weights)}. "
                f"Tables: {list(self.table_names)}"
            )
        for table, values in zip(self.plan.tables, weights, strict=True):
            self._write_table(table, values)

    def _read_table(self, table: TableSpec) -> np.ndarray:
        if self.guard is not None:
            self.guard.before_read(f"table '{table.name}'")
        shape = (table.vocabulary_size, table.embedding_dim)
        blocks = self._tables.of_table(table.name)
        return read_whole(self._comm, self.plan.placement(table.name), blocks, shape, table.dtype)

    def _write_table(self, table: TableSpec, values: Any) -> None:
        if self.guard is not None:
            self.guard.before_write(f"table '{table.name}'")
        shape = (table.vocabulary_size, table.embedding_dim)
        write_whole(self._tables.of_table(table.name), values, shape, f"weights of table '{table.name}'")

    def _ensure_built(self) -> None:
        if not self.built:
            self.build(None)

    def save_own_variables(self, store: Any) -> None:
        """Whole tables by name, so that a file does not depend on the number of workers. Collective."""
        for i, table in enumerate(self.plan.tables):
            store[str(i)] = self._read_table(table)

    def load_own_variables(self, store: Any) -> None:
        self._ensure_built()
        for i, table in enumerate(self.plan.tables):
            self._write_table(table, store[str(i)])

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config.pop("autocast", None)
        strategy = self._strategy.to_json() if isinstance(self._strategy, ShardingPlan) else self._strategy
        return {
            **config,
            **self._options,
            "embeddings": self._embedding_configs,
            "strategy": strategy,
            "dp_input": self.dp_input,
            "input_table_map": self._input_table_map,
            "feature_names": self._feature_names,
            "invalid_ids": self.invalid_ids,
            "wire_dtype": self.wire_dtype,
            "table_dtype": self._table_dtype,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> DistributedEmbedding:
        config = dict(config)
        config["embeddings"] = [keras.saving.deserialize_keras_object(e) for e in config["embeddings"]]
        if str(config["strategy"]).lstrip().startswith("{"):
            plan = ShardingPlan.from_json(config["strategy"])
            # A file must load on any number of workers: a plan for another number gives way.
            config["strategy"] = plan if plan.world_size == comm.size() else "auto"
        return cls(**config)


def _initial(layer: Any) -> Any:
    """The variable of a built layer (its values may be trained), else its initializer."""
    if getattr(layer, "built", False) and isinstance(getattr(layer, "embeddings", None), keras.Variable):
        return layer.embeddings
    return getattr(layer, "embeddings_initializer", None) or _DEFAULT


def _release(embeddings: Sequence[Any]) -> None:
    """Take the layers out of the model that tracks their list: they are never built, the tables live here instead.

    `self.layers = [...]; self.layers = DistributedEmbedding(self.layers)` leaves the first list tracked, and Keras
    would warn about layers without state.
    """
    tracker = getattr(embeddings, "tracker", None)
    if tracker is not None:
        for layer in embeddings:
            tracker.untrack(layer)
