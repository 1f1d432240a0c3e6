"""The machine's limit as a competitor: which rows it takes, and what is told where nothing can measure it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf
from demb_commands import demb

from distributed_embeddings.cli.bench import worker_limit
from distributed_embeddings.cli.bench.cases import Case
from distributed_embeddings.cli.bench.ops import _measure
from distributed_embeddings.cli.bench.options import OpsOptions
from distributed_embeddings.cli.bench.process import WorkerError
from distributed_embeddings.ops import kernels
from distributed_embeddings.ops.table_resource import TableResource

needs_kernels = pytest.mark.skipif(not kernels.available(), reason="the kernels are not built")


def test_rows_lie_on_whole_lines():
    assert [worker_limit.whole_lines(n) for n in (4, 64, 68, 512)] == [64, 64, 128, 512]


@pytest.mark.parametrize(("num_rows", "count"), [(10, 10), (1000, 300), (2**26, 2**12)])
def test_rows_are_different_and_in_no_order(num_rows, count):
    rows = worker_limit.random_rows(num_rows, count, np.random.default_rng(1))
    assert len(set(rows)) == count
    assert 0 <= rows.min() <= rows.max() < num_rows
    assert (np.diff(rows) < 0).any()


@needs_kernels
@pytest.mark.filterwarnings("ignore:distributed_embeddings runs WITHOUT its C:RuntimeWarning")
def test_the_operation_reads_and_changes_rows_of_any_size():
    table = TableResource(shape=(8, 16), dtype="float32", trainable=False, name="limit", fill=1.0)
    run = kernels.library().demb_random_rows
    # Rows of 128 bytes: two of the table's.
    assert float(run(table.handle, [1, 3], row_bytes=128, modify=True)) == 0.0
    assert float(run(table.handle, [0, 1], row_bytes=128, modify=False)) == 32.0 + 64.0
    np.testing.assert_array_equal(np.asarray(table)[:, 0], [1, 1, 2, 2, 1, 1, 2, 2])
    for modify in (False, True):
        with pytest.raises(Exception, match=r"`rows` must lie in \[0, 4\), the table's rows of 128 bytes"):
            run(table.handle, [1, 4], row_bytes=128, modify=modify)
    for modify in (False, True):
        with pytest.raises(Exception, match=r"`rows` must lie in \[0, 0\)"):
            run(table.handle, [0] * 9, row_bytes=2**46, modify=modify)
        with pytest.raises(Exception, match="a variable must hold numbers. Received: dtype string"):
            run(tf.Variable(["x" * 1000] * 3).handle, [0, 1, 2, 20], row_bytes=64, modify=modify)
    with pytest.raises(
        Exception, match="`row_bytes` must be a positive multiple of 64. Received: row_bytes=68"
    ):
        run(table.handle, [1], row_bytes=68, modify=False)


@pytest.mark.parametrize(("count", "row_bytes"), [(3072, 64), (106496, 68), (2**20, 512)])
def test_no_row_comes_again_before_caches_are_full_of_others(count, row_bytes):
    assert worker_limit._pool(count, row_bytes) * count * worker_limit.whole_lines(row_bytes) >= 2**30


@needs_kernels
@pytest.mark.filterwarnings("ignore:distributed_embeddings runs WITHOUT its C:RuntimeWarning")
def test_a_small_limit(monkeypatch):
    monkeypatch.setattr(worker_limit, "LIMIT_TABLE", 2**22)
    monkeypatch.setattr(worker_limit, "_TOUCHED", 2**15)
    monkeypatch.setattr(worker_limit, "use_threads", lambda threads: None)
    said, answer = worker_limit.start(Case(1000, 16, 2, 8, tables=3).to_dict())
    assert said == {"count": 3 * 8 * 2}
    for phase in ("gather", "modify"):
        assert all(s > 0 for s in answer({"run": phase, "count": 6})["seconds"])


def test_a_limit_that_dies_takes_nobody_with_it():
    class Mate:
        def __init__(self, dies):
            self.dies = dies

        def ask(self, request, timeout=None):
            if self.dies:
                raise WorkerError("the machine's limit ended without an answer")
            return {"seconds": [1.0] * int(request.get("count", 1)), "resident": 1, "peak": 1}

    class Mates(dict):
        def drop(self, name):
            del self[name]

    result = {
        "case_key": "a", "skipped": {},
        "competitors": {"ours": {"steps": 0, "info": {}}, "limit": {"steps": 0, "info": {}}},
    }  # fmt: skip
    crew = Mates(ours=Mate(False), limit=Mate(True))
    _measure(crew, Case(1000, 16, 2, 8), OpsOptions(repeats=2), result)
    assert set(crew) == set(result["competitors"]) == {"ours"}
    assert result["competitors"]["ours"]["turns"]["both"] == [[1.0], [1.0]]
    assert result["skipped"] == {"limit": "not measured: the machine's limit ended without an answer"}
    crew["ours"].dies = True
    _measure(crew, Case(1000, 16, 2, 8), OpsOptions(repeats=2), result)
    assert result["skipped"]["all"].startswith("failed: ")
    assert "turns" not in result["competitors"]["ours"]


def test_without_kernels_it_is_left_out_and_said(tmp_path, monkeypatch):
    monkeypatch.setenv("DEMB_KERNELS", "off")
    with pytest.raises(NotImplementedError, match="without the kernels that measure"):
        worker_limit.start(Case(1000, 16, 2, 8).to_dict())


@pytest.mark.slow  # 4 GiB
@needs_kernels
def test_limit_of_this_machine(tmp_path):
    done = demb(
        tmp_path, "bench", "ops", "--suite", "one", "--repeats", "2", "--competitors", "ours", "limit",
        "--out", ".", "--name", "tiny",
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    (result,) = json.loads((tmp_path / "tiny.json").read_text())["results"]
    turns = result["competitors"]["limit"]["turns"]
    count = result["competitors"]["limit"]["info"]["count"]
    assert count == 4 * 256 * 3
    # Bounds of any machine, so wide that only a wrong unit crosses them.
    for phase, size in (("gather", 64), ("modify", 128)):
        assert all(0.001e9 < count * size / s < 500e9 for turn in turns[phase] for s in turn)
