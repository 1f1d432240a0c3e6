"""Metrics of binary predictions in float64: exact, for any number of workers' samples put together."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class NotFiniteError(ValueError):
    """A model's predictions hold NaN or infinities."""


def auc(labels: Array, scores: Array) -> float:
    """Area under the ROC curve: the share of (click, non-click) pairs in the right order, ties half; NaN without pairs.

    labels: [N] in {0, 1}; scores: [N]. The Mann-Whitney statistic by ranks, O(N log N).
    Raises ValueError for a score that is not a number.
    """
    if np.isnan(scores).any():
        raise ValueError(
            f"`scores` must be numbers. Received: {int(np.isnan(scores).sum())} NaN of {len(scores)}"
        )
    _, group, sizes = np.unique(scores, return_inverse=True, return_counts=True)
    positives = np.bincount(group, weights=labels, minlength=len(sizes))
    negatives = sizes - positives
    below = np.cumsum(negatives) - negatives
    pairs = float(positives.sum()) * float(negatives.sum())
    return float(positives @ (below + 0.5 * negatives)) / pairs if pairs else float("nan")


def log_loss(labels: Array, logits: Array) -> float:
    """Mean of -log p(label), from logits [N], in nats; NaN for no sample."""
    if not len(labels):
        return float("nan")
    logits = logits.astype(np.float64)
    # log(1 + e^x) - x·label, without e^x of a large x.
    return float(np.mean(np.logaddexp(0.0, logits) - logits * labels))


def normalised_entropy(labels: Array, logits: Array) -> float:
    """Log loss over that of always saying the base rate (He et al., 2014); NaN when all labels are equal."""
    rate = float(np.mean(labels)) if len(labels) else 0.0
    if not 0 < rate < 1:
        return float("nan")
    return log_loss(labels, logits) / -(rate * np.log(rate) + (1 - rate) * np.log1p(-rate))


def binary_metrics(labels: Array, logits: Array) -> dict[str, float]:
    """auc, log_loss, base_rate, normalised_entropy and samples of labels [N] and logits [N].

    Raises NotFiniteError.
    """
    bad = int(np.count_nonzero(~np.isfinite(logits)))
    if bad:
        raise NotFiniteError(
            f"the model's predictions must be finite. Received: {bad} of {len(logits)} are NaN or infinite"
        )
    labels = np.asarray(labels, np.float64)
    return {
        "auc": auc(labels, logits),
        "log_loss": log_loss(labels, logits),
        "base_rate": float(labels.mean()) if len(labels) else float("nan"),
        "normalised_entropy": normalised_entropy(labels, logits),
        "samples": len(labels),
    }
