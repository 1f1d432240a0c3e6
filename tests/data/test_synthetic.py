"""The planted truth, the streams, the rows' independence of who draws them, and the round trip through Criteo text."""

import numpy as np
import pytest

from distributed_embeddings.data import Batches, CriteoTsv, SyntheticClicks, write_criteo_tsv
from distributed_embeddings.data._planted import auc
from distributed_embeddings.data.criteo_writer import id_to_hex_value

ROWS = np.arange(60_000)


@pytest.fixture(scope="module")
def table():
    return SyntheticClicks(60_000, stream="valid")


def flat(columns):
    return np.column_stack([columns.labels, *columns.features.values()])


def slow_auc(scores, labels):
    ups, downs = scores[labels == 1], scores[labels == 0]
    return np.mean((ups[:, None] > downs) + 0.5 * (ups[:, None] == downs))


def test_auc_counts_pairs_and_halves_ties():
    generator = np.random.default_rng(0)
    scores = generator.integers(0, 20, 300).astype(float)
    labels = (generator.random(300) < 0.3).astype(float)
    assert auc(scores, labels) == pytest.approx(slow_auc(scores, labels))
    assert np.isnan(auc(scores, np.zeros(300)))


def test_expected_auc_is_the_mean_over_labels():
    generator = np.random.default_rng(1)
    p = generator.random(400)
    drawn = [auc(p, (generator.random(400) < p).astype(float)) for _ in range(400)]
    assert auc(p, p) == pytest.approx(np.mean(drawn), abs=4 * np.std(drawn) / 20)


def test_best_auc_is_near_080_and_is_that_of_the_truth(table):
    best = table.best_possible_auc()
    labels, truth = table.take(ROWS).labels.astype(float), table.probabilities(ROWS)
    assert best == auc(truth, labels)
    assert best == pytest.approx(table.expected_best_auc(), abs=0.01)
    assert 0.79 < best < 0.82
    assert table.best_possible_auc(1000) == auc(truth[:1000], labels[:1000])
    # The labels are drawn from these probabilities: calibrated in every tenth, and spoiling them costs AUC.
    order = np.argsort(truth)
    for part in np.array_split(order, 10):
        deviation = np.sqrt((truth[part] * (1 - truth[part])).sum())
        assert abs(labels[part].sum() - truth[part].sum()) < 5 * deviation
    noise = np.random.default_rng(0).normal(0, 1, len(truth))
    assert auc(np.log(truth / (1 - truth)) + noise, labels) < best - 0.02


def test_more_truth_gives_more_auc():
    scores = [SyntheticClicks(20_000, logit_std=std).expected_best_auc() for std in (0.0, 0.5, 1.5, 3.0)]
    assert scores[0] == pytest.approx(0.5) and scores == sorted(scores)
    rate = SyntheticClicks(20_000, base_rate=0.05).take(np.arange(20_000)).labels.mean()
    assert rate == pytest.approx(0.05, abs=0.01)


def test_truth_can_be_learned_from_the_features():
    """Logistic regression on numbers and one-hot ids reaches most of what can be known; the rest are interactions."""
    train, valid = SyntheticClicks(120_000), SyntheticClicks(20_000, stream="valid")
    starts = np.cumsum([0, *(feature.vocabulary_size for feature in train.features)])
    dense_weights, id_weights, bias = np.zeros(13), np.zeros(starts[-1]), -1.1

    def design(columns):
        ids = [columns.features[feature.name] for feature in train.features]
        return columns.features["dense"] - 2.0, np.column_stack(ids) + starts[:-1]

    squares = np.full(starts[-1], 1e-4)
    for _ in range(3):
        for start in range(0, 120_000, 1000):
            columns = train.take(np.arange(start, start + 1000))
            dense, ids = design(columns)
            logit = dense @ dense_weights + id_weights[ids].sum(axis=1) + bias
            error = 1 / (1 + np.exp(-logit)) - columns.labels
            gradient = np.bincount(ids.ravel(), np.repeat(error / 1000, 26), starts[-1])
            squares += gradient**2
            id_weights -= 0.03 * gradient / np.sqrt(squares)
            dense_weights -= 0.1 * dense.T @ error / 1000
            bias -= 0.1 * error.mean()
    columns = valid.take(np.arange(20_000))
    dense, ids = design(columns)
    got = auc(dense @ dense_weights + id_weights[ids].sum(axis=1), columns.labels.astype(float))
    best = valid.best_possible_auc()
    assert best - 0.04 < got < best


