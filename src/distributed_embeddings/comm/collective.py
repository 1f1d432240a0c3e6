"""The `tensorflow` backend: TensorFlow's own collectives, gRPC on CPUs and NCCL on GPUs.

No launcher but addresses is needed. It is right everywhere and, over gRPC, slow: 50–120 MB/s on one machine.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from .arguments import op_error, root_error, scalar_error, splits_error
from .cluster import Cluster
from .collective_cluster import payload_device, start
from .collective_meeting import Meeting
from .collective_wire import from_wire, pack, to_bits, to_wire, unpack
from .communicator import Tensor
from .errors import CommunicationError
from .host_ops import HostOps, require_eager, rows_like, with_shape

_MERGE = {"sum": "Add", "mean": "Add", "max": "Max", "min": "Min"}
# One group a device type, because a group holds devices of one kind only; further ones for each duplicate.
_FIRST_CPU_GROUP, _FIRST_GPU_GROUP = 7001, 8001


class CollectiveCommunicator:
    """Collectives through TensorFlow. Each starts with a small gather in which the ranks compare it."""

    backend = "tensorflow"

    def __init__(self, cluster: Cluster, device: str | None = None, lane: str = "", number: int = 0) -> None:
        self.rank, self.size = cluster.rank, cluster.size
        self.local_rank, self.local_size = cluster.local_rank, cluster.local_size
        self._cluster = cluster
        self._cpu = start(cluster) if device is None else device
        self._number, self._duplicates = number, 0
        self._host = HostOps(self._cpu, lane)
        self._meeting = Meeting(self.rank, self.size, self._host, _FIRST_CPU_GROUP + number, lane)
        self._device = payload_device(self._cpu)
        self._closed = False

    def all_to_all(self, values: Tensor, splits: Tensor, *, phase: str) -> tuple[Tensor, Tensor]:
        """See Communicator."""
        values, splits = tf.convert_to_tensor(values), tf.cast(splits, tf.int64)

        def check(shape: Any, s: Any) -> tuple[str, int]:
            return splits_error(shape, s, self.size, phase), 0

        counts, rows, key = self._meeting.run("all_to_all", values, splits, phase, check)
        with tf.device(self._device):
            received = self._exchange(pack(to_wire(values), splits, rows), rows, key)
            received = from_wire(unpack(received, counts), values)
        return with_shape(received, rows_like(values)), counts

    def all_to_all_parts(
        self, parts: Sequence[tuple[Tensor, Tensor]], *, phase: str
    ) -> list[tuple[Tensor, Tensor]]:
        """See Communicator. One after the other: TensorFlow has no op for parts of several dtypes."""
        return [self.all_to_all(values, splits, phase=phase) for values, splits in parts]

    def all_gather(self, values: Tensor, *, phase: str) -> tuple[Tensor, Tensor]:
        """See Communicator."""
        values = tf.convert_to_tensor(values)
        own = tf.repeat(tf.shape(values, out_type=tf.int64)[:1] if values.shape.rank else [0], self.size)

        def check(shape: Any, _: Any) -> tuple[str, int]:
            return scalar_error(shape, phase), 0

        counts, rows, key = self._meeting.run("all_gather", values, own, phase, check)
        with tf.device(self._device):
            wire = to_wire(values)
            padded = tf.pad(wire, [[0, rows - tf.shape(wire)[0]], [0, 0]])
            gathered = padded if self.size == 1 else self._gather(padded, key)
            width = wire.shape[1]
            received = from_wire(unpack(tf.reshape(gathered, [self.size, rows, width]), counts), values)
        return with_shape(received, rows_like(values)), counts

    def reduce_scatter(self, values: Tensor, splits: Tensor, *, phase: str) -> Tensor:
        """See Communicator."""
        values, splits = tf.convert_to_tensor(values), tf.cast(splits, tf.int64)

        def check(shape: Any, s: Any) -> tuple[str, int]:
            error = splits_error(shape, s, self.size, phase) or op_error("sum", values.dtype.as_numpy_dtype)
            return error, zlib.crc32(s.tobytes())

        counts, rows, key = self._meeting.run("reduce_scatter", values, splits, phase, check)
        with tf.device(self._device):
            received = self._exchange(pack(to_wire(values), splits, rows), rows, key)
            parts = from_wire(unpack(received, counts), values)
            shape = tf.concat([[self.size, tf.cast(splits[self.rank], tf.int32)], tf.shape(parts)[1:]], 0)
            total = tf.reduce_sum(_widen(tf.reshape(parts, shape)), axis=0)
        return with_shape(tf.cast(total, values.dtype), rows_like(values))

    def all_reduce(self, values: Tensor, op: str = "sum", *, phase: str) -> Tensor:
        """See Communicator."""
        values = tf.convert_to_tensor(values)

        def check(shape: Any, _: Any) -> tuple[str, int]:
            return op_error(op, values.dtype.as_numpy_dtype), zlib.crc32(repr((op, shape)).encode())

        _, _, key = self._meeting.run("all_reduce", values, None, phase, check)
        with tf.device(self._device):
            total = self._reduce(_widen(values), _MERGE.get(op, "Add"), key)
            if op == "mean":
                total = total // self.size if total.dtype.is_integer else total / self.size
        return with_shape(tf.cast(total, values.dtype), values.shape)

    def broadcast(self, values: Tensor, root: int = 0, *, phase: str) -> Tensor:
        """See Communicator. The sum of the root's bits and the others' zeros: exact and ordered."""
        values = tf.convert_to_tensor(values)

        def check(shape: Any, _: Any) -> tuple[str, int]:
            return root_error(root, self.size, phase), zlib.crc32(repr((root, shape)).encode())

        _, _, key = self._meeting.run("broadcast", values, None, phase, check)
        with tf.device(self._device):
            bits = to_bits(values)
            bits = self._reduce(bits if self.rank == root else tf.zeros_like(bits), "Add", key)
            received = tf.reshape(from_wire(tf.reshape(bits, [-1, 1]), values, flat=True), tf.shape(values))
        return with_shape(received, values.shape)

    def barrier(self, *, phase: str) -> None:
        """See Communicator."""
        require_eager(phase)
        self._meeting.run("barrier", None, None, phase)

    def duplicate(self, name: str) -> CollectiveCommunicator:
        """See Communicator. Refused on GPUs: NCCL wants the operations of all its communicators in one order on all
        ranks, which two threads do not keep."""
        if "GPU" in self._device and self.size > 1:
            raise RuntimeError(
                "communication in two threads must not go through NCCL. Received: backend 'tensorflow' on "
                f"{self._device}. Use backend 'mpi', or no pipeline."
            )
        if self._number:
            raise RuntimeError("a duplicate must be made of the process's own communicator")
        self._duplicates += 1
        return CollectiveCommunicator(self._cluster, self._cpu, name, self._duplicates)

    def when_waiting(self, call: Callable[[], None] | None) -> bool:
        """See Communicator."""
        return False

    def tell_failure(self, text: str) -> None:
        """See Communicator."""
        if self._closed or self._meeting.failed or self.size == 1:
            return
        with contextlib.suppress(CommunicationError, ValueError, tf.errors.OpError):
            self._meeting.run("failure", None, None, "failure", lambda *_: (text, 0))

    def shutdown(self) -> None:
        """See Communicator."""
        if not self._closed:
            self._closed = True
            if not self._meeting.failed:
                self._meeting.run("shutdown", None, None, "shutdown")
            self._meeting.close()

    def raised(self, error: BaseException) -> bool:
        """See Communicator."""
        return self._meeting.raised(error)

    def explain(self, error: BaseException) -> BaseException:
        """Return the communication error inside `error`: TensorFlow wraps it in a page of its own."""
        return self._meeting.explain(error)

    def abort(self, status: int = 1) -> None:
        """End this process with `status`; the launcher, or gRPC's lost connection, ends the others."""
        os._exit(status)

    def _exchange(self, padded: Tensor, rows: Tensor, key: Tensor) -> Tensor:
        if self.size == 1:
            return padded
        received = tf.raw_ops.CollectiveAllToAllV2(input=padded, **self._common(key))
        return tf.reshape(received, [self.size, rows, padded.shape[2]])

    def _gather(self, padded: Tensor, key: Tensor) -> Tensor:
        return tf.raw_ops.CollectiveGatherV2(input=padded, **self._common(key))

    def _reduce(self, values: Tensor, merge: str, key: Tensor) -> Tensor:
        if self.size == 1:
            return values
        shape = tf.shape(values)
        # 8- and 16-bit integers and booleans are no types of the op. One element more: it takes no empty
        # tensor.
        wide = values if values.dtype.size >= 4 else tf.cast(values, tf.int32)
        flat = tf.concat([tf.reshape(wide, [-1]), tf.zeros([1], wide.dtype)], 0)
        total = tf.raw_ops.CollectiveReduceV2(input=flat, merge_op=merge, final_op="Id", **self._common(key))[
            :-1
        ]
        return tf.cast(tf.reshape(total, shape), values.dtype)

    def _common(self, key: Tensor) -> dict[str, Any]:
        gpu = "GPU" in self._device
        return {
            "group_size": self.size,
            "group_key": (_FIRST_GPU_GROUP if gpu else _FIRST_CPU_GROUP) + self._number,
            "instance_key": key,
            "ordering_token": [self._host.order()],
            "communication_hint": "nccl" if gpu else "ring",
            # All ranks have met: only one that stops in the middle is this late (see the meeting's `_expire`).
            "timeout_seconds": self._meeting.deadline_seconds,
        }


def _widen(values: Tensor) -> Tensor:
    """Sums of 16-bit floats accumulate in float32."""
    return tf.cast(values, tf.float32) if values.dtype in (tf.float16, tf.bfloat16) else values
