"""The one file of this room that knows TensorFlow; imported by `Batches.to_tf_dataset` only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from .features import DENSE, WEIGHTS_SUFFIX, Column, Ragged

if TYPE_CHECKING:
    from .batches import Batches

_SPLITS = "/row_splits"


def to_tf_dataset(batches: Batches, first_epoch: int, num_epochs: int | None, first_batch: int) -> Any:
    """See `Batches.to_tf_dataset`."""
    ragged = _ragged_names(batches)

    def generate() -> Iterator[tuple[dict[str, Any], Any]]:
        for features, labels in batches.epochs(first_epoch, num_epochs, first_batch):
            yield _flatten(features), labels[:, np.newaxis]

    # from_generator passes a ragged tensor through a variant, which costs more than the batch itself: the
    # parts travel as plain tensors and are joined inside the graph.
    def join(flat: dict[str, Any], labels: Any) -> tuple[dict[str, Any], Any]:
        features = {}
        for name, value in flat.items():
            if name in ragged:
                value = tf.RaggedTensor.from_row_splits(value, flat[name + _SPLITS], validate=False)
            if not name.endswith(_SPLITS):
                features[name] = value
        return features, labels

    dataset = tf.data.Dataset.from_generator(generate, output_signature=_signature(batches, ragged))
    if ragged:
        dataset = dataset.map(join)
    if batches.num_batches is not None and num_epochs is not None:
        total = max(0, batches.num_batches * num_epochs - first_batch)
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(total))
    options = tf.data.Options()
    # tf.data's autotuner sleeps for up to a minute between looks, the longer the longer it has run, and the end of an
    # epoch waits until it wakes. There is nothing to tune: one generator, one prefetch of two.
    options.autotune.enabled = False
    return dataset.prefetch(2).with_options(options)


def _ragged_names(batches: Batches) -> frozenset[str]:
    names = [feature.name for feature in batches.features if feature.hotness is None]
    weights = [f.name + WEIGHTS_SUFFIX for f in batches.features if f.hotness is None and f.weighted]
    return frozenset(names + weights)


def _flatten(features: dict[str, Column]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, column in features.items():
        if isinstance(column, Ragged):
            flat[name], flat[name + _SPLITS] = column.values, column.row_splits
        else:
            flat[name] = column
    return flat


def _signature(batches: Batches, ragged: frozenset[str]) -> tuple[dict[str, Any], Any]:
    specs: dict[str, Any] = {}
    if batches.num_dense:
        specs[DENSE] = tf.TensorSpec([None, batches.num_dense], tf.float32)
    for feature in batches.features:
        shape = [None] if feature.hotness in (None, 1) else [None, feature.hotness]
        specs[feature.name] = tf.TensorSpec(shape, tf.int64)
        if feature.weighted:
            specs[feature.name + WEIGHTS_SUFFIX] = tf.TensorSpec(shape, tf.float32)
    specs |= {name + _SPLITS: tf.TensorSpec([None], tf.int64) for name in ragged}
    return specs, tf.TensorSpec([None, 1], tf.float32)
