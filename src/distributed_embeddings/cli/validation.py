"""Metrics over all workers' samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from .metrics import binary_metrics

EVALUATION_BATCH = 4096


def evaluate(communicator: Any, predict: Callable[[Any], Any], dataset: Any) -> dict[str, float]:
    """Metrics of the predictions for a whole data set, the same on every rank. Collective.

    predict: features → logits [B]. dataset: this rank's batches (features, labels [B, 1]).
    """
    logits: list[Any] = [np.empty(0, np.float32)]
    labels: list[Any] = [np.empty(0, np.float32)]
    sizes: list[int] = []
    for features, batch_labels in dataset:
        logits.append(predict(features).numpy())
        labels.append(batch_labels.numpy().reshape(-1))
        sizes.append(len(labels[-1]))
    gathered = gather_in_order(
        communicator, np.stack([np.concatenate(logits), np.concatenate(labels)], 1), np.array(sizes, np.int64)
    )
    return binary_metrics(gathered[:, 1], gathered[:, 0])


def gather_in_order(communicator: Any, rows: Any, sizes: Any) -> Any:
    """All ranks' rows [n_r, ...] in the order of one worker: batch by batch, in each by rank. Collective.

    sizes: int64 [batches], this rank's rows of each batch; equally many batches on all ranks.
    """
    if communicator.size == 1:
        return rows
    all_rows, _ = communicator.all_gather(tf.constant(rows), phase="predictions")
    all_sizes, _ = communicator.all_gather(tf.constant(sizes), phase="batch sizes of predictions")
    by_rank = all_sizes.numpy().reshape(communicator.size, -1)
    # Rows came rank by rank, in each batch by batch; sort them by (batch, rank), keeping the order inside.
    batch = np.concatenate([np.repeat(np.arange(by_rank.shape[1]), counts) for counts in by_rank])
    return all_rows.numpy()[np.argsort(batch, kind="stable")]
