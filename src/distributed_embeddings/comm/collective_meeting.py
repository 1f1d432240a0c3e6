"""What every operation of the tensorflow backend starts with: a gather of tokens, compared on every rank.

It gives the row counts of uneven parts and makes a rank in another operation an error instead of a hang.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from .communicator import Tensor
from .errors import CommunicationError
from .host_ops import HostOps, with_shape
from .tokens import TOKEN, Operation, compare, fill
from .waiting import Waiter

_WORDS = TOKEN.itemsize // 8
_MEETING_KEY = 1
_FIRST_PAYLOAD_KEY = 100

Check = Callable[[tuple[int, ...], Any], tuple[str, int]]


class Meeting:
    """Announce, gather, compare."""

    def __init__(self, rank: int, size: int, host: HostOps, group_key: int, lane: str = "") -> None:
        self._lane = lane
        self._rank, self._size, self._host, self._group_key = rank, size, host, group_key
        self._waiter = Waiter(rank)
        self.deadline_seconds = self._waiter.deadline_seconds
        # Leaving has no deadline: rank 0 may write a file meanwhile.
        self._deadlines = {"shutdown": math.inf, "failure": self._waiter.farewell_seconds}
        self.failed = False
        self._last_error: CommunicationError | None = None
        self._sequence = 0
        self._closed = False
        self._waiting: tuple[Operation, float] | None = None
        self._keys: dict[tuple[Any, ...], int] = {}
        if size > 1:
            threading.Thread(target=self._watch, name="demb-watchdog", daemon=True).start()

    def run(
        self, kind: str, values: Tensor, rows: Tensor, phase: str, check: Check | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Meet all ranks. `rows` int64 [size]: rows for each. `check`: (shape, rows) → (error, digest).

        Returns (int64 [size] rows from each rank, int32 rows every part is padded to, int32 instance key).
        """
        dtype = np.dtype(values.dtype.as_numpy_dtype) if values is not None else None
        shape = tf.shape(values, out_type=tf.int64) if values is not None else tf.zeros([0], tf.int64)
        rows = tf.zeros([self._size], tf.int64) if rows is None else rows

        def announce(s: Any, r: Any) -> list[Any]:
            return [self._announce(kind, phase, dtype, tuple(s.tolist()), r, check)]

        # In a graph the shapes are often static, and `announce` would start beside what makes the payload: when that
        # fails alone, as a dataset does at its end, the operation must not have begun (every rank would be in another).
        payload = [] if values is None or tf.executing_eagerly() else [values, rows]
        with tf.control_dependencies(payload):
            (words,) = self._host.call(announce, [shape, rows], [tf.int64])
        words = self._gather(with_shape(words, [_WORDS + self._size]))
        counts, longest, key = self._host.call(self._conclude, [words, shape], [tf.int64, tf.int32, tf.int32])
        return with_shape(counts, [self._size]), with_shape(longest, []), with_shape(key, [])

    def explain(self, error: BaseException) -> BaseException:
        """Return the communication error inside `error`, or what this rank waits for when TensorFlow gave up."""
        if self._last_error is not None and str(self._last_error) in str(error):
            return self._last_error
        waiting = self._waiting
        if waiting is None or not isinstance(error, tf.errors.OpError):
            return error
        where = self._waiter.describe(str(waiting[0]), self._others(), time.monotonic() - waiting[1])
        if isinstance(error, tf.errors.DeadlineExceededError):
            return CommunicationError(f"{where} {self._waiter.at_deadline()}")
        lines = error.message.splitlines()
        cause = next((line for line in lines if line.startswith("Collective")), lines[0])
        return CommunicationError(f"{where} A rank is lost; TensorFlow says: {cause}")

    def raised(self, error: BaseException) -> bool:
        """Whether the error came out of the last operation."""
        lost = self._waiting is not None and isinstance(error, tf.errors.OpError)
        return lost or (self._last_error is not None and str(self._last_error) in str(error))

    def close(self) -> None:
        """End the watchdog."""
        self._closed = True

    def _announce(
        self, kind: str, phase: str, dtype: Any, shape: tuple[int, ...], rows: Any, check: Check | None
    ) -> Any:
        if self.failed:
            raise CommunicationError(f"{kind} {phase!r} came after an earlier failure.")
        self._sequence += 1
        self._last_error = None
        error, digest = check(shape, rows) if check else ("", 0)
        row_bytes = dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64)) if dtype else 0
        operation = Operation(
            self._sequence, kind, phase, dtype.name if dtype else "", (row_bytes,), digest, error, self._lane
        )
        token = np.zeros(1, TOKEN)
        fill(token, operation, 0)
        self._waiting = operation, time.monotonic()
        return np.concatenate([token.view(np.int64), np.zeros(self._size, np.int64) if error else rows])

    def _conclude(self, words: Any, shape: Any) -> list[Any]:
        if self._waiting is None:
            raise CommunicationError("two threads are in collective operations at once.")
        operation, self._waiting = self._waiting[0], None
        table = words.reshape(self._size, _WORDS + self._size)
        tokens = np.ascontiguousarray(table[:, :_WORDS]).view(TOKEN).reshape(-1)
        try:
            compare(tokens, self._rank, operation)
        except CommunicationError as error:
            self.failed, self._last_error = error.fatal, error
            if operation.error:
                raise ValueError(operation.error) from error
            raise
        matrix = table[:, _WORDS:]
        longest = _round_up(int(matrix.max()))
        # An instance key keeps its kind, dtype and shape for ever; all ranks meet in the same order and so
        # number alike.
        whole = operation.kind in ("all_reduce", "broadcast")
        form = (operation.check, *shape.tolist()) if whole else (longest, *shape[1:].tolist())
        use = (operation.kind, operation.dtype, *form)
        key = self._keys.setdefault(use, _FIRST_PAYLOAD_KEY + len(self._keys))
        return [matrix[:, self._rank].copy(), np.int32(longest), np.int32(key)]

    def _gather(self, words: Tensor) -> Tensor:
        if self._size == 1:
            return words
        try:
            with tf.device(self._host.device):
                return tf.raw_ops.CollectiveGatherV2(
                    input=words,
                    group_size=self._size,
                    group_key=self._group_key,
                    instance_key=_MEETING_KEY,
                    ordering_token=[self._host.order()],
                    communication_hint="ring",
                    timeout_seconds=0.0,  # the watchdog's work: see `_expire`
                )
        except tf.errors.OpError as error:
            self.failed = True
            raise self.explain(error) from error

    def _watch(self) -> None:
        """TensorFlow waits inside its op and does not say for whom: a thread reports, and ends it at the deadline."""
        report_at, watched = self._waiter.watchdog_seconds, None
        while not self._closed:
            time.sleep(min(1.0, self._waiter.watchdog_seconds / 4))
            waiting = self._waiting
            if waiting is not watched:
                report_at, watched = self._waiter.watchdog_seconds, waiting
            if waiting is None:
                continue
            operation, waited = waiting[0], time.monotonic() - waiting[1]
            if waited >= report_at:
                report_at *= 2
                self._waiter.report(str(operation), self._others(), waited)
            if waited >= self._deadlines.get(operation.kind, self.deadline_seconds):
                _expire()
                return

    def _others(self) -> list[int]:
        return [r for r in range(self._size) if r != self._rank]


def _expire() -> None:
    """Fail every collective operation of this process, now and later, with DeadlineExceededError.

    An op's own `timeout_seconds` (TF 2.21) says that it is done while its ring still runs on what is then freed: one
    process in sixteen died of SIGSEGV and its reason was never printed. Aborted from here, the ring ends first.
    """
    context.context().abort_collective_ops(tf.errors.DEADLINE_EXCEEDED, "Collective has timed out.")


def _round_up(rows: int) -> int:
    """At least 1; above 64 a quarter of a power of two, so that ragged batches share few instance keys."""
    step = 1 << max(0, rows.bit_length() - 3) if rows > 64 else 1
    return max(1, -(-rows // step) * step)
