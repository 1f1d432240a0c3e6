"""The row rule: slots, and a pure update of the touched rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import keras
import tensorflow as tf

from distributed_embeddings.ops import kernels
from distributed_embeddings.ops.block import Block, as_block
from distributed_embeddings.ops.pending import PendingGradients
from distributed_embeddings.ops.rounding import round_by_chance
from distributed_embeddings.ops.table_resource import TableMemory
from distributed_embeddings.ops.updates import RuleKernel, UpdateTarget, apply_rows, rule_arguments

Slots = dict[str, tf.Tensor]
ROW_STATISTIC = "row_statistic"


@dataclass(frozen=True)
class SlotSpec:
    """One piece of optimizer state beside each row.

    width: "row" = [vocabulary_size, dim], one value an element; "scalar" = [vocabulary_size, 1], one value a
    row.
    """

    name: str
    width: Literal["row", "scalar"] = "row"
    initial_value: float = 0.0
    dtype: str = "float32"

    def shape(self, table_shape: tuple[int, int]) -> tuple[int, int]:
        """Shape of the slot of a table of the given shape."""
        rows, dim = table_shape
        return (rows, dim if self.width == "row" else 1)


@dataclass(frozen=True, kw_only=True)
class RowOptimizer:
    """How the touched rows of a table are updated. The fields are the hyperparameters; there is no other
    state.

    A rule is *lazy*: a row without a gradient in a step is not read, not written, and its slots do not decay.
    That is what makes a step's cost follow its ids. SGD and Adagrad give exactly the dense result all the
    same, because a zero gradient changes nothing there; momentum, Adam, RMSprop and FTRL differ from their
    dense namesakes in the untouched rows.

    weight_decay: decoupled, `w -= learning_rate * weight_decay * w` before the update, as Keras has it but
    lazy: touched rows only. clipvalue: every element of a row's summed gradient is clipped to [-clipvalue,
    clipvalue]. stochastic_rounding: bfloat16 tables round up or down by chance, right on the average, so that
    updates below half a unit in the last place are not all lost (Gupta et al., "Deep learning with limited
    numerical precision", ICML 2015); the chance depends on (seed, step, row, column) only.

    To add a rule: a subclass with `name`, its hyperparameters as fields, `slots` and `update`, and a line in
    registry.py; with a struct in csrc/core/rules.h, `kernel` too.
    """

    name: ClassVar[str]

    weight_decay: float | None = None
    clipvalue: float | None = None
    stochastic_rounding: bool = False
    seed: int = 0

    @property
    def slots(self) -> tuple[SlotSpec, ...]:
        """The state the rule keeps, in the order in which it is saved."""
        return ()

    def update(
        self, rows: tf.Tensor, grads: tf.Tensor, slots: Slots, learning_rate: tf.Tensor, step: tf.Tensor
    ) -> tuple[tf.Tensor, Slots]:
        """New rows and new slots of n touched rows. Pure; float32 throughout.

        rows, grads: [n, dim]. slots: name → [n, dim] or [n, 1]; for a rule with a `row_statistic`, that too,
        under ROW_STATISTIC. learning_rate: scalar. step: scalar, the number of this update counted from 1
        (Keras's `iterations + 1`).
        """
        raise NotImplementedError

    def kernel(self) -> RuleKernel | None:
        """The compiled rule that does what `update` does; None: there is none."""
        return None

    def rate(self, learning_rate: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        """What the kernel uses as the learning rate, float32 scalar: with Adam's bias correction."""
        return learning_rate

    def make_kernel(self, name: str, *hyper: float) -> RuleKernel:
        """A `RuleKernel` with what all rules have."""
        return RuleKernel(
            name,
            hyper,
            weight_decay=self.weight_decay or 0.0,
            clip=self.clipvalue,
            stochastic_rounding=self.stochastic_rounding,
            seed=self.seed,
        )

    @property
    def couples_columns(self) -> bool:
        """Whether a column's update depends on the row's other columns, through `row_statistic`."""
        return type(self).row_statistic is not RowOptimizer.row_statistic

    def row_statistic(self, grads: tf.Tensor, dim: int) -> tf.Tensor | None:
        """What an update needs to know of a row's other columns, [n, 1]: a sum over columns, so that parts from the
        shards of a table cut by columns add up. dim: columns of the whole table. None: columns are independent."""
        return None

    def prepare(self, grads: tf.Tensor) -> tf.Tensor:
        """The gradient the rule works with: float32, clipped."""
        grads = tf.cast(grads, tf.float32)
        if self.clipvalue is not None:
            grads = tf.clip_by_value(grads, -self.clipvalue, self.clipvalue)
        return grads

    def create_slots(self, variable_shape: tuple[int, int], name: str) -> dict[str, keras.Variable]:
        """The slot variables of a table of shape [vocabulary_size, dim], under the names `{name}_{slot}`.

        Creation makes no second copy of a slot.
        """
        return {
            slot.name: TableMemory(
                slot.shape(variable_shape),
                slot.dtype,
                fill=slot.initial_value,
                trainable=False,
                name=f"{name}_{slot.name}",
            )
            for slot in self.slots
        }

    def target(
        self,
        table: Block | tf.Variable,
        slots: Mapping[str, Block | keras.Variable | tf.Variable],
        **position: int,
    ) -> UpdateTarget:
        """A table and its slots, by name, in the rule's order. position: where a block lies, see `UpdateTarget`."""
        return UpdateTarget(
            as_block(table), tuple(_slot_block(slots[slot.name]) for slot in self.slots), **position
        )

    def apply(
        self,
        target: UpdateTarget,
        grad: tf.IndexedSlices,
        learning_rate: tf.Tensor | float,
        step: tf.Tensor | int,
        row_statistic: tf.Tensor | None = None,
    ) -> None:
        """Update the rows named in `grad` and their slots in place; everything else stays bitwise what it
        was.

        target: a table [vocabulary_size, dim] of any float dtype; the mathematics is float32 and the new row is
        rounded back. grad: no row twice (see `sum_duplicates`). learning_rate, step: as in `update`. row_statistic: the
        rule's, complete; None where the block has all columns of its table.
        """
        learning_rate = tf.cast(learning_rate, tf.float32)
        kernel = self.kernel()
        if kernel is not None and kernels.enabled_for(target.table.variable):
            step = tf.cast(step, tf.int64)
            rows, sums = tf.cast(grad.indices, tf.int64), tf.cast(grad.values, tf.float32)
            apply_rows(kernel, target, rows, sums, self.rates(learning_rate, step), step, row_statistic)
        else:
            self._apply_plainly(target, grad, learning_rate, step, row_statistic)

    def apply_pending(
        self,
        gradients: PendingGradients,
        targets: Mapping[int, UpdateTarget],
        learning_rate: tf.Tensor | float,
        step: tf.Tensor | int,
    ) -> None:
        """As `apply`, for tables whose gradients need not be written down: targets by table of `gradients`. Only with
        a kernel."""
        which = sorted(targets)
        chosen = [targets[t] for t in which]
        step = tf.cast(step, tf.int64)
        rule = rule_arguments(self.kernel(), chosen, self.rates(learning_rate, step), step)
        gradients.update(which, [target.table.variable.handle for target in chosen], rule)

    def rates(self, learning_rate: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        """The kernels' `rates`, float32 [2]."""
        learning_rate = tf.cast(learning_rate, tf.float32)
        return tf.stack([learning_rate, self.rate(learning_rate, tf.cast(step, tf.float32))])

    def _apply_plainly(
        self,
        target: UpdateTarget,
        grad: tf.IndexedSlices,
        learning_rate: tf.Tensor,
        step: tf.Tensor | int,
        row_statistic: tf.Tensor | None,
    ) -> None:
        blocks = dict(zip((slot.name for slot in self.slots), target.slots, strict=True))
        indices = tf.cast(grad.indices, tf.int64)
        grads = self.prepare(grad.values)
        rows = tf.cast(target.table.gather(indices), tf.float32)
        if self.weight_decay is not None:
            rows -= rows * self.weight_decay * learning_rate
        slots = {name: block.gather(indices) for name, block in blocks.items()}
        if row_statistic is None:
            row_statistic = self.row_statistic(grads, target.table.width)
        if row_statistic is not None:
            slots[ROW_STATISTIC] = row_statistic
        rows, slots = self.update(rows, grads, slots, learning_rate, tf.cast(step, tf.float32))
        if self.stochastic_rounding and target.table.dtype == tf.bfloat16:
            table_rows = target.first_row + indices * target.row_step
            rows = round_by_chance(rows, table_rows, target.first_column, step, self.seed)
        target.table.scatter(indices, rows)
        for name, block in blocks.items():
            block.scatter(indices, slots[name])

    def get_config(self) -> dict[str, Any]:
        """The rule's name and hyperparameters, JSON-able; `optimizers.get` reads it."""
        return {"name": self.name, **asdict(self)}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> RowOptimizer:
        """The rule `get_config` describes."""
        return cls(**{key: value for key, value in config.items() if key != "name"})


def _slot_block(slot: Block | keras.Variable | tf.Variable) -> Block:
    return as_block(slot.value if isinstance(slot, keras.Variable) else slot)
