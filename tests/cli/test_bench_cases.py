"""Suites as data, names of cases, and who fits into memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from distributed_embeddings.cli.bench.cases import Case, bytes_needed
from distributed_embeddings.cli.bench.competitors import find_peers, refusal
from distributed_embeddings.cli.bench.ops import chosen, fitting
from distributed_embeddings.cli.bench.options import OpsOptions
from distributed_embeddings.cli.bench.suites import SUITES, Entry
from distributed_embeddings.cli.main import parse

GIB = 2**30


def test_the_grid_is_the_whole_product():
    cases = [entry.case for entry in SUITES["issue"]()]
    assert len(cases) == 3 * 4 * 3 * 2 * 2 * 2 * 2
    assert {c.rows for c in cases} == {10**5, 10**6, 10**7}
    assert {c.dim for c in cases} == {16, 32, 64, 128}
    assert {c.hotness for c in cases} == {1, 10, 50}
    assert {c.tables for c in cases} == {26}


@pytest.mark.parametrize("suite", SUITES)
def test_keys_tell_cases_apart_and_ours_is_there(suite):
    entries = SUITES[suite]()
    assert len({entry.case.key for entry in entries}) == len(entries) > 0
    assert all(entry.competitors[0] == "ours" for entry in entries)


def test_key():
    assert Case(10**5, 16, 1, 4096).key == "26x1e5x16-h1-b4096-zipf1.05-adagrad-t1"
    assert Case(12345, 16, 1, 8, "uniform", "rowwise_adagrad", 2, 1, 10).key == (
        "1x12345x16-h1-b8-uniform-rowwise_adagrad-t2-s10"
    )


def test_bytes_of_tables_and_slots():
    adagrad, rowwise = Case(10**6, 16, 1, 4096), Case(10**6, 16, 1, 4096, rule="rowwise_adagrad")
    assert adagrad.table_bytes == 26 * 10**6 * 16 * 4
    # A whole second table of accumulators, against one number a row.
    assert bytes_needed(adagrad, "ours") - bytes_needed(rowwise, "ours") == 26 * 10**6 * (64 - 4)


def test_bytes_of_a_batch():
    small, large = Case(1000, 16, 1, 2048), Case(1000, 16, 1, 4096)
    # 8 prepared batches of int64, held twice; four arrays as long as the ids; three of the outputs' size.
    added = 26 * 2048 * (2 * 8 * 8 + 4 * 8 + 3 * 64)
    assert bytes_needed(large, "fbgemm") - bytes_needed(small, "fbgemm") == added
    assert bytes_needed(large, "plain_tf") - bytes_needed(large, "ours") == 3 * 26 * 4096 * 64


def test_a_case_runs_only_when_both_fit():
    entry = Entry(Case(10**6, 32, 10, 4096), ("ours", "fbgemm"))
    needs = bytes_needed(entry.case, "ours") + bytes_needed(entry.case, "fbgemm")
    assert fitting(entry, needs, True) == (["ours", "fbgemm"], {})
    names, skipped = fitting(entry, needs - 1, True)
    assert names == []
    assert skipped["fbgemm"].startswith("does not fit: ")
    assert "fbgemm does not fit" in skipped["ours"]


def test_later_competitors_give_way():
    entry = Entry(Case(1000, 16, 1, 256), ("ours", "fbgemm", "plain_tf"))
    two = bytes_needed(entry.case, "ours") + bytes_needed(entry.case, "fbgemm")
    names, skipped = fitting(entry, two + GIB // 4, True)
    assert names == ["ours", "fbgemm"]
    assert list(skipped) == ["plain_tf"]


def test_the_limit_gives_way_to_all():
    case = Case(1000, 16, 1, 256)
    needs = bytes_needed(case, "ours")
    assert bytes_needed(case, "limit") > 4 * GIB
    for order in (("ours", "limit", "plain_tf"), ("limit", "ours", "plain_tf")):
        names, skipped = fitting(Entry(case, order), 2 * needs + 4 * GIB, True)
        assert names == ["ours", "plain_tf"]
        assert list(skipped) == ["limit"]


def test_without_peers_the_others_run():
    names, skipped = fitting(Entry(Case(1000, 16, 1, 256), ("ours", "fbgemm", "plain_tf")), 9 * GIB, False)
    assert names == ["ours", "plain_tf"]
    assert skipped == {"fbgemm": "no environment of the peers"}


def test_who_has_no_rowwise_adagrad():
    case = Case(1000, 16, 1, 256, rule="rowwise_adagrad")
    assert [n for n in ("ours", "fbgemm", "plain_tf", "keras", "embedding_bag") if refusal(n, case)] == [
        "keras",
        "embedding_bag",
    ]
    assert refusal("keras", Case(10**7, 16, 1, 4096)) is not None
    assert refusal("keras", Case(10**7, 16, 1, 4096, tables=1)) is None


def test_filter_and_competitors():
    options = OpsOptions(
        suite="issue", filter="^26x1e5x16-h1-.*-adagrad-t2(-s4)?$", competitors=("ours", "plain_tf")
    )
    entries = chosen(options)
    assert len(entries) == 4
    assert {entry.competitors for entry in entries} == {("ours", "plain_tf")}
    with pytest.raises(ValueError, match=r"`--competitors` must be of .*: --competitors theirs"):
        chosen(OpsOptions(competitors=("theirs",)))


def test_a_filter_that_leaves_nothing_is_an_error():
    with pytest.raises(
        ValueError, match=r"`--filter` must match a case of suite one, such as 4x1e3x16-.*: --filter 'zz'"
    ):
        chosen(OpsOptions(suite="one", filter="zz"))


def test_command_line(tmp_path):
    options = parse(["bench", "ops", "--suite", "one", "--resume", "--out", str(tmp_path)])
    assert options.bench == OpsOptions(suite="one", resume=True, out=tmp_path)


def test_a_named_python_must_be_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_peers(None) is None
    with pytest.raises(FileNotFoundError, match=r"`--peers` must be .* Received: no/python"):
        find_peers(Path("no/python"))
