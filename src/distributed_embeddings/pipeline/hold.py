"""When vectors are handed over: at once, or, where the embedding graph is the slower one, when it waits itself."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import tensorflow as tf

from distributed_embeddings.comm import Communicator
from distributed_embeddings.pipeline.meter import Meter
from distributed_embeddings.pipeline.queues import HandOverQueue

# So many gradients in a row must have come early before vectors are held. Where a hold makes the main graph the slower
# one, a gradient is late soon, and twice as many must come before the next try. One that is late after more holds than
# _SOON is not the holds' fault: training paused, or input did.
_EARLY, _MOST, _SOON = 4, 512, 8


class Hold:
    """Before the queue of vectors: keeps at most one batch's back.

    Handed over at once, vectors begin a main step beside the embedding graph's own next work, on the same cores; where
    that graph is the slower one, this is time lost.
    """

    def __init__(self, queue: HandOverQueue, meter: Meter, graph: str) -> None:
        self._queue, self._meter, self._graph = queue, meter, graph
        self._lock = threading.Lock()
        self._batch = -1
        self._tensors: list[Any] | None = None
        self._may_hold = False
        self._early = 0  # gradients in a row that were there before they were asked for
        self._needed, self._held = _EARLY, 0  # held: batches in a row

    def begin(self, lane: Communicator) -> None:
        """From now on hold, until `lane` waits for other ranks. For streams: who runs both graphs in one thread would
        wait for what is held."""
        self._may_hold = lane.when_waiting(self.release)

    def end(self, lane: Communicator) -> None:
        """Hold nothing any more."""
        lane.when_waiting(None)
        self._may_hold = False
        self.release()

    def note_gradient(self, early: bool) -> None:
        """Whether the next gradient was there before it was asked for. If not, what is held may be what it needs."""
        self._early = self._early + 1 if early else 0
        if not early:
            if self._held:
                self._needed = min(2 * self._needed, _MOST) if self._held <= _SOON else _EARLY
            self._held = 0
            self.release()

    def put(self, batch: int, tensors: list[Any]) -> None:
        """A batch's vectors; those before it are released."""
        self.release()
        self._batch, self._tensors = batch, tensors
        if not self._may_hold or self._early < self._needed:
            self.release()
        else:
            self._held += 1

    def release(self) -> None:
        """Hand over what is held, if anything is. Of any thread; a queue that is closed wants nothing."""
        with self._lock, contextlib.suppress(tf.errors.CancelledError):
            tensors, self._tensors = self._tensors, None
            if tensors is not None:
                self._meter.mark(self._graph, "released", self._batch)
                self._queue.put(tensors)
