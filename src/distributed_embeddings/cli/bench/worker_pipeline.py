"""A worker of `demb bench pipeline`: `python -m distributed_embeddings.cli.bench.worker_pipeline CASE OUT`.

CASE: JSON of a TrainCase with "modes" ("off", "0", "1", "exact", …), "rounds", "steps" of a turn and "trace" (a
directory or null). All modes are built, then take turns; rank 0 writes what it saw to OUT.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import tensorflow as tf

from distributed_embeddings import comm
from distributed_embeddings.cli.options import staleness_of
from distributed_embeddings.pipeline import EmbeddingPipeline
from distributed_embeddings.pipeline.isolated import graphs_alone

from .exchange_time import ExchangeTime
from .train_models import Job, make_job

OFF = "off"
_SETTLING = 3  # steps of a turn that are not counted: caches are another mode's


def main() -> None:
    case, out = json.loads(sys.argv[1]), Path(sys.argv[2])
    watch = ExchangeTime()
    communicator = comm.current()
    modes = {mode: Mode(mode, case) for mode in case["modes"]}
    for mode in modes.values():
        watch.share_core(mode.name != OFF)
        mode.turn(case["steps"])
    turns: dict[str, list[list[float]]] = {name: [] for name in modes}
    shares: list[float] = []
    for _ in range(case["rounds"]):
        for name, mode in modes.items():
            watch.share_core(name != OFF)
            before = watch.seconds()
            seconds = mode.turn(case["steps"])
            turns[name].append(seconds[_SETTLING:])
            if name == OFF:
                shares.append((watch.seconds() - before) / sum(seconds))
    sync = median([median(t) for t in turns[OFF]]) * 1e3 if OFF in turns else None
    watch.share_core(True)
    result: dict[str, Any] = {"turns": turns, "exchange_share": shares, "alone": {}, "reports": {}}
    for name, mode in modes.items():
        if name != OFF:
            result["reports"][name] = mode.report(sync)
            result["alone"][name] = mode.alone(case["steps"])
            if case["trace"] is not None:
                mode.pipe.write_trace(Path(case["trace"]) / f"pipeline-{name}.json")
    for mode in modes.values():
        mode.close()
    if communicator.rank == 0:
        out.write_text(json.dumps(result))
    comm.shutdown()


class Mode:
    """One way to train the case's model."""

    def __init__(self, name: str, case: dict[str, Any]) -> None:
        self.name = name
        self._job = make_job(case, "ours", lambda _: None)
        self.pipe: Any = None
        if name == OFF:
            step = tf.function(make_step(self._job))
            self._steps: Iterator[Any] = (step(*batch) for batch in endless(self._job))
        else:
            source = Endless(self._job)
            self.pipe = EmbeddingPipeline(
                self._job.model,
                None,
                self._job.optimizer,
                source,
                staleness_of(name),
                step=make_step(self._job),
            )
            self._steps = (done.result for done in self.pipe)

    def turn(self, steps: int) -> list[float]:
        """Seconds of each of some steps."""
        seconds = []
        for _ in range(steps):
            begin = time.perf_counter()
            float(next(self._steps))  # waits for the step's end
            seconds.append(time.perf_counter() - begin)
        return seconds

    def report(self, unpipelined_ms: float | None) -> dict[str, Any]:
        report = self.pipe.report(unpipelined_ms)
        return {**vars(report), "text": str(report)}

    def alone(self, steps: int) -> dict[str, float]:
        """Milliseconds of each graph when the other stands still. Collective."""
        self.pipe.close()
        return graphs_alone(self.pipe.graphs, Endless(self._job), steps)

    def close(self) -> None:
        if self.pipe is not None:
            self.pipe.close()


class Endless:
    """The job's prepared batches, over and over."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.element_spec = tf.nest.map_structure(tf.type_spec_from_value, job.batches[0])

    def __iter__(self) -> Iterator[Any]:
        return endless(self._job)


def endless(job: Job) -> Iterator[Any]:
    while True:
        yield from job.batches


def make_step(job: Job) -> Any:
    """One training step of the mean binary cross entropy."""

    def step(features: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = job.model(features, training=True)
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))
        variables = job.model.trainable_variables
        job.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    return step


if __name__ == "__main__":
    main()
