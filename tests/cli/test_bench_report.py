"""The arithmetic of reports, on made results."""

from __future__ import annotations

import pytest

from distributed_embeddings.cli.bench.cases import Case
from distributed_embeddings.cli.bench.markdown import milliseconds, table
from distributed_embeddings.cli.bench.ops_report import (
    left_out,
    noise,
    report_lines,
    row_lines,
    shares,
    totals,
)
from distributed_embeddings.cli.bench.stats import geometric_mean, ratio, summarise

ENVIRONMENT = {
    "date": "2026-11-29T12:00:00+00:00",
    "commit": "0123456789ab",
    "machine": {
        "cpu": "A processor", "cores": 2, "instructions": ["avx2"], "caches": {"L1d": "32K"},
        "memory_bytes": 24 * 2**30, "transparent_hugepage": "madvise", "hugepage_defrag": "madvise", "kernel": "6.1",
    },
    "versions": {"python": "3.11"},
    "load_before": {"load_1min": 2.0, "load_5min": 1.0, "steal": 0.001},
}  # fmt: skip


def result(case, seconds, skipped=None, unique_rows=100):
    """seconds[competitor]: of each round, one step a turn; a lookup takes half of them."""
    return {
        "case": case.to_dict(), "case_key": case.key, "commit": "0123456789ab",
        "load_before": {"load_1min": 0.1}, "skipped": skipped or {}, "all_rounds": True,
        "competitors": {
            n: {
                "info": {"checksum": 1, "unique_rows": unique_rows}, "steps": 9,
                "turns": {"lookup": [[s / 2] for s in each], "both": [[s] for s in each]},
                "memory_before": {"resident": 50 * 2**20, "peak": 50 * 2**20},
                "memory_after": {"resident": 51 * 2**20, "peak": 53 * 2**20},
            }
            for n, each in seconds.items()
        },
    }  # fmt: skip


def report(results):
    settings = {"suite": "quick", "repeats": 3, "max_seconds": 60.0}
    return {**ENVIRONMENT, "settings": settings, "results": results}


def test_summary_is_the_median_of_turns():
    summary = summarise([[1.0, 9.0, 2.0], [4.0, 4.0], [8.0, 0.5, 8.0]])
    assert (summary.median, summary.minimum, summary.rounds) == (4.0, 0.5, 3)
    with pytest.raises(ValueError, match="at least one step"):
        summarise([[1.0], []])


def test_ratio_of_medians_with_paired_extremes():
    found = ratio([[2.0], [6.0], [4.0]], [[1.0], [2.0], [4.0]])
    assert (found.value, found.low, found.high) == (4.0 / 2.0, 1.0, 3.0)
    assert found.text() == "2.00 [1.00–3.00]"
    with pytest.raises(ValueError, match="same rounds"):
        ratio([[1.0]], [[1.0], [2.0]])


def test_geometric_mean():
    assert geometric_mean([1.0, 8.0, 8.0]) == pytest.approx(4.0)
    for bad in ([], [1.0, 0.0]):
        with pytest.raises(ValueError, match="positive"):
            geometric_mean(bad)


def test_totals_by_threads_and_rule():
    one = result(Case(1000, 16, 1, 256), {"ours": [1.0, 1.0], "fbgemm": [2.0, 2.0]})
    other = result(Case(2000, 16, 1, 256), {"ours": [1.0, 1.0], "fbgemm": [8.0, 8.0]})
    two = result(Case(1000, 16, 1, 256, threads=2), {"ours": [1.0, 2.0], "fbgemm": [3.0, 3.0]})
    fewer = result(Case(1000, 16, 1, 256, tables=4), {"ours": [1.0], "fbgemm": [99.0]})
    alone = result(Case(1000, 32, 1, 256), {"ours": [1.0]})
    found = totals([one, other, two, fewer, alone], "fbgemm")
    assert {k: sorted(r.value for r in v.values()) for k, v in found.items()} == {
        (1, "adagrad"): [2.0, 8.0],
        (1, "all"): [2.0, 8.0],
        (2, "adagrad"): [2.0],
        (2, "all"): [2.0],
    }
    text = "\n".join(report_lines(report([one, other, two, fewer, alone])))
    assert (
        "| FBGEMM CPU | 1 | adagrad | 2 | 4.00 | 2.00 [2.00–2.00] at 26x1e3x16-h1-b256-zipf1.05-adagrad-t1 | 0 |  |"
        in text
    )
    assert "| FBGEMM CPU | 1 | all | 2 | 4.00 |" in text
    assert "| 0 | ≥ 3.5, none below 1.5: met |" in text
    assert "| 0 | ≥ 6, none below 1.5: missed |" in text
    assert "NOT quiet" in text
    assert "99" in text  # not in the mean, yet in the table


