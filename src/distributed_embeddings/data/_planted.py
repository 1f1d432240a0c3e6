"""The truth behind the synthetic clicks: effects a DLRM can learn, and the AUC of knowing them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .hashing import key64, mix64, unit_interval

# Shares of the logit's variance: numbers, single ids, products of two features' latent vectors.
_SHARES = (0.4, 0.52, 0.08)
_LATENT = 2
_SQRT3 = 3.0**0.5


@dataclass(frozen=True)
class PlantedTruth:
    """Click probability of a row: sigmoid(intercept + numeric effects + an effect per id + two interactions).

    Effects are hashes of (key, feature, id), so a vocabulary of any size costs no memory.
    """

    key: int
    pairs: tuple[tuple[int, int], tuple[int, int]]
    id_weights: NDArray[np.float64]
    dense_mean: NDArray[np.float64]
    dense_weights: NDArray[np.float64]
    scales: tuple[float, float, float]
    intercept: float

    @classmethod
    def calibrated(
        cls,
        seed: int,
        vocabulary_sizes: NDArray[np.int64],
        dense: NDArray[np.float32],
        ids: NDArray[np.int64],
        base_rate: float,
        logit_std: float,
    ) -> PlantedTruth:
        """The truth of `seed`, scaled on sample rows to a standard deviation of the logit and a click rate.

        Constants are rounded to 1e-6: sums may differ in their last bits between machines, the truth must
        not.
        """
        key = key64(seed, 0x7472757468)
        # A large vocabulary has few clicks an id: its effects count less, so that they can be learned at all.
        id_weights = np.round(vocabulary_sizes**-0.35, 6)
        # Latent vectors are multiplied, as DLRM's dot interaction does, for the four features with most
        # clicks an id.
        a, b, c, d = (int(feature) for feature in np.argsort(vocabulary_sizes, kind="stable")[:4])
        pairs = ((a, b), (c, d))
        spread = np.maximum(dense.std(axis=0, dtype=np.float64), 1e-3)
        signs = _effects(key64(key, 1), np.arange(dense.shape[1], dtype=np.int64))
        mean, weights = np.round(dense.mean(axis=0, dtype=np.float64), 6), np.round(signs / spread, 6)
        plain = cls(key, pairs, id_weights, mean, weights, (1.0, 1.0, 1.0), 0.0)
        scales = [
            round(float(logit_std * np.sqrt(share) / max(part.std(), 1e-9)), 6)
            for share, part in zip(_SHARES, plain._parts(dense, ids), strict=True)
        ]
        scaled = cls(key, pairs, id_weights, mean, weights, (scales[0], scales[1], scales[2]), 0.0)
        intercept = round(_intercept(scaled.logits(dense, ids), base_rate), 6)
        return cls(key, pairs, id_weights, mean, weights, scaled.scales, intercept)

    def logits(self, dense: NDArray[np.float32], ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """float64 [B] from dense float32 [B, 13] (as a model gets it) and ids int64 [B, 26]."""
        parts = self._parts(dense, ids)
        return sum(
            (scale * part for scale, part in zip(self.scales, parts, strict=True)), np.float64(self.intercept)
        )

    def probabilities(self, dense: NDArray[np.float32], ids: NDArray[np.int64]) -> NDArray[np.float64]:
        return sigmoid(self.logits(dense, ids))

    def _parts(self, dense: NDArray[np.float32], ids: NDArray[np.int64]) -> tuple[NDArray[np.float64], ...]:
        numeric = (dense - self.dense_mean) @ self.dense_weights
        single = _effects(key64(self.key, 2), ids) @ self.id_weights
        products = np.zeros(len(ids))
        for left, right in self.pairs:
            for k in range(_LATENT):
                key = key64(self.key, 3, k)
                products += _effects(key64(key, left), ids[:, left]) * _effects(
                    key64(key, right), ids[:, right]
                )
        return numeric, single, products


def sigmoid(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    result: NDArray[np.float64] = 0.5 * (1.0 + np.tanh(0.5 * logits))
    return result


def auc(scores: NDArray[np.float64], positive: NDArray[np.float64]) -> float:
    """Area under the ROC curve, ties half. positive: labels in {0, 1}, or probabilities.

    With probabilities: expected correctly ordered pairs over expected pairs of a click and a non-click, a
    row never being paired with itself. NaN without such a pair.
    """
    _, group = np.unique(scores, return_inverse=True)
    ups = np.bincount(group, weights=positive)
    downs = np.bincount(group, weights=1.0 - positive)
    with_itself = float(positive @ (1.0 - positive))
    below = np.cumsum(downs) - downs
    ordered = float(ups @ (below + 0.5 * downs)) - 0.5 * with_itself
    pairs = float(ups.sum() * downs.sum()) - with_itself
    return ordered / pairs if pairs > 0 else float("nan")


def _effects(key: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """An effect of variance 1 (uniform) for each id; the last axis of a matrix is the feature."""
    salt = np.arange(ids.shape[-1], dtype=np.uint64) << np.uint64(40) if ids.ndim == 2 else np.uint64(0)
    bits = mix64(ids.astype(np.uint64) + salt ^ np.uint64(key))
    return (2.0 * unit_interval(bits) - 1.0) * _SQRT3


def _intercept(logits: NDArray[np.float64], base_rate: float) -> float:
    """The shift of `logits` that makes the mean probability `base_rate`, by bisection."""
    low, high = -50.0, 50.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if sigmoid(logits + middle).mean() < base_rate else (low, middle)
    return low
