"""Metrics against brute force over all pairs and samples."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributed_embeddings.cli.metrics import (
    NotFiniteError,
    auc,
    binary_metrics,
    log_loss,
    normalised_entropy,
)

# Few different scores, so that ties are common.
SAMPLES = st.lists(st.tuples(st.integers(0, 1), st.integers(-3, 3)), min_size=1, max_size=30)


def arrays(samples):
    labels, scores = zip(*samples, strict=True)
    return np.array(labels, np.float64), np.array(scores, np.float32)


@settings(max_examples=200, deadline=None)
@given(SAMPLES)
def test_auc_counts_pairs(samples):
    labels, scores = arrays(samples)
    pairs = [(p, n) for p in scores[labels == 1] for n in scores[labels == 0]]
    got = auc(labels, scores)
    if not pairs:
        assert math.isnan(got)
    else:
        assert got == pytest.approx(sum((p > n) + 0.5 * (p == n) for p, n in pairs) / len(pairs), abs=1e-12)


@settings(max_examples=100, deadline=None)
@given(SAMPLES)
def test_log_loss_and_entropy_by_definition(samples):
    labels, logits = arrays(samples)
    p = 1 / (1 + np.exp(-logits.astype(np.float64)))
    expected = float(np.mean(-labels * np.log(p) - (1 - labels) * np.log(1 - p)))
    assert log_loss(labels, logits) == pytest.approx(expected, rel=1e-12)
    rate = labels.mean()
    if 0 < rate < 1:
        entropy = -rate * math.log(rate) - (1 - rate) * math.log(1 - rate)
        assert normalised_entropy(labels, logits) == pytest.approx(expected / entropy, rel=1e-12)
    else:
        assert math.isnan(normalised_entropy(labels, logits))


def test_log_loss_of_large_logits_is_finite():
    assert log_loss(np.array([1.0, 0.0]), np.array([-1000.0, -1000.0])) == 500.0


def test_base_rate_predictor_has_entropy_one():
    labels = np.array([1.0, 0.0, 0.0, 0.0])
    assert normalised_entropy(labels, np.full(4, math.log(1 / 3))) == pytest.approx(1.0)


def test_nan_score_is_an_error():
    with pytest.raises(ValueError, match="1 NaN of 2"):
        auc(np.array([1.0, 0.0]), np.array([np.nan, 0.0]))


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_predictions_of_a_diverged_model_are_an_error(bad):
    with pytest.raises(NotFiniteError, match="must be finite. Received: 1 of 2 are NaN or infinite"):
        binary_metrics(np.array([1.0, 0.0]), np.array([bad, 0.0], np.float32))


def test_no_sample():
    metrics = binary_metrics(np.empty(0), np.empty(0, np.float32))
    assert metrics["samples"] == 0
    assert all(math.isnan(v) for k, v in metrics.items() if k != "samples")