def test_rows_do_not_depend_on_who_draws_them(table):
    again = SyntheticClicks(10**12, stream="valid")
    whole = flat(table.take(ROWS[:5000]))
    shuffled = np.random.default_rng(0).permutation(5000)
    np.testing.assert_array_equal(flat(again.take(shuffled)), whole[shuffled])
    parts = [list(Batches(table, 777, shard_index=i, num_shards=3)) for i in range(3)]
    joined = np.concatenate([parts[i][t][0]["C21"] for t in range(4) for i in range(3)])
    np.testing.assert_array_equal(joined, table.take(np.arange(4 * 777)).features["C21"])
    far = again.take(np.array([10**12 - 1]))
    assert far.features["C1"].dtype == np.int64 and far.features["dense"].shape == (1, 13)


def test_streams_and_seeds_differ_and_share_the_truth(table):
    train, other = SyntheticClicks(60_000), SyntheticClicks(60_000, seed=1, stream="valid")
    dense = [t.take(ROWS).features["dense"] for t in (table, train, other)]
    seen = [{row.tobytes() for row in block} for block in dense]
    assert all(len(rows) > 59_000 for rows in seen)
    assert max(len(seen[0] & seen[1]), len(seen[0] & seen[2])) < 60
    assert train._truth.intercept == table._truth.intercept != other._truth.intercept


def test_shape_is_criteos(table):
    raw = table.raw(ROWS)
    assert raw.numbers[:, 1].min() == -2
    missing = raw.missing.mean(axis=0)
    assert missing[4] == pytest.approx(0.4, abs=0.02) and missing[0] == 0
    columns = table.take(ROWS)
    for feature in table.features:
        ids = columns.features[feature.name]
        assert ids.min() >= 0 and ids.max() < feature.vocabulary_size
    # A power law: the most frequent id of the largest feature far above the middle one, and ids not in order of rank.
    counts = np.bincount(columns.features["C21"], minlength=20_000)[1:]
    assert counts.max() > 100 * np.median(counts[counts > 0])
    top = np.sort(np.argsort(counts)[-4:])
    assert np.diff(top).min() > 100
    assert all(len(np.unique(columns.features[name])) >= 10 for name in ("C6", "C10"))


def test_exponent_one_and_zero():
    for exponent, top in ((0.0, 1 / 99), (1.0, np.log(2) / np.log(100))):
        ids = SyntheticClicks(1, vocabulary_sizes=[100] * 26, exponent=exponent).raw(ROWS).ids[:, 0]
        assert np.bincount(ids).max() / len(ids) == pytest.approx(top, rel=0.15)


@pytest.mark.parametrize("suffix", [".tsv", ".tsv.gz"])
def test_written_and_read_again(table, tmp_path, suffix):
    path = tmp_path / f"clicks{suffix}"
    assert write_criteo_tsv(path, table, 100, 3100, chunk=1000) == 3000
    reader = CriteoTsv(path, buckets=100_000, strict=True)
    raw = table.raw(np.arange(100, 3100))
    categorical = np.concatenate([block.categorical for block in reader.raw_blocks()])
    np.testing.assert_array_equal(
        categorical, np.where(raw.ids == 0, -1, id_to_hex_value(raw.ids).astype(np.int64))
    )
    read = reader.load().take(np.arange(3000))
    written = table.take(np.arange(100, 3100))
    np.testing.assert_array_equal(read.features["dense"], written.features["dense"])
    np.testing.assert_array_equal(read.labels, written.labels)


def test_hex_values_are_one_to_one():
    assert len(np.unique(id_to_hex_value(np.arange(1_000_000)))) == 1_000_000


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_rows": 0}, "`num_rows` must be at least 1. Received: 0"),
        ({"vocabulary_sizes": [10] * 25}, "`vocabulary_sizes` must be 26 numbers"),
        ({"vocabulary_sizes": [1] * 26}, "`vocabulary_sizes` must be 26 numbers"),
        ({"exponent": -1}, "`exponent` must not be negative. Received: -1"),
        ({"base_rate": 1.0}, "`base_rate` must be between 0 and 1. Received: 1.0"),
        ({"logit_std": -1.0}, "`logit_std` must not be negative"),
    ],
)
def test_bad_arguments_are_named(options, text):
    with pytest.raises(ValueError, match=text):
        SyntheticClicks(**{"num_rows": 10, **options})


def test_bad_ranges_are_named(table, tmp_path):
    with pytest.raises(ValueError, match="Received: start=5, stop=60001"):
        write_criteo_tsv(tmp_path / "x", table, 5, 60_001)
    with pytest.raises(ValueError, match=r"`num_rows` must be in \[1, 60000\]. Received: 0"):
        table.best_possible_auc(0)
