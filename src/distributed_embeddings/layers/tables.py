"""The variables of one rank: its shards, its replicas, and the anchor of the exchange."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from distributed_embeddings import __version__
from distributed_embeddings.comm import Communicator
from distributed_embeddings.layers.table_variable import ExchangeAnchor, TableVariable
from distributed_embeddings.ops.block import Block
from distributed_embeddings.ops.initial_values import make_block_initializer
from distributed_embeddings.planner import Shard, ShardingPlan, ShardingType, TableSpec
from distributed_embeddings.sharding import Tables, batch_weight_variable, require_equal_text


class TableSet:
    """Creates and holds what this rank has of the plan's tables.

    initializers: one a table, Keras's, or the variable of a layer that was built already. seeds: one a table; rank
    0's are used everywhere, so that shards of one table come from one random table. Raises ValueError on every rank
    when ranks differ in plan, version or dtype.
    """

    def __init__(
        self,
        plan: ShardingPlan,
        communicator: Communicator,
        initializers: Sequence[Any],
        seeds: Sequence[int],
        layer_name: str,
    ) -> None:
        self.plan = plan
        dtypes = sorted({t.dtype for t in plan.tables})
        text = f"plan {plan.digest[:16]} of layer '{layer_name}', version {__version__}, dtypes {dtypes}"
        if communicator.size > 1:
            require_equal_text(communicator, text, "plan, library version and dtypes")
            seeds = communicator.broadcast(tf.constant(seeds, tf.int64), 0, phase="seeds").numpy().tolist()
        batch_weight_variable()
        self._variables: dict[Shard, TableVariable] = {}
        for table, initializer, seed in zip(plan.tables, initializers, seeds, strict=True):
            self._create(table, initializer, seed, communicator)
        self.anchor = None
        if communicator.size > 1 and any(
            p.sharding is not ShardingType.DATA_PARALLEL for p in plan.placements
        ):
            self.anchor = ExchangeAnchor(plan)

    def _create(self, table: TableSpec, initializer: Any, seed: int, communicator: Communicator) -> None:
        placement = self.plan.placement(table.name)
        mine = [s for s in placement.shards if s.rank == communicator.rank]
        if not mine:
            return
        shape = (table.vocabulary_size, table.embedding_dim)
        if isinstance(initializer, keras.Variable):  # the layer was built: its values are taken over
            values = _values_of(initializer)
        else:
            values = make_block_initializer(initializer, table.name, shape, seed)
        # With one worker a table is whole and here, like a replica.
        replicated = placement.sharding is ShardingType.DATA_PARALLEL
        for shard in mine:
            name = f"{table.name}_rows_{shard.rows.start}_columns_{shard.columns.start}".replace("/", "_")
            self._variables[shard] = TableVariable(
                shard,
                values,
                table.dtype,
                replicated=replicated and communicator.size > 1,
                name=name,
                plan=self.plan,
            )

    @property
    def variables(self) -> list[TableVariable]:
        """This rank's shards and replicas, in plan order."""
        return list(self._variables.values())

    def variable(self, shard: Shard) -> TableVariable:
        """The variable of one of this rank's shards."""
        return self._variables[shard]

    def of_table(self, name: str) -> dict[Shard, Block]:
        """This rank's blocks of one table."""
        return {s: v.block for s, v in self._variables.items() if s.table == name}

    def for_lookup(self) -> Tables:
        """The blocks as the sharded lookup reads them."""
        shards = {s: v.block for s, v in self._variables.items()}
        whole = {
            s.table: v.block for s, v in self._variables.items() if v.replicated or self.plan.world_size == 1
        }
        return Tables(shards, whole, None if self.anchor is None else self.anchor.value)


def _values_of(variable: keras.Variable) -> Callable[[range, range], np.ndarray]:
    def block(rows: range, columns: range) -> np.ndarray:
        ids = tf.range(rows.start, rows.stop, rows.step, dtype=tf.int64)
        # Not `.value`, which may be a cast copy: the tf.Variable that a lookup of these rows alone reads.
        table = variable.block if isinstance(variable, TableVariable) else Block.whole(variable._value)
        return table.gather(ids).numpy()[:, columns.start : columns.stop]

    return block
