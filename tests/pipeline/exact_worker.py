"""One worker of the suite: `exact_worker.py SET OUT [PART]`. Rank 0 writes {case: error or ""} as JSON."""

from __future__ import annotations

import gc
import itertools
import json
import os
import re
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
from with_others import as_with_others

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


class Program:
    """A case's model in the two graphs of one staleness, to be trained from the same start any number of times.

    Cases that differ in their batches alone share it: building takes seconds, a training of small batches does not.
    """

    def __init__(self, case: Case, rank: int, size: int, staleness: Any, seed: int) -> None:
        self._rank, self._size = rank, size
        self.model, self.optimizer = make_model(case, size)
        data = Batches(case, rank, size)
        sleeps = RandomSleeps(seed * 97 + rank)
        self.pipe = EmbeddingPipeline(self.model, loss_fn, self.optimizer, data, staleness, observer=sleeps)
        self._votes = RandomVotes(seed * 89 + rank)
        dmp.broadcast_variables(self.model.variables)
        variables = [*self.model.variables, *self.optimizer.variables, *self.optimizer.dense_variables]
        self._start = [(v, v.numpy()) for v in variables]
        self._first = state_of(self.model, self.optimizer)

    def _restart(self) -> None:
        for variable, value in self._start:
            variable.assign(value)
        started = state_of(self.model, self.optimizer)
        wrong = [name for name, value in self._first.items() if value.tobytes() != started[name].tobytes()]
        if wrong:
            raise AssertionError(f"training must begin where it began before. Received: other {wrong}")

    def train(self, case: Case, votes: bool = False) -> Trained:
        """Two passes over the data; losses and everything that was learnt. votes: whether steps split is drawn by
        lot."""
        self._restart()
        graphs = self.pipe.graphs
        graphs.choice = self._votes if votes else None
        data = Batches(case, self._rank, self._size)
        losses: list[float] = []
        for _ in range(2):
            losses += [float(done.result) for done in self.pipe.run(data) if done.real]
            entries, depth = graphs.stream.manager, graphs.staleness.depth
            if entries.peak_entries > depth + 2 or len(entries) or entries.nbytes:
                raise AssertionError(
                    f"{entries.peak_entries} batches at once, {len(entries)} left, {entries.nbytes} bytes left"
                )
        return losses, state_of(self.model, self.optimizer)

    def emulate(self, case: Case, lag: int) -> Trained:
        """What `lag` means, one thing after the other: batch t is looked up when all updates but the last `lag` are
        in."""
        self._restart()
        data = Batches(case, self._rank, self._size)
        losses: list[float] = []
        for _ in range(2):
            losses += emulate_pass(self.pipe.graphs, data, lag)
        return losses, state_of(self.model, self.optimizer)


def train(case: Case, rank: int, size: int, staleness: Any, seed: int) -> Trained:
    return Program(case, rank, size, staleness, seed).train(case)


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


class Programs:
    """Of cases that differ in their batches alone: staleness 0, exact, and a lag."""

    def __init__(self, case: Case, rank: int, size: int) -> None:
        self.lag = 1 + zlib.crc32(case.program.encode()) % 3
        self._waiting = Program(case, rank, size, 0, 1)
        self._exact = Program(case, rank, size, "exact", 2)
        self._lagging = None if case.loss_scale else Program(case, rank, size, self.lag, 3)

    def run(self, case: Case) -> str:
        """What is wrong, or ""."""
        waiting = self._waiting.train(case)
        votes = case.loss_scale or zlib.crc32(case.name.encode()) % 2 == 0
        told = f"exact against 0, steps {'split by lot' if votes else 'all split'}"
        found = [difference(self._exact.train(case, votes), waiting, told)]
        if self._lagging is not None:
            found.append(difference(self._waiting.emulate(case, 0), waiting, "0 against the emulator"))
            lagging = self._lagging.train(case)
            emulated = self._lagging.emulate(case, self.lag)
            found.append(difference(emulated, lagging, f"{self.lag} against the emulator"))
            if case.regime == "tiny" and not difference(lagging, waiting, "lag"):
                found.append(f"{self.lag} must differ from 0 where rows conflict")
        return "\n".join(f for f in found if f)


def make_programs(case: Case, rank: int, size: int) -> list[Programs]:
    """One worker runs what several do, and what it does alone, which is another graph."""
    if size > 1:
        return [Programs(case, rank, size)]
    with as_with_others():
        exchanging = Programs(case, rank, size)
    return [exchanging, Programs(case, rank, size)]


def chosen(set_name: str, part: str) -> list[Case]:
    """The set's cases, those of one program in a row. part: "" or "1/8", the first eighth of the programs, or a piece
    of the cases' names."""
    cases = SETS[set_name]()
    if not re.fullmatch(r"\d+/\d+", part):
        cases = [case for case in cases if part in case.name]
    programs = sorted({case.program for case in cases})
    if re.fullmatch(r"\d+/\d+", part):
        nth, of = map(int, part.split("/"))
        programs = programs[nth - 1 :: of]
    wanted = {case.name: case for case in cases if case.program in programs}
    return sorted(wanted.values(), key=lambda case: case.program)


def main() -> None:
    set_name, out = sys.argv[1:3]
    communicator = dmp.init()
    results: dict[str, str] = {}
    seconds: dict[str, float] = {}
    cases = chosen(set_name, sys.argv[3] if len(sys.argv) > 3 else "")
    for _, alike in itertools.groupby(cases, key=lambda case: case.program):
        programs: list[Programs] = []
        for case in alike:
            began = time.monotonic()
            programs = programs or make_programs(case, communicator.rank, communicator.size)
            error = "\n".join(filter(None, [each.run(case) for each in programs]))
            texts = gather_text(communicator, error and f"rank {communicator.rank}: {error}"[:3000])
            results[case.name] = "\n".join(t for t in texts if t)
            seconds[case.name] = round(time.monotonic() - began, 2)
            if communicator.rank == 0:  # after every case: a hang later leaves what is known
                Path(out).write_text(json.dumps({"results": results, "seconds": seconds}))
        del programs
        keras.backend.clear_session(free_memory=False)
        gc.collect()
    dmp.shutdown()


if __name__ == "__main__":
    main()
