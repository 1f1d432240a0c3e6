"""Keras's symbolic traces: it runs `call` on placeholders to learn shapes, in a scope where variables have no value."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

# Keras exports StatelessScope but neither the question nor the way out of it.
from keras.src.backend.common import global_state
from keras.src.backend.common.stateless_scope import in_stateless_scope

from distributed_embeddings.ops.bags import make_bags


def in_symbolic_trace() -> bool:
    """Whether Keras is only asking for shapes: no table may be read and no exchange happens."""
    return bool(in_stateless_scope())


@contextmanager
def real_variables() -> Iterator[None]:
    """Create variables at once, eagerly, also when Keras builds the layer during a symbolic trace or a tf.function.

    Keras would note the initializer and later run it whole, table by table.
    """
    scope = global_state.get_global_attribute("stateless_scope")
    global_state.set_global_attribute("stateless_scope", None)
    try:
        with tf.init_scope():
            yield
    finally:
        global_state.set_global_attribute("stateless_scope", scope)


def placeholder_output(ids: Any, dim: int, combiner: str | None, dtype: str) -> Any:
    """A tensor of a feature's output shape, for a symbolic trace."""
    bags = make_bags(ids, feature="placeholder")
    if combiner is not None:
        output = tf.zeros(tf.stack([bags.batch_size, dim]), dtype)
        output.set_shape([None, dim])
        return output
    return bags.unpooled(tf.zeros(tf.stack([tf.size(bags.ids, tf.int64), dim]), dtype))
