"""torch.nn.EmbeddingBag with sparse gradients and torch.optim.Adagrad as a competitor. Run by the peers' Python."""

from __future__ import annotations

from typing import Any

import made_ids
import torch
from protocol import Answer, answer_runs, serve


def start(case: dict[str, Any]) -> tuple[dict[str, Any], Answer]:
    """Build tables and prepared batches of a case."""
    torch.set_num_threads(case["threads"])
    if case["rule"] != "adagrad":
        raise ValueError(f"`rule` must be adagrad: torch.optim has no other. Received: rule={case['rule']!r}")
    # Not drawn from a normal law as EmbeddingBag would: that takes minutes and the values do not matter.
    tables = [
        torch.nn.EmbeddingBag.from_pretrained(
            torch.empty(case["rows"], case["dim"]).uniform_(-0.05, 0.05),
            freeze=False,
            mode="sum",
            sparse=True,
        )
        for _ in range(case["tables"])
    ]
    optimizer = torch.optim.Adagrad(
        [table.weight for table in tables], lr=0.01, initial_accumulator_value=0.1, eps=1e-7
    )
    prepared = made_ids.batches(case)
    said = {"torch": torch.__version__, **made_ids.describe(prepared, case["rows"])}
    pool = [[torch.from_numpy(ids) for ids in batch] for batch in prepared]
    grads = [torch.from_numpy(g) for g in made_ids.gradients(case)]

    def forward(batch: int) -> list[torch.Tensor]:
        return [table(ids) for table, ids in zip(tables, pool[batch], strict=True)]

    def lookup(batch: int) -> None:
        with torch.no_grad():
            forward(batch)

    def both(batch: int) -> None:
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(forward(batch), grads)
        optimizer.step()

    return said, answer_runs({"lookup": lookup, "both": both}, len(pool))


if __name__ == "__main__":
    serve(start)
