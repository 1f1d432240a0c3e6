"""`demb bench train` without peers: what it measures, and the arithmetic of its report."""

import json
import subprocess
import sys

import pytest

from distributed_embeddings.cli.bench.peers import made_clicks
from distributed_embeddings.cli.bench.phases import Sections
from distributed_embeddings.cli.bench.train_cases import TrainCase, make_cases, refusal
from distributed_embeddings.cli.bench.train_report import case_lines, memory_table, ratio_of
from distributed_embeddings.layers import DistributedEmbedding, Embedding

DATA = {"tables": 3, "rows": 100, "distribution": "zipf1.05", "numbers": 2}


def bench(*arguments):
    command = [sys.executable, "-m", "distributed_embeddings.cli.main", "bench", "train", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("workers, systems", [(1, ["ours", "keras"]), (2, ["ours"])])
def test_a_short_run_reports_speed_phases_and_memory(tmp_path, workers, systems):
    said = bench(
        "--workers", str(workers), "--batch", "128", "--repeats", "1", "--competitors", *systems,
        "--out", str(tmp_path), "--name", "short",
    )  # fmt: skip
    result = json.loads((tmp_path / "short.json").read_text())["results"][0]
    assert list(result["competitors"]) == systems
    assert all(len(c["turns"]) == 1 and min(c["turns"][0]) > 0 for c in result["competitors"].values())
    ours = result["competitors"]["ours"]
    # 26 tables of 100,000 × 16 floats with an accumulator each, over the workers.
    assert sum(ours["info"]["plan_bytes"]) == 26 * 100_000 * 16 * 8
    assert len(ours["memory"]["peak"]) == workers
    phases = {"lookup", "dense forward", "dense backward", "update"}
    assert phases <= set(ours["profile"]["phases"])
    exchanged = [name for name in ours["profile"]["phases"] if name.startswith("exchange")]
    assert len(exchanged) == (3 if workers == 2 else 0)
    text = (tmp_path / "short.md").read_text()
    assert f"dlrm-{workers}x{128 // workers}" in text
    assert "Phases of ours" in said


def test_workers_get_the_parts_of_one_global_batch():
    parts = [made_clicks.worker_batches({**DATA, "batch": 4, "workers": 2}, rank) for rank in (0, 1)]
    (whole,) = [made_clicks.worker_batches({**DATA, "batch": 8, "workers": 1}, 0)]
    for number, (dense, ids, labels) in enumerate(whole):
        halves = [part[number] for part in parts]
        assert dense.tolist() == [*halves[0][0].tolist(), *halves[1][0].tolist()]
        assert labels.tolist() == [*halves[0][2].tolist(), *halves[1][2].tolist()]
        for table in range(3):
            assert ids[table].tolist() == [*halves[0][1][table].tolist(), *halves[1][1][table].tolist()]


def test_cases_share_batch_and_cores():
    both = make_cases("dlrm", None, None)
    assert [(c.workers, c.batch) for c in both] == [(2, 2048), (1, 4096)]
    assert all(c.threads >= 1 for c in both)
    (tiny,) = make_cases("tiny", None, None)
    assert (tiny.workers, tiny.samples) == (2, 65536)
    assert TrainCase.from_dict(json.loads(json.dumps(tiny.to_dict()))) == tiny
    with pytest.raises(ValueError, match="--batch"):
        make_cases("dlrm", 3, 4096)


def test_who_does_not_compete_is_told_why():
    two, one = make_cases("dlrm", None, None)
    (tiny,) = make_cases("tiny", None, None)
    assert refusal("keras", two, None) == "plain Keras is one process"
    assert refusal("keras", one, None) is None
    assert refusal("torchrec", two, None) == "no environment of the peers"
    assert refusal("keras", tiny, None) == "competes in dlrm only"


def test_ratio_is_of_samples_and_the_report_shows_the_aim():
    case = make_cases("dlrm", 1, 1000)[0]
    turns = {"ours": [[0.01, 0.01], [0.02]], "keras": [[0.04], [0.06]]}
    result = {
        "case": case.to_dict(),
        "load_before": {"load_1min": 0.0},
        "skipped": {"torchrec": "no environment of the peers"},
        "competitors": {name: {"info": {}, "turns": t} for name, t in turns.items()},
    }
    found = ratio_of(result, "keras")
    assert (found.value, found.low, found.high) == pytest.approx((0.05 / 0.015, 3.0, 4.0))
    text = "\n".join(case_lines(result))
    assert "66,667" in text  # 1,000 samples in 15 ms
    assert "3.33 [3.00–4.00] | 3.5 |" in text


def test_memory_is_compared_with_the_plan():
    mib = 2**20
    info = {"plan_bytes": 100, "resident_before": 500, "batch_bytes": 20, "resident_built": 630}
    ours = {"info": {k: [v * mib] for k, v in info.items()}, "memory": {"peak": [700 * mib]}}
    assert memory_table(ours)[-1] == "| 0 | 100 | 500 | 20 | 630 | 110 | 700 | 70 | 1.100 |"


def test_plan_counts_the_accumulators():
    from distributed_embeddings.cli.bench.train_models import with_slots

    plan = DistributedEmbedding([Embedding(50, 4, name="a"), Embedding(7, 8, name="b")]).plan
    assert plan.memory_bytes(0) == 4 * (50 * 4 + 7 * 8)
    assert with_slots(plan).memory_bytes(0) == 8 * (50 * 4 + 7 * 8)


def test_operations_belong_to_phases_by_section_and_name():
    sections = Sections()
    sections.of_operation = {
        "Gather_1": "lookup",
        "PyFunc": "lookup",
        "gradient_tape/dlrm/top_1/top_0/MatMul": "backward",
        "gradient_tape/dlrm/embeddings_1/concat": "backward",
        "PyFunc_1": "backward",
        "PyFunc_2": "update",
        "AssignAdd": "update",
    }
    wanted = {
        ("Gather_1", "ResourceGather"): "lookup",
        ("PyFunc", "PyFunc"): "exchange of ids and vectors",
        ("gradient_tape/dlrm/top_1/top_0/MatMul", "MatMul"): "dense backward",
        ("gradient_tape/dlrm/embeddings_1/concat", "ConcatV2"): "lookup backward",
        ("PyFunc_1", "PyFunc"): "exchange of vector gradients",
        ("PyFunc_2", "PyFunc"): "exchange of dense gradients",
        ("AssignAdd", "AssignAddVariableOp"): "update",
        ("made_by_grappler", "Const"): "other operations",
    }
    assert {key: sections.phase(*key) for key in wanted} == wanted
