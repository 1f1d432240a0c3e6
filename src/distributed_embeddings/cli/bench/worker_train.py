"""A worker of `demb bench train`: `python -m distributed_embeddings.cli.bench.worker_train ours|keras`.

Alone, or as one of several started by `demb launch`: rank 0 is asked over stdin and tells the others.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from distributed_embeddings import comm

from .peers.protocol import Answer, memory, serve
from .phases import Sections, profiled
from .train_models import Job, Tensors, make_job


def main() -> None:
    system = sys.argv[1]
    communicator = comm.current()
    if communicator.rank == 0:
        serve(lambda case: _lead(case, system, communicator))
        _tell(communicator, b"")
    else:
        _follow(system, communicator)


def _lead(case: dict[str, Any], system: str, communicator: Any) -> tuple[dict[str, Any], Answer]:
    """Rank 0: every request goes to the other ranks first, then all of them work on it."""
    _tell(communicator, json.dumps(case).encode())
    said, answer = start(case, system)

    def told(request: dict[str, Any]) -> dict[str, Any]:
        _tell(communicator, json.dumps(request).encode())
        return answer(request)

    return said, told


def _follow(system: str, communicator: Any) -> None:
    os.dup2(2, 1)  # the output belongs to rank 0's answers
    answer: Answer | None = None
    while request := _tell(communicator, None):
        if answer is None:
            _, answer = start(json.loads(request), system)
        else:
            answer(json.loads(request))


def _tell(communicator: Any, message: bytes | None) -> bytes:
    """Rank 0's message on every rank; empty at the end. Collective."""
    length = tf.constant([0 if message is None else len(message)], tf.int64)
    size = int(communicator.broadcast(length, phase="request's length").numpy()[0])
    text = np.zeros(size, np.uint8) if message is None else np.frombuffer(message, np.uint8)
    if not size:
        return b""
    return bytes(communicator.broadcast(tf.constant(text), phase="request").numpy())


def start(case: dict[str, Any], system: str) -> tuple[dict[str, Any], Answer]:
    """Build the case's model; answers runs of "step", memory and {"profile": steps}. Collective."""
    before, began = memory()["resident"], time.perf_counter()
    sections = Sections()
    job = make_job(case, system, sections.mark)
    built = time.perf_counter() - began
    step = make_step(job, sections)
    said: dict[str, Any] = {
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "checksum": job.checksum,
        "build_seconds": round(built, 1),
        "resident_before": gathered(before),
        "resident_built": gathered(memory()["resident"]),
        "batch_bytes": gathered(_bytes_of(job.batches)),
    }
    if job.plan is not None:
        said["plan_bytes"] = [job.plan.memory_bytes(rank) for rank in range(comm.size())]
        said["plan"] = str(job.plan).splitlines()
    return said, _answers(job, step, sections)


def make_step(job: Job, sections: Sections) -> Any:
    """One training step of the mean binary cross entropy; sections are marked while it is traced."""

    @tf.function
    def step(features: Any, labels: Any) -> Any:
        sections.mark("dense forward")
        with tf.GradientTape() as tape:
            logits = job.model(features, training=True)
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))
        sections.mark("backward")
        variables = job.model.trainable_variables
        gradients = tape.gradient(loss, variables)
        sections.mark("update")
        job.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        sections.end()
        return loss

    return step


def _answers(job: Job, step: Any, sections: Sections) -> Answer:
    state = {"next": 0}

    def one() -> float:
        batch = job.batches[state["next"] % len(job.batches)]
        state["next"] += 1
        begin = time.perf_counter()
        float(step(*batch))  # waits for the step's end
        return time.perf_counter() - begin

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if "memory" in request:
            now = memory(reset=request["memory"] == "reset")
            return {name: gathered(value) for name, value in now.items()}
        if "profile" in request:
            return profiled(one, int(request["profile"]), sections)
        return {"seconds": [one() for _ in range(int(request.get("count", 1)))]}

    return answer


def _bytes_of(batches: Tensors) -> int:
    tensors = [t for inputs, labels in batches for t in (*inputs.values(), labels)]
    return sum(int(tf.size(t)) * t.dtype.size for t in tensors)


def gathered(value: int) -> list[int]:
    """Every rank's number. Collective."""
    values, _ = comm.current().all_gather(tf.constant([value], tf.int64), phase="benchmark's numbers")
    return [int(v) for v in values.numpy()]


if __name__ == "__main__":
    main()
