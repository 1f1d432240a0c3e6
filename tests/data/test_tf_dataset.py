"""Batches as tf.data: values, shapes, dtypes."""

import numpy as np
import pytest
import tensorflow as tf
from test_batches import BlockStream, make_table

from distributed_embeddings.data import Batches, Ragged


@pytest.mark.parametrize("stream", [False, True])
def test_dataset_holds_the_batches(stream):
    source = BlockStream(make_table(23), [5, 9]) if stream else make_table(23)
    batches = Batches(source, 8, shuffle=True, shard_index=1, num_shards=3)
    dataset = batches.to_tf_dataset(first_epoch=2, num_epochs=2, first_batch=1)
    expected = list(batches.epochs(2, 2, 1))
    got = list(dataset)
    assert len(got) == len(expected) == 5
    for (features, labels), (right, right_labels) in zip(got, expected, strict=True):
        assert features.keys() == right.keys()
        np.testing.assert_array_equal(labels.numpy(), right_labels[:, None])
        for name, value in features.items():
            if isinstance(right[name], Ragged):
                np.testing.assert_array_equal(value.row_splits, right[name].row_splits)
                np.testing.assert_array_equal(value.values, right[name].values)
            else:
                np.testing.assert_array_equal(value, right[name])
    unknown = tf.data.UNKNOWN_CARDINALITY
    assert dataset.cardinality().numpy() == (unknown if stream else 5)


def test_element_spec_is_static():
    features, labels = Batches(make_table(5), 2).to_tf_dataset().element_spec
    assert features == {
        "dense": tf.TensorSpec([None, 2], tf.float32),
        "one": tf.TensorSpec([None], tf.int64),
        "two": tf.TensorSpec([None, 2], tf.int64),
        "bag": tf.RaggedTensorSpec([None, None], tf.int64, 1),
        "bag_weights": tf.RaggedTensorSpec([None, None], tf.float32, 1),
    }
    assert labels == tf.TensorSpec([None, 1], tf.float32)


def test_endless_dataset_goes_on_after_an_epoch():
    dataset = Batches(make_table(4), 3).to_tf_dataset(num_epochs=None)
    assert [len(labels) for _, labels in dataset.take(5)] == [3, 1, 3, 1, 3]