def test_shares_of_the_limit():
    made = result(Case(1000, 16, 2, 256), {"ours": [2e-3]}, unique_rows=1000)
    assert shares(made, "ours") == (None, None)
    assert "Not measured." in report_lines(report([made]))
    # 1e6 rows: 64 MB gathered at 2 GB/s, 128 MB of rows and slots modified at 0.5 GB/s.
    made["competitors"]["limit"] = {
        "info": {"count": 10**6},
        "turns": {"gather": [[0.032, 9.0, 0.032]], "modify": [[0.256, 0.256, 9.0]]},
    }
    lookup, update = shares(made, "ours")
    assert lookup == pytest.approx(26 * 256 * 2 * 64 / 1e-3 / 2e9)
    assert update == pytest.approx(1000 * 128 / 1e-3 / 0.5e9)
    text = report_lines(report([made]))
    assert "| 64 | 1 | 2.00 [2.00–2.00] |  |" in text
    assert "| 128 | 1 |  | 0.50 [0.50–0.50] |" in text


def test_a_machine_that_was_not_quiet_is_told():
    quiet, loud = (result(Case(r, 16, 1, 256), {"ours": [1.0], "fbgemm": [2.0]}) for r in (1000, 2000))
    assert noise([quiet, loud]) == []
    loud["others_share"] = 0.4
    assert noise([quiet, loud])[0].startswith("1 of 2 cases were measured while other programs")
    text = "\n".join(report_lines(report([quiet, loud])))
    assert "| 26x2e3x16-h1-b256-zipf1.05-adagrad-t1, others took 40% | ours |" in text


def test_missing_kernels_are_told():
    made = result(Case(1000, 16, 1, 256), {"ours": [1.0]})
    assert "NOT built" not in "\n".join(report_lines(report([made])))
    made["competitors"]["ours"]["info"]["kernels"] = False
    assert "| ours (its kernels are NOT built) |" in "\n".join(report_lines(report([made])))


def test_time_by_rows():
    made = [
        result(Case(rows, 16, 1, 256, "spread", threads=threads), {"ours": [seconds]})
        for rows, threads, seconds in [(10**5, 1, 2.0), (10**7, 1, 3.0), (10**7, 2, 9.0)]
    ]
    lines = row_lines(made)
    assert lines[-2] == "| 26x0x16-h1-b256-spread-adagrad-t1 | 1e+07 ÷ 1e+05 | 1.50 | 1.50 |"
    assert row_lines(made[1:]) == []


def test_memory_grows_by_the_peak():
    lines = report_lines(report([result(Case(1000, 16, 1, 256), {"ours": [1.0]})]))
    assert any(line.endswith("| 50 | +3.0 | 9 |") for line in lines)


def test_what_was_left_out_is_told():
    case = Case(10**7, 128, 1, 256)
    whole = result(case, {}, {"ours": "fbgemm does not fit beside it", "fbgemm": "does not fit: 9 GiB"})
    part = result(Case(1000, 16, 1, 256), {"ours": [1.0]}, {"keras": "has no rowwise_adagrad"})
    assert left_out([whole, part, part]) == [
        f"- {case.key}: FBGEMM CPU does not fit: 9 GiB",
        "- Keras 3: has no rowwise_adagrad (2 cases)",
    ]


def test_an_empty_report_is_one():
    assert "No case of 26 tables was measured with a peer." in report_lines(report([]))


def test_table_and_milliseconds():
    assert table(["a", "b"], [[1, "x"]]) == ["| a | b |", "|---|---|", "| 1 | x |"]
    assert [milliseconds(s) for s in (1.2345, 0.0123, 0.00123)] == ["1234", "12.3", "1.23"]
