"""The library as a competitor: `python -m distributed_embeddings.cli.bench.worker_ours`.

Public API only, but for the question whether kernels are there.
"""

from __future__ import annotations

from typing import Any

import keras

import distributed_embeddings.dist_model_parallel as dmp
from distributed_embeddings.models.synthetic import RepeatedUniform
from distributed_embeddings.ops import kernels

from .peers.protocol import Answer, serve
from .tensorflow_steps import answer_steps, use_threads


def start(case: dict[str, Any]) -> tuple[dict[str, Any], Answer]:
    """Build tables and prepared batches of a case."""
    use_threads(case["threads"])
    layer = dmp.DistributedEmbedding(
        [dmp.Embedding(case["rows"], case["dim"], "sum", RepeatedUniform()) for _ in range(case["tables"])]
    )
    layer.build(None)
    rules = {"adagrad": keras.optimizers.Adagrad, "rowwise_adagrad": dmp.RowwiseAdagrad}
    optimizer = dmp.DistributedOptimizer(rules[case["rule"]](0.01))
    optimizer.build(layer.trainable_variables)
    said, answer = answer_steps(case, layer, optimizer, layer.trainable_variables)
    return {**said, "kernels": kernels.available()}, answer


if __name__ == "__main__":
    serve(start)
