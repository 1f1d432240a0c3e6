"""What the competitors on TensorFlow share: timed phases of a lookup and its optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from .peers import made_ids
from .peers.protocol import Answer, answer_runs

Ids = list[tf.Tensor]
"""[step of a call] of int64 [tables, batch, hotness]: one tensor, as FBGEMM is given one. Each argument of a
tf.function costs some 15 µs a call, which is no part of an embedding step; `unstack` cuts without a copy."""


def use_threads(threads: int) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def answer_steps(
    case: dict[str, Any], lookup: Callable[[list[tf.Tensor]], list[tf.Tensor]], optimizer: Any, variables: Any
) -> tuple[dict[str, Any], Answer]:
    """Answers for a lookup (list of ids to list of outputs) and its optimizer.

    lookup: forward. both: forward, gradient and optimizer.
    """
    grads = [tf.constant(g) for g in made_ids.gradients(case)]

    def train(ids: list[tf.Tensor]) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            outputs = lookup(ids)
        optimizer.apply(tape.gradient(outputs, variables, output_gradients=grads), variables)
        return outputs

    def forward_calls(calls: Ids) -> Any:
        return [lookup(tf.unstack(ids)) for ids in calls]

    def train_calls(calls: Ids) -> Any:
        return [train(tf.unstack(ids)) for ids in calls]

    phases = {"lookup": forward_calls, "both": train_calls}
    prepared = made_ids.batches(case)
    said = {
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        **made_ids.describe(prepared, case["rows"]),
    }
    pool = [tf.constant(np.stack(batch)) for batch in prepared]
    per_call = case["steps_per_call"]
    # Plain lists of steps, unrolled: AutoGraph has nothing to convert.
    functions = {name: tf.function(call, autograph=False) for name, call in phases.items()}

    def steps_of(call: Callable[[Ids], Any]) -> Callable[[int], None]:
        def step(batch: int) -> None:
            call([pool[(batch + i) % len(pool)] for i in range(per_call)])

        return step

    steps = {name: steps_of(call) for name, call in functions.items()}
    return said, answer_runs(steps, len(pool), per_call)
