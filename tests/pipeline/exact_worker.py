"""One worker of the suite: `exact_worker.py SET OUT [FILTER]`. Rank 0 writes {case: error or ""} as JSON."""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import keras
import numpy as np
import tensorflow as tf
from pipeline_cases import SETS, Batches, Case, RandomSleeps, loss_fn, make_model, state_of

import distributed_embeddings.dist_model_parallel as dmp
from distributed.gathering import gather_text
from distributed_embeddings.pipeline import EmbeddingPipeline
from distributed_embeddings.pipeline.choice import SplitChoice
from distributed_embeddings.pipeline.dataset import PipelineDataset

Trained = tuple[list[float], dict[str, np.ndarray]]


class RandomVotes(SplitChoice):
    """Ranks that want now this, now that."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._rng = np.random.default_rng(seed)

    def wants_whole(self, batch: int) -> bool:
        return bool(self._rng.random() < 0.6)


def train(case: Case, rank: int, size: int, staleness: Any, seed: int, votes: bool = False) -> Trained:
    """Two passes over the data; losses and everything that was learnt. votes: whether steps split is drawn by lot."""
    model, optimizer = make_model(case, size)
    data = Batches(case, rank, size)
    sleeps = RandomSleeps(seed * 97 + rank)
    pipe = EmbeddingPipeline(model, loss_fn, optimizer, data, staleness, observer=sleeps)
    pipe.graphs.choice = RandomVotes(seed * 89 + rank) if votes else None
    dmp.broadcast_variables(model.variables)
    losses = [float(done.result) for _ in range(2) for done in pipe if done.real]
    peak = pipe.graphs.stream.manager
    depth = pipe.graphs.staleness.depth
    if peak.peak_entries > depth + 2 or len(peak) or peak.nbytes:
        raise AssertionError(
            f"{peak.peak_entries} batches at once, {len(peak)} left, {peak.nbytes} bytes left"
        )
    return losses, state_of(model, optimizer)


def emulate(case: Case, rank: int, size: int, lag: int) -> Trained:
    """What `lag` means, one thing after the other: batch t is looked up when all updates but the last `lag` are in."""
    model, optimizer = make_model(case, size)
    data = Batches(case, rank, size)
    graphs = EmbeddingPipeline(model, loss_fn, optimizer, data, lag).graphs
    dmp.broadcast_variables(model.variables)
    losses: list[float] = []
    for _ in range(2):
        losses += emulate_pass(graphs, data, lag)
    return losses, state_of(model, optimizer)


def emulate_pass(graphs: Any, data: Batches, lag: int) -> list[float]:
    embedding, main = graphs.embedding, graphs.main
    source = PipelineDataset(
        data,
        lambda e: [graphs.parts(e)[i] for i in graphs.embedding_inputs],
        lambda e: [graphs.parts(e)[i] for i in main.inputs],
        graphs.empty,
    )
    owed: list[list[Any]] = []
    losses, batch, more = [], 0, True
    while more:
        if len(owed) > lag:
            embedding.update(*owed.pop(0))
        sample = source.next_embedding()
        plan = list(embedding.plan(tf.constant(not sample.last), tf.constant(False), *sample.part))
        more = embedding.more(plan)
        weight, *vectors = embedding.look_up(*plan)
        graphs.vectors.put([tf.constant(batch, tf.int64), weight, *vectors])
        _, loss = main(source.next_main().part)
        _, rate, step, finite, scale, *upstream = graphs.gradients.take()
        if not bool(finite):
            raise AssertionError("the emulator knows no loss scaling")
        owed.append([*plan, rate, step, scale, *upstream])
        if sample.real:
            losses.append(float(loss))
        batch += 1
    for arguments in owed:
        embedding.update(*arguments)
    return losses


def difference(got: Trained, want: Trained, what: str) -> str:
    """Where two trainings differ in a bit; "" where they do not."""
    if np.array(got[0]).tobytes() != np.array(want[0]).tobytes():  # losses of empty batches are NaN
        return f"{what}: losses {got[0]}, expected {want[0]}"
    wrong = [name for name, value in want[1].items() if got[1][name].tobytes() != value.tobytes()]
    return f"{what}: {wrong} differ" if wrong or set(got[1]) != set(want[1]) else ""


def run_case(case: Case, rank: int, size: int) -> str:
    waiting = train(case, rank, size, 0, 1)
    votes = case.loss_scale or zlib.crc32(case.name.encode()) % 2 == 0
    exact = train(case, rank, size, "exact", 2, votes)
    found = [difference(exact, waiting, f"exact against 0, steps {'split by lot' if votes else 'all split'}")]
    if not case.loss_scale:
        found.append(difference(emulate(case, rank, size, 0), waiting, "0 against the emulator"))
        lag = 1 + len(case.name) % 3
        lagging = train(case, rank, size, lag, 3)
        found.append(difference(emulate(case, rank, size, lag), lagging, f"{lag} against the emulator"))
        if case.regime == "tiny" and not difference(lagging, waiting, "lag"):
            found.append(f"{lag} must differ from 0 where rows conflict")
    return "\n".join(f for f in found if f)


def main() -> None:
    set_name, out = sys.argv[1:3]
    only = sys.argv[3] if len(sys.argv) > 3 else ""
    communicator = dmp.init()
    results, seconds = {}, {}
    for case in SETS[set_name]():
        if only not in case.name:
            continue
        began = time.monotonic()
        error = run_case(case, communicator.rank, communicator.size)
        texts = gather_text(communicator, error and f"rank {communicator.rank}: {error}"[:3000])
        results[case.name] = "\n".join(t for t in texts if t)
        seconds[case.name] = round(time.monotonic() - began, 2)
        if communicator.rank == 0:  # after every case: a hang later leaves what is known
            Path(out).write_text(json.dumps({"results": results, "seconds": seconds}))
        keras.backend.clear_session(free_memory=False)
    dmp.shutdown()


if __name__ == "__main__":
    main()
