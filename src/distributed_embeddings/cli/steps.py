"""The two graph functions of a run: one training step, one prediction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def train_step(model: Any, optimizer: Any) -> Callable[..., Any]:
    """(features, labels [B, 1]) → [sum of the local losses, local samples], float64; to be traced.

    Collective: every rank calls it equally often, also with an empty part.
    """

    def step(features: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            losses = sample_losses(labels, model(features, training=True))
            # A rank without samples has the mean 0 here and the weight 0 in the reduction.
            loss = tf.math.divide_no_nan(tf.reduce_sum(losses), tf.cast(tf.size(losses), losses.dtype))
            objective = optimizer.scale_loss(tf.add_n([loss, *model.losses]))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(objective, variables), variables, strict=True))
        return tf.stack([tf.cast(tf.reduce_sum(losses), tf.float64), tf.cast(tf.size(losses), tf.float64)])

    return step


def make_predict_step(model: Any, spec: Any) -> Callable[[Any], Any]:
    """features → logits float32 [B]. Collective."""

    @tf.function(input_signature=[spec])
    def predict(features: Any) -> Any:
        return tf.reshape(model(features, training=False), [-1])

    return predict


def sample_losses(labels: Any, logits: Any) -> Any:
    """Binary cross entropy of each sample, float32 [B]."""
    losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, tf.cast(logits, tf.float32))
    return tf.reshape(losses, [-1])
