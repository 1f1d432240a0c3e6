"""Row updates by kernel: from gradients that are pending, or from unique rows and their sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from distributed_embeddings.ops import kernels
from distributed_embeddings.ops.block import Block


@dataclass(frozen=True)
class RuleKernel:
    """A row rule as csrc/core/rules.h has it. hyper: its numbers, in the order of the rule's struct.

    clip: of every element of a gradient; None: none. seed: of stochastic rounding.
    """

    name: str
    hyper: tuple[float, ...] = ()
    weight_decay: float = 0.0
    clip: float | None = None
    stochastic_rounding: bool = False
    seed: int = 0


@dataclass(frozen=True)
class UpdateTarget:
    """A table and its slots in the rule's order. first_row, row_step, first_column: where the block lies in its table:
    its row r is the table's row first_row + r * row_step."""

    table: Block
    slots: tuple[Block, ...]
    first_row: int = 0
    row_step: int = 1
    first_column: int = 0


def rule_arguments(
    rule: RuleKernel, targets: Sequence[UpdateTarget], rates: tf.Tensor, step: tf.Tensor
) -> dict[str, Any]:
    """What the update kernels take of a rule: csrc/tf/rule_attrs.h. rates: float32 [2], the learning rate and what the
    rule makes of it. step: int64 scalar, this update's number from 1."""
    slots = [slot for target in targets for slot in target.slots]
    return {
        "slots": [s.variable.handle for s in slots],
        "rates": rates,
        "step": step,
        "rule": rule.name,
        "hyper": list(rule.hyper),
        "weight_decay": rule.weight_decay,
        "clip": -1.0 if rule.clip is None else rule.clip,
        "stochastic_rounding": rule.stochastic_rounding,
        "seed": rule.seed,
        "slot_offsets": [s.offset for s in slots],
        "slot_widths": [s.width for s in slots],
        "first_rows": [t.first_row for t in targets],
        "row_steps": [t.row_step for t in targets],
        "first_columns": [t.first_column for t in targets],
    }


def apply_rows(
    rule: RuleKernel,
    target: UpdateTarget,
    rows: tf.Tensor,
    sums: tf.Tensor,
    rates: tf.Tensor,
    step: tf.Tensor,
    row_statistic: tf.Tensor | None = None,
) -> None:
    """Update rows in place: int64 [n], none twice, by sums float32 [n, dim]; everything else keeps its bits.

    row_statistic: float32 [n, 1], for row-wise Adagrad on a block without all columns of its table.
    Raises InvalidArgumentError for a row outside the table.
    """
    kernels.library().demb_apply_rows(
        [target.table.variable.handle],
        **rule_arguments(rule, [target], rates, step),
        rows=rows,
        sums=sums,
        statistics=tf.zeros([0]) if row_statistic is None else tf.reshape(row_statistic, [-1]),
        dims=[target.table.width],
    )
