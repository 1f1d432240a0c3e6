"""Real files, where they are at hand: counts that their origin states."""

import os
from pathlib import Path

import numpy as np
import pytest

from distributed_embeddings.data import CriteoTsv, WeightedInteractions, load_libfm, load_movielens

REPOSITORY = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("DEMB_TEST_DATA", REPOSITORY.parent / "shared" / "data"))


def folder(name):
    if not (DATA / name).is_dir():
        pytest.skip(f"real data {name!r} is not in {DATA} (set DEMB_TEST_DATA)")
    return DATA / name


def cardinalities(reader):
    categorical = np.concatenate([raw.categorical for raw in reader.raw_blocks()])
    # The origin counts the missing value as one.
    return [len(np.unique(column)) for column in categorical.T]


def test_criteo_kaggle():
    base = folder("criteo_kaggle_8k")
    train = CriteoTsv(base / "train.tsv", strict=True)
    table = train.load()
    assert (table.num_rows, table.labels.sum()) == (7200, 1549)
    assert cardinalities(train) == [
        147, 360, 4137, 3101, 51, 8, 2645, 76, 3, 2410, 1805, 3969, 1515,
        22, 1751, 3577, 9, 1012, 457, 4, 3792, 8, 12, 2008, 38, 1526,
    ]  # fmt: skip
    valid = CriteoTsv(f"{base}/{{dev,test}}.tsv").load()
    assert valid.num_rows == 409 + 391
    columns = table.take(np.arange(7200))
    assert round((columns.features["C22"] == 0).mean(), 2) == 0.82
    categorical = np.concatenate([raw.categorical for raw in train.raw_blocks()])
    assert round((categorical[categorical >= 0] >= 2**31).mean(), 2) == 0.44
    assert min(raw.numbers[:, 1].min() for raw in train.raw_blocks()) == -2


def test_criteo_terabyte_gzip_equals_plain():
    base = folder("criteo_1tb_1k")
    plain, zipped = (next(CriteoTsv(base / name).raw_blocks()) for name in ("criteoTab.tsv", "criteoTab.gz"))
    assert len(plain.labels) == 1000 and plain.labels.sum() == 21
    assert np.nanmax(plain.numbers[:, 11]) == 1_005_389
    assert np.nanmin(plain.numbers[:, 7]) == -1
    np.testing.assert_array_equal(plain.numbers, zipped.numbers)
    np.testing.assert_array_equal(plain.categorical, zipped.categorical)
    np.testing.assert_array_equal(plain.labels, zipped.labels)


def test_frappe():
    base = folder("frappe")
    train, test = load_libfm(base / "frappe.validation.libfm", base / "frappe.test.libfm")
    assert (train.num_rows, train.labels.sum()) == (57_722, 19_063)
    assert (test.num_rows, test.labels.sum()) == (28_860, 9_536)
    assert sum(feature.vocabulary_size for feature in train.features) <= 5382
    for feature in train.features:
        ids = train.take(np.arange(train.num_rows)).features[feature.name]
        assert ids.min() >= 0 and ids.max() < feature.vocabulary_size


def test_movielens():
    train, test = load_movielens(folder("ml-100k"))
    assert (train.num_rows, test.num_rows) == (90_000, 10_000)
    sizes = {feature.name: feature.vocabulary_size for feature in train.features}
    assert sizes == {"user_id": 943, "item_id": 1682, "genres": 19, "age": 7, "gender": 2, "occupation": 21}
    columns = [part.take(np.arange(part.num_rows)) for part in (train, test)]
    users = np.bincount(np.concatenate([part.features["user_id"] for part in columns]))
    assert (users.min(), users.max()) == (20, 737)
    assert sum(part.labels.sum() for part in columns) == 55_375


def test_lastfm():
    table = WeightedInteractions(folder("lastfm_hetrec") / "user_artists.dat")
    assert table.num_rows == 2 * 92_834
    assert table.features[0].vocabulary_size == 17_632
    rows = np.arange(table.num_rows)
    columns = table.take(rows[:5000])
    assert columns.features["history"].lengths.max() == 49
    assert columns.labels.mean() == 0.5
