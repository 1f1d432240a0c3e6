"""Competitors' processes and their turns."""

from __future__ import annotations

import sys

import pytest

from distributed_embeddings.cli.bench import process
from distributed_embeddings.cli.bench.interleave import interleave, steps_in_turn
from distributed_embeddings.cli.bench.process import Worker, WorkerError

PEER = """
import sys
from distributed_embeddings.cli.bench.peers.protocol import answer_runs, serve
def start(case):
    print("chatter", flush=True)
    seen = []
    def step(batch):
        seen.append(batch)
        sys.stderr.write(f"batches {seen}\\n")
    def fail(batch):
        sys.stderr.write("told on stderr\\n")
        raise RuntimeError("no such thing")
    return {"case": case["name"]}, answer_runs({"step": step, "fail": fail, "end": lambda _: sys.exit(3)}, 3, 2)
serve(start)
"""


def test_turns_alternate_and_warm_steps_are_dropped():
    calls = []

    def run_of(name):
        def run(phase, count):
            calls.append((name, phase, count))
            return [0.4, *[0.1] * (count - 1)]

        return run

    turns, complete = interleave(
        {"a": run_of("a"), "b": run_of("b")}, {"a": ("x", "y"), "b": ("z",)}, 3, 60.0
    )
    each = [("a", "x"), ("a", "y"), ("b", "z")]
    learning = [(n, p, count) for n, p in each for count in (1, 2)]
    assert calls == learning + [(n, p, 3) for n, p in each] * 3
    assert complete
    assert turns["a"]["x"] == [[0.1, 0.1]] * 3


def test_time_ends_rounds_but_one_is_whole():
    turns, complete = interleave({"a": lambda phase, count: [1.0] * count}, {"a": ("x",)}, 5, 0.0)
    assert (turns, complete) == ({"a": {"x": [[1.0]]}}, False)


def test_steps_in_a_turn():
    assert steps_in_turn(2.0) == (1, 0)
    assert steps_in_turn(0.02) == (10, 1)
    assert steps_in_turn(1e-9) == (50, 1)


def test_a_worker_answers_and_what_it_prints_is_no_answer():
    with Worker("peer", [sys.executable, "-c", PEER]) as worker:
        with pytest.raises(WorkerError, match="`start` must be asked first. Received: {'run': 'step'}"):
            worker.ask({"run": "step"})
        assert worker.ask({"start": {"name": "A"}}) == {"case": "A"}
        assert all(s > 0 for s in worker.ask({"run": "step", "count": 3})["seconds"])
        assert worker.ask({"memory": "reset"})["resident"] > 2**20
        # A call is two steps, of three prepared batches.
        with pytest.raises(
            WorkerError,
            match=r"(?s)peer failed: RuntimeError: no such thing.*batches \[0, 2, 1\].*told on stderr",
        ):
            worker.ask({"run": "fail"})
        assert len(worker.ask({"run": "step"})["seconds"]) == 1


def test_a_worker_takes_case_after_case():
    with Worker("peer", [sys.executable, "-c", PEER]) as worker:
        assert worker.ask({"start": {"name": "A"}}) == {"case": "A"}
        assert worker.ask({"start": {"name": "B"}}) == {"case": "B"}
        assert worker.ask({"start": None})["resident"] > 2**20
        with pytest.raises(WorkerError, match="`start` must be asked first"):
            worker.ask({"run": "step"})


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import sys; sys.stderr.write('why\\n')", r"(?s)peer ended.*why"),
        ("import time; input(); time.sleep(60)", "peer gave no answer in 1 s"),
        ("input(); print('hello')", "peer answered no JSON: 'hello"),
    ],
)
def test_a_worker_that_does_not_answer(code, message, monkeypatch):
    monkeypatch.setattr(process, "_GRACE", 1.0)
    with Worker("peer", [sys.executable, "-c", code]) as worker, pytest.raises(WorkerError, match=message):
        if "why" in code:
            worker._process.wait(10)
        worker.ask({}, timeout=1)


def test_variables_are_set_and_taken_away(monkeypatch):
    monkeypatch.setenv("DEMB_KERNELS", "off")
    code = "import json, os; input(); print(json.dumps({k: os.environ.get(k) for k in ('DEMB_KERNELS', 'OTHER')}))"
    with Worker("peer", [sys.executable, "-c", code], {"DEMB_KERNELS": None, "OTHER": "1"}) as worker:
        assert worker.ask({}) == {"DEMB_KERNELS": None, "OTHER": "1"}
