"""FBGEMM's table-batched embedding on CPU as a competitor. Run by the peers' Python."""

from __future__ import annotations

from typing import Any

import fbgemm_gpu
import made_ids
import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import (
    BoundsCheckMode,
    EmbeddingLocation,
    PoolingMode,
)
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from protocol import Answer, answer_runs, serve

_RULES = {
    "adagrad": EmbOptimType.EXACT_ADAGRAD,
    "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
}


def start(case: dict[str, Any]) -> tuple[dict[str, Any], Answer]:
    """Build tables and prepared batches of a case.

    The backward call applies the fused rule. No bounds check, which spares FBGEMM the pass over the ids that it makes
    by default.
    """
    torch.set_num_threads(case["threads"])
    spec = (case["rows"], case["dim"], EmbeddingLocation.HOST, ComputeDevice.CPU)
    tables = SplitTableBatchedEmbeddingBagsCodegen(
        [spec] * case["tables"],
        optimizer=_RULES[case["rule"]],
        learning_rate=0.01,
        eps=1e-7,
        stochastic_rounding=False,
        pooling_mode=PoolingMode.SUM,
        bounds_check_mode=BoundsCheckMode.NONE,
        device=torch.device("cpu"),
    )
    tables.init_embedding_weights_uniform(-0.05, 0.05)
    prepared = made_ids.batches(case)
    said = {
        "torch": torch.__version__,
        "fbgemm_gpu": str(fbgemm_gpu.__version__),
        **made_ids.describe(prepared, case["rows"]),
    }
    # FBGEMM's layout: bags of table 0, then of table 1, …
    pool = [torch.from_numpy(np.concatenate([ids.ravel() for ids in batch])) for batch in prepared]
    bags = case["tables"] * case["batch"]
    offsets = torch.arange(0, bags * case["hotness"] + 1, case["hotness"], dtype=torch.int64)
    grads = torch.from_numpy(np.concatenate(made_ids.gradients(case), axis=1))
    return said, answer_runs(_steps(tables, pool, offsets, grads), len(pool))


def _steps(
    tables: Any, pool: list[torch.Tensor], offsets: torch.Tensor, grads: torch.Tensor
) -> dict[str, Any]:
    def lookup(batch: int) -> None:
        with torch.no_grad():
            tables(pool[batch], offsets)

    def both(batch: int) -> None:
        tables(pool[batch], offsets).backward(grads)

    return {"lookup": lookup, "both": both}


if __name__ == "__main__":
    serve(start)
