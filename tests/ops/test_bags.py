"""`Bags` that lost some of their ids."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from distributed_embeddings.ops.bags import make_bags, unpooled

IDS = np.array([[5, 1, 4], [2, 7, 3]])


def test_ids_dropped_twice_are_zeros_where_they_were():
    odd = make_bags(tf.constant(IDS), feature="f")
    odd = odd.keep(odd.ids % 2 == 1)
    small = odd.keep(odd.ids < 6)
    assert small.ids.numpy().tolist() == [5, 1, 3]
    vectors = tf.cast(small.ids, tf.float32)[:, None]
    assert unpooled(vectors, small).numpy()[..., 0].tolist() == [[5, 1, 0], [0, 0, 3]]
    assert small.row_lengths().numpy().tolist() == [2, 1]


@pytest.mark.parametrize("kind", ["dense", "ragged", "kept"])
def test_regiven_ids_are_those_that_are_left(kind):
    ids = tf.constant(IDS)
    bags = make_bags(tf.RaggedTensor.from_tensor(ids) if kind == "ragged" else ids, feature="f")
    if kind == "kept":
        bags = bags.keep(bags.ids != 1)
    again = bags.regiven()
    expected = [[5, 4], [2, 7, 3]] if kind == "kept" else IDS.tolist()
    if again.splits is None:
        assert again.given.numpy().tolist() == expected
    else:
        assert tf.RaggedTensor.from_row_splits(again.given, again.splits).to_list() == expected
