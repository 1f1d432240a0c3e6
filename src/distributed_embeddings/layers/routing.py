"""Tables to row rules, everything else to the Keras optimizer."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from distributed_embeddings import comm
from distributed_embeddings.layers import hand_over
from distributed_embeddings.layers.column_coupling import PartialStatistic, complete, coupled_placements
from distributed_embeddings.layers.hand_over import TableGuard
from distributed_embeddings.layers.slots import SlotView
from distributed_embeddings.layers.table_variable import ExchangeAnchor, TableVariable
from distributed_embeddings.layers.whole_tables import read_whole, write_whole
from distributed_embeddings.ops import kernels
from distributed_embeddings.ops.block import Block
from distributed_embeddings.ops.pending import PendingGradients, pending
from distributed_embeddings.ops.updates import UpdateTarget
from distributed_embeddings.optimizers import RowOptimizer, from_keras
from distributed_embeddings.planner import Shard, ShardingPlan, TableSpec


def _by_rows(gradient: Any, table: TableVariable) -> tf.IndexedSlices | None:
    """A table that was read whole, as by a regularizer, has a dense gradient: one of all its rows."""
    if gradient is None or isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows = tf.range(int(table.shape[0]), dtype=tf.int64)
    return tf.IndexedSlices(gradient, rows, dense_shape=tf.constant(tuple(table.shape), tf.int64))


@keras.saving.register_keras_serializable("distributed_embeddings")
class RoutedOptimizer(keras.optimizers.Optimizer):
    """Applies reduced gradients: tables by the row rule of the wrapped optimizer, the dense rest by that optimizer.

    Step and learning rate are the wrapped optimizer's.
    """

    def __init__(
        self,
        dense_optimizer: keras.optimizers.Optimizer,
        name: str = "routed",
        *,
        stochastic_rounding: bool = True,
        rounding_seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=0.0, name=name, **kwargs)
        self.dense_optimizer = dense_optimizer
        self.rule: RowOptimizer = replace(
            from_keras(dense_optimizer), stochastic_rounding=stochastic_rounding, seed=rounding_seed
        )
        self._targets: dict[int, UpdateTarget] = {}
        self._plans: list[ShardingPlan] = []
        self._tables: list[TableVariable] = []
        self._table_slots: tuple[Any, ...] = ()
        self.guard: TableGuard | None = None

    def build(self, variables: Sequence[Any]) -> None:
        if self.built:
            return
        super().build([])
        with tf.init_scope():
            for variable in variables:
                if isinstance(variable, TableVariable | ExchangeAnchor):
                    self._add(variable)
        dense = [v for v in variables if not isinstance(v, TableVariable | ExchangeAnchor)]
        self.dense_optimizer.build(dense)
        self._trainable_variables = list(variables)

    def _add(self, variable: TableVariable | ExchangeAnchor) -> None:
        if variable.plan is not None and all(variable.plan is not p for p in self._plans):
            self._plans.append(variable.plan)
        if isinstance(variable, TableVariable):
            self._tables.append(variable)
            slots: Any = None
            if self.rule.kernel() is not None:
                slots = variable.lay_slots(self, self.rule.slots)
            if slots is None:
                slots = self.rule.create_slots(tuple(variable.shape), variable.name)
                for slot in slots.values():
                    slot.sharded = variable.sharded
            rows, columns = variable.shard.rows, variable.shard.columns
            self._targets[id(variable)] = self.rule.target(
                variable.block,
                {n: s.block if isinstance(s, SlotView) else s for n, s in slots.items()},
                first_row=rows.start,
                row_step=rows.step,
                first_column=columns.start,
            )
            self._table_slots = (*self._table_slots, *slots.values())
            for name, slot in slots.items():
                # For tf.train.Checkpoint, by the table's number: a tuple that grows is not restored where it was empty.
                self._track_trackable(slot, f"table_{len(self._tables) - 1}_{name}", overwrite=True)

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Gradients as `reduce_gradients` gives them; a table without a gradient keeps its rows. Collective for
        tables cut by columns under a rule that couples columns."""
        if trainable_variables is None:
            trainable_variables = self._trainable_variables
        self.build(trainable_variables)
        tables, dense = [], []
        for gradient, variable in zip(grads, trainable_variables, strict=True):
            if isinstance(variable, TableVariable):
                gradient = _by_rows(gradient, variable)
                if id(variable) not in self._targets:  # frozen when the optimizer was built
                    with tf.init_scope():
                        self._add(variable)
                tables.append((gradient, variable))
            elif not isinstance(variable, ExchangeAnchor):
                dense.append((gradient, variable))
        # Tables first: the dense apply advances the step that both read.
        rate, step = self.rate_and_step()
        stand_in = hand_over.current()
        plans = [p for p in self._plans if stand_in is None or not stand_in.covers(p)]
        self._apply_tables([(g, v) for g, v in tables if g is not None], rate, step, comm.current(), plans)
        if any(g is not None for g, _ in dense):
            self.dense_optimizer.apply([g for g, _ in dense], [v for _, v in dense])
        else:
            self.dense_optimizer.iterations.assign_add(1)

    def rate_and_step(self) -> tuple[tf.Tensor, tf.Tensor]:
        """The learning rate, float32, and the number from 1, int64, of the next update."""
        rate = tf.cast(tf.convert_to_tensor(self.dense_optimizer.learning_rate), tf.float32)
        return rate, tf.cast(self.dense_optimizer.iterations + 1, tf.int64)

    def apply_slices(
        self,
        gradients: Sequence[tf.IndexedSlices],
        variables: Sequence[TableVariable],
        learning_rate: tf.Tensor,
        step: tf.Tensor,
        communicator: comm.Communicator,
        plan: ShardingPlan,
    ) -> None:
        """Update tables of a plan with a rate and step that came with their gradients. Collective where `apply` is."""
        self._apply_tables(
            list(zip(gradients, variables, strict=True)), learning_rate, step, communicator, [plan]
        )

    def target(self, variable: TableVariable) -> UpdateTarget:
        """A table and its slots as updates take them."""
        return self._targets[id(variable)]

    def updates(self, variable: TableVariable) -> bool:
        """Whether the table was trainable when the optimizer was built."""
        return id(variable) in self._targets

    def couples(self, plan: ShardingPlan) -> bool:
        """Whether updates of the plan's tables need to know of columns on other ranks."""
        return self.rule.couples_columns and bool(coupled_placements([plan]))

    def _apply_tables(
        self,
        pairs: Sequence[tuple[tf.IndexedSlices, TableVariable]],
        learning_rate: tf.Tensor,
        step: tf.Tensor,
        communicator: comm.Communicator,
        plans: Sequence[ShardingPlan],
    ) -> None:
        statistics = self._complete_statistics(pairs, communicator, plans)
        targets = {id(v): self._targets[id(v)] for _, v in pairs}
        fused = self._pending([(g, targets[id(v)]) for g, v in pairs if id(v) not in statistics])
        done = set()
        for gradients, by_table in fused.items():
            self.rule.apply_pending(gradients, by_table, learning_rate, step)
            done |= {id(target) for target in by_table.values()}
        for gradient, variable in pairs:
            target = targets[id(variable)]
            if id(target) not in done:
                self.rule.apply(target, gradient, learning_rate, step, statistics.get(id(variable)))

    def _pending(
        self, pairs: Sequence[tuple[tf.IndexedSlices, UpdateTarget]]
    ) -> dict[PendingGradients, dict[int, UpdateTarget]]:
        """The tables that can be updated straight from what their gradients are made of."""
        found: dict[PendingGradients, dict[int, UpdateTarget]] = {}
        for gradient, target in pairs if self.rule.kernel() is not None else []:
            left = pending(gradient) if kernels.enabled_for(target.table.variable) else None
            if left is not None:
                found.setdefault(left.gradients, {})[left.table] = target
        return {g: by_table for g, by_table in found.items() if g.divisible or len(by_table) == len(g.dims)}

    def _complete_statistics(
        self,
        pairs: Sequence[tuple[tf.IndexedSlices, TableVariable]],
        communicator: comm.Communicator,
        plans: Sequence[ShardingPlan],
    ) -> dict[int, tf.Tensor]:
        placements = coupled_placements(plans) if self.rule.couples_columns else []
        if not placements:
            return {}
        index = {id(shard): t for t, p in enumerate(placements) for shard in p.shards}
        dims = [p.shards[-1].columns.stop for p in placements]
        parts, owners = [], []
        for gradient, variable in pairs:
            if id(variable.shard) in index:
                values = self.rule.row_statistic(
                    self.rule.prepare(gradient.values), dims[index[id(variable.shard)]]
                )
                parts.append(PartialStatistic(index[id(variable.shard)], gradient.indices, values))
                owners.append(id(variable))
        return dict(zip(owners, complete(communicator, placements, parts), strict=True))

    @property
    def variables(self) -> list[Any]:
        return [*self.dense_optimizer.variables, *self._table_slots]

    @property
    def iterations(self) -> Any:
        return self.dense_optimizer.iterations

    @property
    def learning_rate(self) -> Any:
        return self.dense_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        # Keras's constructor sets its own, which nobody reads.
        if hasattr(self, "dense_optimizer"):
            self.dense_optimizer.learning_rate = value

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        dense = [v for v in var_list if not isinstance(v, TableVariable | ExchangeAnchor)]
        self.dense_optimizer.finalize_variable_values(dense)

    def save_own_variables(self, store: Any) -> None:
        """Whole slots by table, so that a file does not depend on the number of workers. Collective."""
        if self.guard is not None:
            self.guard.before_read("optimizer slots")
        for key, plan, table, shape, dtype, blocks in self._whole_slots():
            store[key] = read_whole(comm.current(), plan.placement(table.name), blocks, shape, dtype)
        for key, block in self._plain_slots():
            store[key] = block.read(0, block.num_rows)

    def load_own_variables(self, store: Any) -> None:
        """Raises KeyError for a slot that is missing; a file of an optimizer that never ran has none and is skipped."""
        if not len(store.keys()) and (self._whole_slots() or self._plain_slots()):
            warnings.warn("the file holds no optimizer slots of tables: they start fresh", stacklevel=2)
            return
        if self.guard is not None:
            self.guard.before_write("optimizer slots")
        for key, _, table, shape, _, blocks in self._whole_slots():
            write_whole(blocks, store[key], shape, f"optimizer slot '{key}' of table '{table.name}'")
        for key, block in self._plain_slots():
            block.write(0, np.asarray(store[key]))

    def _plain_slots(self) -> list[tuple[str, Block]]:
        """Slots of tables that are part of no plan: those of `Embedding` alone."""
        tables = [v for v in self._tables if v.plan is None]
        return [
            (f"table_{t}_{slot.name}", block)
            for t, table in enumerate(tables)
            for slot, block in zip(self.rule.slots, self._targets[id(table)].slots, strict=True)
        ]

    def _whole_slots(
        self,
    ) -> list[tuple[str, ShardingPlan, TableSpec, tuple[int, int], str, dict[Shard, Block]]]:
        entries = []
        for p, plan in enumerate(self._plans):
            for t, table in enumerate(plan.tables):
                mine = [v for v in self._tables if v.plan is plan and v.shard.table == table.name]
                for k, slot in enumerate(self.rule.slots):
                    blocks = {v.shard: self._targets[id(v)].slots[k] for v in mine}
                    shape = slot.shape((table.vocabulary_size, table.embedding_dim))
                    entries.append((f"{p}_{t}_{slot.name}", plan, table, shape, slot.dtype, blocks))
        return entries

    def get_config(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "dense_optimizer": keras.saving.serialize_keras_object(self.dense_optimizer),
            "stochastic_rounding": self.rule.stochastic_rounding,
            "rounding_seed": self.rule.seed,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> RoutedOptimizer:
        config = dict(config)
        config["dense_optimizer"] = keras.saving.deserialize_keras_object(
            config["dense_optimizer"], custom_objects=custom_objects
        )
        return cls(**config)
