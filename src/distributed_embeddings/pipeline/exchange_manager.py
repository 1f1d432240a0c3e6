"""What of each batch is between the two graphs: states, permits, lifetimes."""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


class State(enum.IntEnum):
    """How far a batch is. FREE_READY and CONFLICT_APPLIED occur in exact mode only."""

    READ = 0
    PLANNED = 1
    FREE_READY = 2
    READY = 3
    TAKEN = 4
    GRAD = 5
    CONFLICT_APPLIED = 6
    RETIRED = 7


_OPTIONAL = (State.FREE_READY, State.CONFLICT_APPLIED)


@dataclass
class Entry:
    """One batch. fields: name → tensors; gone: names of those that were freed."""

    state: State = State.READ
    fields: dict[str, list[Any]] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)


class ExchangeManager:
    """Batches between embedding graph and main graph, by global batch id.

    depth: batches that may be ahead. There are depth + 2 permits: opening a batch takes one, and it comes back only
    when the batch's gradient has been applied. byte_budget: of all fields together; None: no limit. A field has one
    producer and one consumer: it is stored once, and given up when it is fetched for the last time.
    seconds: how long a wait may take. Raises RuntimeError for a transition out of order, a field stored twice or not
    there, and TimeoutError for a wait too long.
    """

    def __init__(self, depth: int, byte_budget: int | None = None, seconds: float = 300.0) -> None:
        self.slots = depth + 2
        self.byte_budget = byte_budget
        self.seconds = seconds
        self.peak_entries = self.peak_bytes = self.nbytes = 0
        self.waited_seconds = 0.0
        self._entries: dict[int, Entry] = {}
        self._last_opened = self._last_retired = -1
        self._condition = threading.Condition()
        self._error: BaseException | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def open(self, batch: int) -> None:
        """Begin a batch; waits for a permit. Batches come in rising order."""
        with self._condition:
            if batch <= self._last_opened:
                raise RuntimeError(f"batch {batch} must come after batch {self._last_opened}")
            self._wait(lambda: len(self._entries) < self.slots, f"a permit for batch {batch}")
            self._entries[batch] = Entry()
            self._last_opened = batch
            self.peak_entries = max(self.peak_entries, len(self._entries))

    def advance(self, batch: int, state: State) -> None:
        """Move a batch to its next state; RETIRED ends it. Each transition is legal once; batches are retired in
        order."""
        with self._condition:
            entry = self._entry(batch)
            skipped = [s for s in State if entry.state < s < state and s not in _OPTIONAL]
            if state <= entry.state or skipped:
                raise RuntimeError(f"batch {batch} must not go from {entry.state.name} to {state.name}")
            if state is State.RETIRED:
                self._retire(batch, entry)
            entry.state = state
            self._condition.notify_all()

    def state(self, batch: int) -> State:
        """How far a batch is; RETIRED for one that is no longer here."""
        with self._condition:
            if batch <= self._last_opened and batch not in self._entries:
                return State.RETIRED
            return self._entry(batch).state

    def store(self, batch: int, name: str, tensors: Sequence[Any]) -> None:
        """Keep a field of a batch. Raises MemoryError beyond the byte budget: who stores is who frees, and would wait
        for itself."""
        size = sum(nbytes(t) for t in tensors)
        with self._condition:
            entry = self._entry(batch)
            if name in entry.fields or name in entry.gone:
                raise RuntimeError(f"field '{name}' of batch {batch} must be stored once")
            if self.byte_budget is not None and self.nbytes + size > self.byte_budget:
                raise MemoryError(
                    f"the byte budget of the pipeline must hold {self.slots} batches. Received: byte_budget="
                    f"{self.byte_budget}, with '{name}' of batch {batch} {self.nbytes + size} bytes are needed. Raise "
                    "the budget, lower the batch size, or use a smaller staleness."
                )
            entry.fields[name] = list(tensors)
            self.nbytes += size
            self.peak_bytes = max(self.peak_bytes, self.nbytes)

    def fetch(self, batch: int, name: str, last: bool = False) -> list[Any]:
        """A field of a batch. last: nobody else will ask, and it is freed."""
        with self._condition:
            entry = self._entry(batch)
            if name not in entry.fields:
                raise RuntimeError(f"batch {batch} ({entry.state.name}) has no field '{name}'")
            if not last:
                return entry.fields[name]
            tensors = entry.fields.pop(name)
            entry.gone.add(name)
            self.nbytes -= sum(nbytes(t) for t in tensors)
            return tensors

    def drop(self, batch: int, *names: str) -> None:
        """Free fields that may be there."""
        with self._condition:
            for name in self._entry(batch).fields.keys() & names:
                self.fetch(batch, name, last=True)

    def wait_retired(self, batch: int) -> None:
        """Wait until a batch's gradient has been applied."""
        with self._condition:
            self._wait(lambda: self._last_retired >= batch, f"the update of batch {batch}")

    def discard(self) -> None:
        """Forget all batches: of a stream that was given up."""
        with self._condition:
            self._entries.clear()
            self.nbytes = 0
            self._condition.notify_all()

    def abort(self, error: BaseException) -> None:
        """Wake everybody who waits with an error."""
        with self._condition:
            self._error = error
            self._condition.notify_all()

    def _entry(self, batch: int) -> Entry:
        if batch not in self._entries:
            raise RuntimeError(f"batch {batch} is not here. Received: batches {sorted(self._entries)}")
        return self._entries[batch]

    def _retire(self, batch: int, entry: Entry) -> None:
        if entry.fields:
            raise RuntimeError(f"batch {batch} must not be retired with {sorted(entry.fields)} left")
        first = min(self._entries)
        if batch != first:
            raise RuntimeError(f"batch {batch} must be retired after batch {first}")
        del self._entries[batch]
        self._last_retired = batch

    def _wait(self, ready: Callable[[], bool], what: str) -> None:
        start = time.monotonic()
        while not ready():
            if self._error is not None:
                raise self._error
            left = self.seconds - (time.monotonic() - start)
            if left <= 0:
                raise TimeoutError(
                    f"{what} has not come in {self.seconds:g} s. Received: batches "
                    f"{ {b: e.state.name for b, e in self._entries.items()} }"
                )
            self._condition.wait(left)
        self.waited_seconds += time.monotonic() - start


def nbytes(tensor: Any) -> int:
    """Bytes of an eager tensor or an array."""
    if isinstance(tensor, np.ndarray | np.generic):
        return tensor.nbytes
    size = 1
    for n in tensor.shape:
        size *= int(n)
    return size * int(tensor.dtype.size)
