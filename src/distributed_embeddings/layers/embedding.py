"""`Embedding`: one table in one process, with a combiner, for dense, ragged and sparse inputs and per-id weights."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from distributed_embeddings.layers.symbolic import in_symbolic_trace, placeholder_output, real_variables
from distributed_embeddings.layers.table_variable import TableVariable
from distributed_embeddings.ops import kernels
from distributed_embeddings.ops.bags import COMBINERS, make_bags
from distributed_embeddings.ops.block import Block
from distributed_embeddings.ops.features import Feature, GroupedTable
from distributed_embeddings.ops.ids import POLICIES
from distributed_embeddings.ops.initial_values import make_block_initializer
from distributed_embeddings.ops.lookup import look_up
from distributed_embeddings.planner import Shard


def embedding_lookup(
    params: tf.Variable | keras.Variable,
    ids: Any,
    combiner: str | None = None,
    weights: Any = None,
    *,
    invalid_ids: str = "raise",
    name: str = "ids",
) -> Any:
    """Look ids up in a table and combine each bag.

    params: [vocabulary_size, dim] variable; only the rows asked are read. ids: [B], [B, h], RaggedTensor or
    SparseTensor of int32/int64. combiner: None, "sum", "mean", "sqrtn". weights: like ids, floats. Returns [B, dim]
    pooled, or the shape of the ids + [dim]. Raises ValueError for a wrong dtype, InvalidArgumentError for an id
    outside the table.
    """
    if isinstance(params, TableVariable):
        block, table = params.block, params.shard.table
    else:
        variable = params.value if isinstance(params, keras.Variable) else params
        block, table = Block.whole(variable), variable.name.removesuffix(":0")
    bags = make_bags(ids, weights, feature=name, pooled=combiner is not None)
    grouped = GroupedTable(table, block.num_rows, block.width)
    (output,), _ = look_up([block], [grouped], [Feature(name, 0, combiner, bags)], invalid_ids)
    return output


@keras.saving.register_keras_serializable("distributed_embeddings")
class Embedding(keras.layers.Layer):
    """A table of vectors with an optional combiner.

    input_dim: vocabulary_size. output_dim: embedding_dim. combiner: None (as Keras's Embedding), "sum", "mean" or
    "sqrtn". invalid_ids: "raise", "zero" or "clip". Usable alone, or given to `DistributedEmbedding`.
    Raises ValueError naming the argument.
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        combiner: str | None = None,
        embeddings_initializer: Any = "uniform",
        invalid_ids: str = "raise",
        **kwargs: Any,
    ) -> None:
        kwargs["autocast"] = False  # weights of ids must not become float16 under mixed precision
        super().__init__(**kwargs)
        if combiner not in COMBINERS:
            raise ValueError(f"`combiner` must be one of {COMBINERS}. Received: combiner={combiner!r}")
        if invalid_ids not in POLICIES:
            raise ValueError(
                f"`invalid_ids` must be one of {POLICIES}. Received: invalid_ids={invalid_ids!r}"
            )
        for label, value in (("input_dim", input_dim), ("output_dim", output_dim)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"`{label}` must be a positive integer. Received: {label}={value!r}")
        self.input_dim = input_dim
        self.output_dim = output_dim
        self.combiner = combiner
        self.invalid_ids = invalid_ids
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        # Keras compiles a model with XLA on its own where all layers allow it, and XLA knows no kernel of ours.
        self.supports_jit = not kernels.enabled_for("")
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True

    def build(self, ids_shape: Any = None, weights_shape: Any = None) -> None:
        shape = (self.input_dim, self.output_dim)
        seed = initializer_seed(self.embeddings_initializer)
        values = make_block_initializer(self.embeddings_initializer, self.name, shape, seed)
        shard = Shard(self.name, 0, range(self.input_dim), range(self.output_dim))
        with real_variables():
            self.embeddings = TableVariable(
                shard, values, self.variable_dtype, replicated=True, name="embeddings"
            )
        self.built = True

    @tf.autograph.experimental.do_not_convert
    def call(self, ids: Any, weights: Any = None) -> Any:
        if in_symbolic_trace():
            return placeholder_output(ids, self.output_dim, self.combiner, self.compute_dtype)
        out = embedding_lookup(
            self.embeddings, ids, self.combiner, weights, invalid_ids=self.invalid_ids, name=self.name
        )
        return tf.cast(out, self.compute_dtype)

    def compute_output_spec(self, ids: Any, weights: Any = None) -> keras.KerasTensor:
        return output_spec(ids, self.output_dim, self.combiner, self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config.pop("autocast", None)
        return {
            **config,
            "input_dim": self.input_dim,
            "output_dim": self.output_dim,
            "combiner": self.combiner,
            "invalid_ids": self.invalid_ids,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
        }


def initializer_seed(initializer: Any) -> int:
    """The seed of a Keras initializer; 0 for one that has none."""
    seed = getattr(initializer, "seed", 0)
    if isinstance(seed, int):
        return seed
    state = getattr(seed, "state", None)  # a SeedGenerator
    return 0 if state is None else int(keras.ops.convert_to_numpy(state)[0])


def output_spec(ids: Any, dim: int, combiner: str | None, dtype: str) -> keras.KerasTensor:
    """Shape and dtype of a feature's output, for Keras's functional models."""
    shape = tuple(ids.shape)
    if combiner is not None:
        return keras.KerasTensor((shape[0], dim), dtype=dtype)
    ragged = bool(getattr(ids, "ragged", False)) or bool(getattr(ids, "sparse", False))
    return keras.KerasTensor((*shape, dim), dtype=dtype, ragged=ragged)
