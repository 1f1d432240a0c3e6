"""A shard of a table as a Keras variable that is never read whole by a step."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from distributed_embeddings import comm
from distributed_embeddings.layers.slots import SlotView, lay_out, pays
from distributed_embeddings.ops.block import Block
from distributed_embeddings.ops.initial_values import row_blocks
from distributed_embeddings.ops.table_resource import TableMemory, TableResource
from distributed_embeddings.optimizers import SlotSpec
from distributed_embeddings.planner import Shard, ShardingPlan

# Below this, Keras's own dense update costs no more than a few milliseconds.
LARGE_TABLE_ELEMENTS = 1 << 20


class TableVariable(TableMemory):
    """Rows × columns of one table on this rank: float [len(shard.rows), len(shard.columns)].

    replicated: every rank holds the same whole table (data-parallel). plan: the plan the shard belongs to; None for a
    table that is not part of one.
    """

    def __init__(
        self,
        shard: Shard,
        values: Callable[[range, range], np.ndarray],
        dtype: str,
        *,
        replicated: bool,
        name: str,
        plan: ShardingPlan | None = None,
    ) -> None:
        self.shard = shard
        self.plan = plan
        # Whether other ranks do not have these values: what `sharded` variables hold is never averaged or broadcast.
        self.sharded = not replicated
        self.replicated = replicated
        self._warned = False
        self._slots_owner: weakref.ref[Any] | None = None
        # One buffer, filled block by block: no second copy of the shard at any time.
        super().__init__((len(shard.rows), len(shard.columns)), dtype, trainable=True, name=name)
        for start, rows in row_blocks(shard.rows, len(shard.columns)):
            self.block.write(start, values(rows, shard.columns))

    @property
    def block(self) -> Block:
        """The table's columns of the tf.Variable."""
        return Block(self._value, 0, self.shape[1], tf.as_dtype(self._dtype))

    def lay_slots(self, owner: Any, slots: Sequence[SlotSpec]) -> dict[str, SlotView] | None:
        """Put an optimizer's slots beside the rows, so that an update touches one stretch of memory a row.

        owner: the optimizer; while one lives, another gets None and keeps its slots elsewhere. None without kernels
        too.
        """
        if not isinstance(self._value, TableResource) or not pays(self.block, slots):
            return None
        if self._is_held_by_another(owner):
            # Optimizers are parts of cycles, in Keras and here: one that nobody uses goes with a collection only.
            gc.collect()
            if self._is_held_by_another(owner):
                return None
        blocks, columns = lay_out(self.block, slots)
        self._value.widen(
            columns,
            [b.offset for b in blocks],
            [b.width for b in blocks],
            [slot.initial_value for slot in slots],
        )
        self._slots_owner = weakref.ref(owner)
        return {
            slot.name: SlotView(b, f"{self.name}_{slot.name}", owner, self.sharded)
            for slot, b in zip(slots, blocks, strict=True)
        }

    def _is_held_by_another(self, owner: Any) -> bool:
        holder = None if self._slots_owner is None else self._slots_owner()
        return holder is not None and holder is not owner

    @property
    def overwrite_with_gradient(self) -> bool:
        """False. Keras's optimizers, and nothing else, ask this of a variable: so it is where their use is noticed."""
        _require_reduction()
        if not self._warned and self.shape[0] * self.shape[1] >= LARGE_TABLE_ELEMENTS:
            self._warned = True
            warnings.warn(
                f"table '{self.shard.table}' {tuple(self.shape)} is updated by a plain Keras optimizer, "
                "which makes its gradient dense: every step costs as much as the whole table. Wrap it: "
                "dmp.DistributedOptimizer(optimizer).",
                stacklevel=2,
            )
        return False

    @overwrite_with_gradient.setter
    def overwrite_with_gradient(self, value: bool) -> None:
        if value:
            raise ValueError("a table is updated by its gradient, never overwritten. Received: value=True")


class ExchangeAnchor(keras.Variable):
    """A trainable float32 [0] on every rank: through it a tape on a rank without tables reaches the exchange too."""

    def __init__(self, plan: ShardingPlan) -> None:
        self.plan = plan
        super().__init__(np.zeros([0], np.float32), trainable=True, autocast=False, name="exchange_anchor")


_reduced = False


def note_reduction() -> None:
    """Remember that gradients were averaged over the workers in this process."""
    global _reduced
    _reduced = True


def _require_reduction() -> None:
    """A Keras optimizer that is handed each worker's own gradients would let the dense weights drift apart,
    silently."""
    if not _reduced and comm.size() > 1:
        raise ValueError(
            "the gradients must be averaged over the workers before a Keras optimizer applies them. In `compile`, pass "
            "dmp.DistributedOptimizer(optimizer); in a loop of your own, take them from dmp.DistributedGradientTape."
        )
