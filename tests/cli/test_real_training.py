"""Real data on two workers: the AUC that one-process Keras reaches."""

import pytest
from demb_commands import real_data, train


def test_criteo_with_defaults(tmp_path):
    data = real_data("criteo_kaggle_8k")
    arguments = ("--data", f"{data}/train.tsv", "--valid", f"{data}/{{dev,test}}.tsv", "--workers", "2")
    result, _ = train(tmp_path, *arguments, timeout=280)
    assert result["valid_samples"] == 800
    assert result["auc"] >= 0.70


@pytest.mark.slow
def test_criteo_does_not_depend_on_the_number_of_workers(tmp_path):
    data = real_data("criteo_kaggle_8k")
    arguments = ("--data", f"{data}/train.tsv", "--valid", f"{data}/{{dev,test}}.tsv")
    found = {n: train(tmp_path, *arguments, "--workers", str(n), timeout=280)[0]["auc"] for n in (1, 2, 4)}
    assert max(found.values()) - min(found.values()) <= 0.002, found


@pytest.mark.slow
def test_frappe(tmp_path):
    data = real_data("frappe")
    result, _ = train(
        tmp_path, "--format", "libfm", "--data", f"{data}/frappe.validation.libfm",
        "--valid", f"{data}/frappe.test.libfm", "--workers", "2", timeout=280,
    )  # fmt: skip
    assert result["auc"] >= 0.928


@pytest.mark.slow
def test_movielens_with_ragged_genres(tmp_path):
    data = real_data("ml-100k")
    result, _ = train(tmp_path, "--format", "movielens", "--data", str(data), "--workers", "2", timeout=280)
    assert result["auc"] >= 0.775


@pytest.mark.slow
def test_weighted_bags_learn_something(tmp_path):
    data = real_data("lastfm_hetrec")
    result, _ = train(
        tmp_path, "--format", "weighted", "--data", f"{data}/user_artists.dat", "--workers", "2", timeout=280
    )
    assert result["auc"] >= 0.85
