"""Each graph on its own, while the other stands still: what a pipeline's bound is made of."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

from distributed_embeddings.pipeline.core import TwoGraphs, make_dataset
from distributed_embeddings.pipeline.engine import StageRunner
from distributed_embeddings.pipeline.exchange_manager import ExchangeManager
from distributed_embeddings.pipeline.meter import Meter

_SETTLING = 3


def graphs_alone(graphs: TwoGraphs, source: Iterable[Any], steps: int) -> dict[str, float]:
    """Run both graphs' stages in turn, in one thread. Median milliseconds a step: "embedding" and "main" graph.

    "gradient": from a main step's begin to the vectors' gradient; "critical": what the embedding graph does behind it.

    source: endless. The pipeline's stream has ended; tables and dense weights are trained on. Collective.
    """
    taken = _SerialSteps(graphs, source)
    for _ in range(steps + _SETTLING):
        taken.step()
    taken.end()
    return {name: median(v[_SETTLING:]) * 1e3 for name, v in taken.seconds.items()}


class _SerialSteps:
    """The schedule of the pipeline's staleness without a thread of its own."""

    def __init__(self, graphs: TwoGraphs, source: Iterable[Any]) -> None:
        self._graphs, self._batch = graphs, graphs.next_batch
        self._data = make_dataset(graphs, source)
        self._manager = ExchangeManager(graphs.staleness.depth)
        self._runner = StageRunner(
            graphs.embedding, self._data, self._manager, graphs.vectors, graphs.gradients, Meter()
        )
        self.seconds: dict[str, list[float]] = {
            name: [] for name in ("embedding", "main", "gradient", "critical")
        }
        self._planned = self._batch
        begin = self._runner.announce if graphs.staleness.exact else self._runner.plan
        begin(self._batch)
        self._runner.look_up(self._batch)
        if graphs.staleness.exact:
            begin(self._batch + 1)
        for _ in range(graphs.staleness.lag - 1):
            self._planned += 1
            begin(self._planned)
            self._runner.look_up(self._planned)

    def step(self) -> None:
        batch, runner = self._batch, self._runner
        before = _timed(self._ahead)
        self._main()
        runner.take_gradient(batch)
        critical = _timed(self._behind)
        self.seconds["critical"].append(critical)
        self.seconds["embedding"].append(before + critical)
        self._batch += 1

    def _ahead(self) -> None:
        """What does not wait for the gradient."""
        runner, batch = self._runner, self._batch
        if not self._graphs.staleness.exact:
            if not self._graphs.staleness.lag:
                runner.plan(batch + 1)
        elif batch > self._graphs.next_batch:
            runner.ahead(batch)
        else:
            runner.look_up_free(batch + 1)
            runner.announce(batch + 2)

    def _behind(self) -> None:
        runner, batch = self._runner, self._batch
        if self._graphs.staleness.exact:
            runner.turn(batch)
        elif self._graphs.staleness.lag:
            self._planned += 1
            runner.advance(batch, self._planned)
        else:
            runner.update(batch)
            runner.look_up(batch + 1)

    def _main(self) -> None:
        """A main step; its gradient is passed on as it comes, and the time noted."""
        queue, main = self._graphs.gradients, self._graphs.main
        got: list[Any] = []

        def listen() -> None:
            got.append(queue.take())
            got.append(time.perf_counter())

        listener = threading.Thread(target=listen)
        listener.start()
        part = self._data.next_main().part
        begin = time.perf_counter()
        main(part)
        self.seconds["main"].append(time.perf_counter() - begin)
        listener.join()
        self.seconds["gradient"].append(got[1] - begin)
        queue.put(got[0])

    def end(self) -> None:
        """Drop what was begun."""
        self._graphs.vectors.clear()
        self._manager.discard()
        self._graphs.next_batch = self._batch + self._graphs.staleness.look_ahead + 1


def _timed(work: Callable[[], None]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
