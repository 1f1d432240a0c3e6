"""Random ids: any row alone, the law they follow, what is refused."""

import numpy as np
import pytest

from distributed_embeddings.data import Feature, RandomIds

FEATURES = (Feature("one", 1000), Feature("many", 7, hotness=3), Feature("single", 1))


def test_a_row_does_not_depend_on_the_others():
    source = RandomIds(FEATURES, 4, 10_000, seed=3)
    whole = source.take(np.arange(500))
    part = source.take(np.array([17, 300]))
    for name, column in part.features.items():
        np.testing.assert_array_equal(column, whole.features[name][[17, 300]])
    np.testing.assert_array_equal(part.labels, whole.labels[[17, 300]])
    other = RandomIds(FEATURES, 4, 10_000, seed=4).take(np.arange(500))
    assert not np.array_equal(other.features["one"], whole.features["one"])


def test_shapes_ranges_and_dtypes():
    columns = RandomIds(FEATURES, 4, 10_000).take(np.arange(2000))
    assert columns.features["dense"].shape == (2000, 4)
    assert columns.features["one"].shape == (2000,)
    assert columns.features["many"].shape == (2000, 3)
    for feature in FEATURES:
        ids = columns.features[feature.name]
        assert ids.dtype == np.int64
        assert ids.min() >= 0
        assert ids.max() < feature.vocabulary_size
    assert set(np.unique(columns.features["many"])) == set(range(7))


@pytest.mark.parametrize("exponent", [0.0, 1.0, 1.05, 2.0])
def test_frequencies_follow_the_power_law(exponent):
    size, rows = 50, 200_000
    ids = RandomIds([Feature("f", size)], 0, rows, exponent=exponent).take(np.arange(rows)).features["f"]
    counts = np.sort(np.bincount(ids, minlength=size))[::-1]
    edges = np.arange(1, size + 2, dtype=float)
    areas = np.log(edges) if exponent == 1.0 else edges ** (1 - exponent) / (1 - exponent)
    wanted = np.diff(areas) / (areas[-1] - areas[0])
    # Sorted counts of equal frequencies spread by some deviations of a binomial.
    spread = 5 * np.sqrt(wanted / rows) + 1e-4
    assert np.all(np.abs(counts / rows - wanted) < spread)


def test_the_frequent_ids_are_no_neighbours():
    ids = RandomIds([Feature("f", 1000)], 0, 10_000).take(np.arange(10_000)).features["f"]
    most = np.argsort(np.bincount(ids, minlength=1000))[-10:]
    assert np.min(np.diff(np.sort(most))) > 1


@pytest.mark.parametrize(
    "features, num_dense, num_rows",
    [([], 1, 1), ([Feature("f", 5, None)], 1, 1), (FEATURES, -1, 1), (FEATURES, 0, 0), ([Feature("f", 1 << 31)], 0, 1)],
)  # fmt: skip
def test_what_is_refused(features, num_dense, num_rows):
    with pytest.raises(ValueError, match="`features`"):
        RandomIds(features, num_dense, num_rows)
