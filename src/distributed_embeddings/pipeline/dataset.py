"""One reader, two iterators: the embedding graph reads ahead, the main graph follows."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from distributed_embeddings.pipeline.exchange_manager import nbytes

Part = list[Any]


class Sample(NamedTuple):
    """One graph's part of an element. batch: its global id. last: this rank has none behind it. real: False for the
    empty batch of a rank that has run out of data before the others."""

    batch: int
    part: Part
    last: bool
    real: bool


class PipelineDataset:
    """Elements numbered by global batch id, read once, handed to two graphs at their own pace.

    source: an iterable of elements, such as a batched tf.data.Dataset; every rank reads its own. embedding, main: pick
    each graph's part, a flat list of tensors, out of an element. empty: an element of no samples, for a rank that has
    run out while others go on. look_ahead: elements the embedding graph may be ahead of the main graph. byte_budget: of
    the parts held; `always` elements are allowed whatever their size, because a graph may need them to go on.
    first_batch: the id of the first element; a batch's id is equal on all ranks. A part is given up as soon as its
    graph has it. Raises ValueError for a look-ahead below `always`.
    """

    def __init__(
        self,
        source: Iterable[Any],
        embedding: Callable[[Any], Part],
        main: Callable[[Any], Part],
        empty: Callable[[], Any],
        look_ahead: int = 4,
        byte_budget: int | None = None,
        first_batch: int = 0,
        always: int = 1,
    ) -> None:
        if not 1 <= always <= look_ahead:
            raise ValueError(
                f"`look_ahead` must be {max(1, always)} or more. Received: look_ahead={look_ahead}"
            )
        self._always = always
        self.look_ahead, self.byte_budget = look_ahead, byte_budget
        self._reader: Iterator[Any] = iter(source)
        self._embedding, self._main, self._empty = embedding, main, empty
        self._condition = threading.Condition()
        self._waiting: deque[Sample] = deque()  # parts the main graph has not had yet
        self._peeked: deque[Any] = deque()
        self._read = self._taken = self._first = first_batch
        self._ended = False
        self._error: BaseException | None = None
        self.held_bytes = self.peak_bytes = 0

    @property
    def has_next(self) -> bool:
        """Whether this rank has an element that the embedding graph has not read. Reads it where that is not known."""
        if not self._peeked and not self._ended:
            try:
                self._peeked.append(next(self._reader))
            except StopIteration:
                self._ended = True
        return bool(self._peeked)

    def next_embedding(self) -> Sample:
        """The embedding graph's part of the next batch; an empty one where this rank has run out. Waits while the main
        graph is `look_ahead` batches or the byte budget behind."""
        with self._condition:
            self._wait(self._has_room)
            batch = self._read
        real = self.has_next
        element = self._peeked.popleft() if real else self._empty()
        part, kept = self._embedding(element), self._main(element)
        sample = Sample(batch, part, not self.has_next, real)
        with self._condition:
            self._read += 1
            self._waiting.append(sample._replace(part=kept))
            self.held_bytes += sum(map(nbytes, kept))
            self.peak_bytes = max(self.peak_bytes, self.held_bytes)
            self._condition.notify_all()
        return sample

    def next_main(self) -> Sample:
        """The main graph's part of the next batch; waits until the embedding graph has read it."""
        with self._condition:
            self._wait(lambda: bool(self._waiting))
            sample = self._waiting.popleft()
            self._taken = sample.batch + 1
            self.held_bytes -= sum(map(nbytes, sample.part))
            self._condition.notify_all()
        return sample

    def state(self) -> dict[str, int]:
        """Where the main graph is: a new data set that skips `batches` elements goes on from there."""
        with self._condition:
            return {"next_batch": self._taken, "batches": self._taken - self._first}

    def abort(self, error: BaseException) -> None:
        """Wake who waits with an error."""
        with self._condition:
            self._error = error
            self._condition.notify_all()

    def _has_room(self) -> bool:
        if len(self._waiting) < self._always:
            return True
        within = self.byte_budget is None or self.held_bytes < self.byte_budget
        return within and len(self._waiting) < self.look_ahead

    def _wait(self, ready: Callable[[], bool]) -> None:
        while not ready():
            if self._error is not None:
                raise self._error
            self._condition.wait()
