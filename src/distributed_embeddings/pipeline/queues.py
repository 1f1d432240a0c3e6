"""How tensors pass from one graph to the other: TensorFlow's queues, whose waits hold no thread of the graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

CANCELLED = -1
"""The batch of what is put to end a wait."""

# Before the tensors themselves: batch, and the weight of this rank's batch.
VECTOR_HEAD = (tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.float32))
# Before the tensors themselves: batch, learning rate, step, whether the step counts, what the loss was multiplied by.
GRADIENT_HEAD = (
    tf.TensorSpec([], tf.int64),
    tf.TensorSpec([], tf.float32),
    tf.TensorSpec([], tf.int64),
    tf.TensorSpec([], tf.bool),
    tf.TensorSpec([], tf.float32),
)


class HandOverQueue:
    """Lists of tensors of given specs, first in, first out. `take` inside a graph waits without a thread."""

    def __init__(self, specs: Sequence[tf.TensorSpec], capacity: int, name: str) -> None:
        self.specs = list(specs)
        self._queue = tf.queue.FIFOQueue(capacity, [s.dtype for s in specs], name=name)

    def put(self, tensors: Sequence[Any]) -> None:
        tf.raw_ops.QueueEnqueueV2(handle=self._queue.queue_ref, components=list(tensors))

    def take(self) -> list[tf.Tensor]:
        """Raises OutOfRangeError when the queue is closed."""
        dtypes = [spec.dtype for spec in self.specs]
        tensors = tf.raw_ops.QueueDequeueV2(handle=self._queue.queue_ref, component_types=dtypes)
        if not tf.executing_eagerly():
            for tensor, spec in zip(tensors, self.specs, strict=True):
                tensor.set_shape(spec.shape)
        return list(tensors)

    def size(self) -> int:
        """Entries put and not taken."""
        return int(self._queue.size())

    def cancel(self) -> None:
        """Put something that says that nothing will come."""
        shapes = [[0 if d is None else d for d in s.shape] for s in self.specs]
        filler = [tf.zeros(n, s.dtype) for n, s in zip(shapes[1:], self.specs[1:], strict=True)]
        self.put([tf.constant(CANCELLED, tf.int64), *filler])

    def clear(self) -> None:
        """Drop what nobody took."""
        while self.size():
            self.take()

    def close(self) -> None:
        """End every wait, now and from now on, with an error."""
        self._queue.close(cancel_pending_enqueues=True)
