"""The live competitors of a run: a framework takes seconds to import, so a process serves one case after another."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from .cases import Case
from .competitors import COMPETITORS, start
from .process import Worker, WorkerError


class Crew:
    """Competitors' processes, all of the same number of threads. Leaving it ends them."""

    def __init__(self, peers: Path | None) -> None:
        self._peers = peers
        self._threads = 0
        self._workers: dict[str, Worker] = {}

    def free(self) -> int:
        """Let every process drop its case; returns the bytes they hold still."""
        held = 0
        for name, worker in list(self._workers.items()):
            try:
                held += int(worker.ask({"start": None})["resident"])
            except WorkerError:
                self.drop(name)
        return held

    def drop(self, name: str) -> None:
        """End a process: it failed, or is in the way."""
        if (worker := self._workers.pop(name, None)) is not None:
            worker.close()

    def build(self, names: Iterable[str], case: Case) -> dict[str, Any]:
        """Give a case to competitors, all at the same time, and let each run its phases once, so that all is traced and
        all pages are there. Returns by name what it said of itself, or the WorkerError it failed with."""
        names = list(names)
        if case.threads != self._threads:
            for name in list(self._workers):
                self.drop(name)
            self._threads = case.threads
        for name in names:
            if name not in self._workers:
                self._workers[name] = start(name, case, self._peers)
        with ThreadPoolExecutor(len(names)) as pool:
            said = dict(zip(names, pool.map(lambda name: self._build_one(name, case), names), strict=True))
        for name in [n for n in names if isinstance(said[n], WorkerError)]:
            self.drop(name)
        return said

    def __getitem__(self, name: str) -> Worker:
        return self._workers[name]

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.ExitStack() as stack:
            for worker in self._workers.values():
                stack.callback(worker.close)

    def _build_one(self, name: str, case: Case) -> dict[str, Any] | WorkerError:
        worker = self._workers[name]
        try:
            said = worker.ask({"start": case.to_dict()}, timeout=1800)
            for phase in COMPETITORS[name].phases:
                worker.ask({"run": phase, "count": 1}, timeout=1800)
        except WorkerError as error:
            return error
        return said
