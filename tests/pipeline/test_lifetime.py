"""Long runs: no more batches alive than allowed, nothing left behind, no growth of memory."""

from __future__ import annotations

import gc
import sys
from contextlib import nullcontext
from pathlib import Path

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from pipeline_cases import Batches, Case, loss_fn, make_model
from with_others import as_with_others

from distributed_embeddings.pipeline import EmbeddingPipeline

CASE = Case("row_cyclic_destination", "adagrad", "zipf", features=1)
GROWTH_BYTES = 24 * 2**20


class Repeated:
    """Few batches, many times: making them would take longer than training on them."""

    def __init__(self, steps: int) -> None:
        batches = Batches(CASE, 0, 1)
        self.element_spec, self._batches, self._steps = batches.element_spec, list(batches), steps

    def __iter__(self):
        for step in range(self._steps):
            yield self._batches[step % len(self._batches)]


def resident() -> int:
    gc.collect()
    return psutil.Process().memory_info().rss


def run(staleness, steps: int, exchanging: bool) -> int:
    """Train; returns how much memory grew after the first fifth. exchanging: as several workers do."""
    model, optimizer = make_model(CASE, 1)
    with as_with_others() if exchanging else nullcontext():
        pipe = EmbeddingPipeline(model, loss_fn, optimizer, Repeated(steps), staleness)
    early = 0
    for done in pipe:
        if done.batch == steps // 5:
            early = resident()
    stream = pipe.graphs.stream
    assert done.batch == steps - 1
    assert stream.manager.peak_entries <= pipe.graphs.staleness.depth + 2
    assert len(stream.manager) == 0 and stream.manager.nbytes == 0
    assert stream.dataset.held_bytes == 0
    return resident() - early


@pytest.mark.parametrize(("staleness", "exchanging"), [(0, False), (2, False), (2, True), ("exact", True)])
def test_nothing_is_left(staleness, exchanging) -> None:
    run(staleness, 300, exchanging)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("staleness", "exchanging"), [(1, False), (1, True), ("exact", True)])
def test_ten_thousand_steps(staleness, exchanging) -> None:
    assert run(staleness, 10_000, exchanging) < GROWTH_BYTES
