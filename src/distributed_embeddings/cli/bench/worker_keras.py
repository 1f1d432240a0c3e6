"""Plain Keras as a competitor: `Embedding` layers, a sum over each bag, Keras's Adagrad."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from .peers.protocol import Answer, serve
from .tensorflow_steps import answer_steps, use_threads


def start(case: dict[str, Any]) -> tuple[dict[str, Any], Answer]:
    """Build tables and prepared batches of a case."""
    use_threads(case["threads"])
    layers = [keras.layers.Embedding(case["rows"], case["dim"]) for _ in range(case["tables"])]
    for layer in layers:
        layer.build()
    variables = [layer.embeddings for layer in layers]
    optimizer = keras.optimizers.Adagrad(0.01)
    optimizer.build(variables)

    def lookup(ids: list[tf.Tensor]) -> list[tf.Tensor]:
        return [tf.reduce_sum(layer(x), axis=1) for layer, x in zip(layers, ids, strict=True)]

    return answer_steps(case, lookup, optimizer, variables)


if __name__ == "__main__":
    serve(start)
