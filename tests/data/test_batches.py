"""The same rows in the same global order for any number of shards."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributed_embeddings.data import Batches, Columns, Feature, InMemoryTable, Ragged, Stream, Table

FEATURES = (Feature("one", 100), Feature("two", 100, 2), Feature("bag", 100, None, weighted=True))


def make_table(num_rows):
    rows = np.arange(num_rows)
    lengths = rows % 4
    values = np.concatenate([np.arange(n) + i for i, n in enumerate(lengths)] or [[]]).astype(np.int32)
    bag = Ragged.from_lengths(values, lengths)
    columns = {
        "dense": np.stack([rows, -rows], axis=1).astype(np.float32),
        "one": rows.astype(np.int32),
        "two": np.stack([rows, rows + 1], axis=1),
        "bag": bag,
        "bag_weights": Ragged((values / 8).astype(np.float32), bag.row_splits),
    }
    return InMemoryTable(columns, (rows % 3 == 0).astype(np.float32), FEATURES)


class BlockStream:
    """A table's rows in blocks of differing size."""

    features, num_dense = FEATURES, 2

    def __init__(self, table, sizes):
        self.table, self.sizes = table, sizes

    def blocks(self):
        start = 0
        for size in self.sizes:
            stop = min(start + size, self.table.num_rows)
            yield self.table.take(np.arange(start, stop))
            start = stop
        yield self.table.take(np.arange(start, self.table.num_rows))


def rows_of(batches):
    return [row for features, _ in batches for row in features["one"].tolist()]


def assert_same(left, right):
    assert left.keys() == right.keys()
    for name in left:
        a, b = left[name], right[name]
        if isinstance(a, Ragged):
            np.testing.assert_array_equal(a.row_splits, b.row_splits)
            a, b = a.values, b.values
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


sources = st.tuples(st.integers(1, 60), st.booleans(), st.lists(st.integers(0, 20), max_size=5)).map(
    lambda drawn: BlockStream(make_table(drawn[0]), drawn[2]) if drawn[1] else make_table(drawn[0])
)


@settings(max_examples=150, deadline=None)
@given(
    source=sources,
    size=st.integers(1, 25),
    num_shards=st.integers(1, 5),
    shuffle=st.booleans(),
    epoch=st.integers(0, 3),
    first=st.integers(0, 3),
    drop=st.booleans(),
)
def test_shards_together_are_the_global_batches(source, size, num_shards, shuffle, epoch, first, drop):
    options = {"shuffle": shuffle, "seed": 7, "drop_remainder": drop, "shuffle_window": 16}
    whole = list(Batches(source, size, **options).epoch(epoch, first))
    parts = [
        list(Batches(source, size, shard_index=i, num_shards=num_shards, **options).epoch(epoch, first))
        for i in range(num_shards)
    ]
    assert {len(part) for part in parts} == {len(whole)}
    for number, (features, labels) in enumerate(whole):
        pieces = [Columns(*part[number]) for part in parts]
        sizes = [len(piece) for piece in pieces]
        assert max(sizes) - min(sizes) <= 1
        joined = Columns.concatenate(pieces)
        assert_same(dict(joined.features), features)
        np.testing.assert_array_equal(joined.labels, labels)


@settings(max_examples=60, deadline=None)
@given(source=sources, size=st.integers(1, 25), shuffle=st.booleans(), epoch=st.integers(0, 2))
def test_every_row_once_an_epoch_with_all_its_values(source, size, shuffle, epoch):
    batches = list(Batches(source, size, shuffle=shuffle, shuffle_window=16).epoch(epoch))
    table = source if isinstance(source, Table) else source.table
    seen = rows_of(batches)
    assert sorted(seen) == list(range(table.num_rows))
    assert shuffle or seen == sorted(seen)
    assert all(len(labels) == size for _, labels in batches[:-1])
    for features, labels in batches:
        expected = make_table(60).take(features["one"])
        assert_same(features, dict(expected.features))
        np.testing.assert_array_equal(labels, expected.labels)


def test_order_depends_on_seed_and_epoch_only():
    table = make_table(50)
    runs = [(seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
    order = [rows_of(Batches(table, 8, shuffle=True, seed=seed).epoch(epoch)) for seed, epoch in runs]
    assert len({tuple(rows) for rows in order}) == 4
    assert rows_of(Batches(table, 50, shuffle=True, seed=1).epoch(1)) == order[3]
    batches = Batches(table, 8, shuffle=True)
    assert rows_of(batches.epochs(3, 2)) == rows_of(batches.epoch(3)) + rows_of(batches.epoch(4))


def test_num_batches_and_more_shards_than_rows():
    table = make_table(10)
    assert Batches(table, 4).num_batches == 3
    assert Batches(table, 4, drop_remainder=True).num_batches == 2
    assert Batches(BlockStream(table, [3]), 4).num_batches is None
    last = [list(Batches(table, 9, shard_index=i, num_shards=4))[-1] for i in range(4)]
    assert [len(labels) for _, labels in last] == [0, 0, 0, 1]
    assert last[0][0]["dense"].shape == (0, 2)
    assert last[0][0]["bag"].row_splits.tolist() == [0]


def test_sources_follow_their_protocols():
    table = make_table(4)
    train, test = table.split(0.25, seed=3)
    assert (
        isinstance(table, Table) and isinstance(train, Table) and isinstance(BlockStream(table, []), Stream)
    )
    assert not isinstance(BlockStream(table, []), Table)
    both = [part.take(np.arange(part.num_rows)).features["one"].tolist() for part in (train, test)]
    assert [len(part) for part in both] == [3, 1] and sorted(both[0] + both[1]) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"global_batch_size": 0}, r"`global_batch_size` must be at least 1. Received: global_batch_size=0"),
        ({"global_batch_size": 4, "num_shards": 0}, r"`num_shards` must be at least 1"),
        (
            {"global_batch_size": 4, "shard_index": 2, "num_shards": 2},
            r"`shard_index` .* Received: shard_index=2, num_shards=2",
        ),
    ],
)
def test_bad_arguments_are_named(options, text):
    with pytest.raises(ValueError, match=text):
        Batches(make_table(3), **options)


def test_endless_epochs_of_nothing_are_an_error():
    with pytest.raises(ValueError, match=r"at least one batch of 8 rows an epoch \(drop_remainder=True\)"):
        next(Batches(make_table(3), 8, drop_remainder=True).epochs(0, None))


def test_table_names_a_wrong_column():
    with pytest.raises(ValueError, match=r"Received: \['other'\]"):
        InMemoryTable({"other": np.zeros(2)}, np.zeros(2, np.float32), [Feature("one", 5)])
    with pytest.raises(ValueError, match=r"Column 'one' .*: 2. Received: 3"):
        InMemoryTable({"one": np.zeros(3)}, np.zeros(2, np.float32), [Feature("one", 5)])
    with pytest.raises(ValueError, match=r"`vocabulary_size` of feature 'x' .* Received: 0"):
        Feature("x", 0)
    with pytest.raises(ValueError, match=r"`hotness` of feature 'x' .* Received: 0"):
        Feature("x", 1, 0)


def test_importing_the_room_leaves_tensorflow_alone():
    code = "import sys, distributed_embeddings.data; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
