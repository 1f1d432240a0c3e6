"""One worker of the faults' suite: `failing_worker.py OUT RANKS MODE…`, RANKS as in `faults.faults`.

In every stage of both graphs, on the first or the last rank, something goes wrong once; all ranks must say so soon,
refuse their tables, and be able to begin anew.

Rank 0 writes {fault: error or ""} as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import keras
from faults import STEPS, faults
from pipeline_cases import Batches, Case, loss_fn, make_model
from with_others import as_with_others

import distributed_embeddings.dist_model_parallel as dmp
from distributed.gathering import gather_text
from distributed_embeddings.pipeline import DirtyTablesError, EmbeddingPipeline
from distributed_embeddings.pipeline.staleness import parse

CASE = Case("row_cyclic_destination", "adam", "tiny")
SECONDS = 30
TEXT = "no disk left on this rank"


class Broken(RuntimeError):
    """What the test raises."""


class Fault:
    """An observer that raises before one stage of one batch on one rank."""

    def __init__(self, graph: str, stage: str, batch: int, here: bool) -> None:
        self._where, self._here = (graph, stage, batch), here

    def __call__(self, graph: str, stage: str, batch: int) -> None:
        if self._here and (graph, stage, batch) == self._where:
            raise Broken(TEXT)


def provoke(communicator: Any, mode: str, graph: str, stage: str, batch: int, culprit: int) -> str:
    """What is wrong with how this rank saw the fault; "" when all is well."""
    model, optimizer = make_model(CASE, communicator.size)
    staleness = parse(int(mode) if mode.isdecimal() else mode)
    fault = Fault(graph, stage, batch, communicator.rank == culprit)
    data = Batches(CASE, communicator.rank, communicator.size, steps=STEPS)
    with as_with_others() if staleness.exact else nullcontext():  # alone, exact has the stages of 0
        pipe = EmbeddingPipeline(model, loss_fn, optimizer, data, staleness, observer=fault)
    began = time.monotonic()
    try:
        for _ in pipe:
            pass
        return "nothing was raised"
    except Exception as error:
        text = str(error)
        here = isinstance(error, Broken)
    seconds = time.monotonic() - began
    if seconds > SECONDS:
        return f"it took {seconds:.0f} s"
    if TEXT not in text or (communicator.rank == culprit) != here:
        return f"raised was {text[:500]}"
    return check_dirty(model, optimizer) or check_threads()


def check_dirty(model: Any, optimizer: Any) -> str:
    """Tables, slots and files must not be had; after a restore they may."""
    with tempfile.TemporaryDirectory() as directory:
        for what in (
            model.tables.get_weights,
            lambda: optimizer.inner_optimizer.save_own_variables({}),
            lambda: model.save_weights(Path(directory) / "m.weights.h5"),
            lambda: model(next(iter(Batches(CASE, 0, 1)))[0]),
        ):
            try:
                what()
                return "half an update could be read"
            except DirtyTablesError as error:
                if TEXT not in str(error):
                    return f"the refusal does not say why: {error}"
    return ""


def check_threads() -> str:
    left = [t.name for t in threading.enumerate() if t.name == "demb-embedding-graph" and t.is_alive()]
    return f"left: {left}" if left else ""


def main() -> None:
    out, ranks, modes = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    communicator = dmp.init()
    results: dict[str, str] = {}
    for mode in modes:
        for name, *fault in faults(mode, communicator.size, ranks):
            began = time.monotonic()
            error = provoke(communicator, mode, *fault)
            seconds = time.monotonic() - began
            texts = gather_text(communicator, error and f"rank {communicator.rank}: {error}")
            results[name] = "\n".join(t for t in texts if t)
            if communicator.rank == 0:
                print(f"{seconds:.1f} s: {name}", flush=True)
                out.write_text(json.dumps(results))
            keras.backend.clear_session(free_memory=False)
    dmp.shutdown()


if __name__ == "__main__":
    main()
