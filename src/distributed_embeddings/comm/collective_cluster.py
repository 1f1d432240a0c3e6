"""Joins TensorFlow's servers to one cluster."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

import tensorflow as tf

from .cluster import Cluster

# The strategy holds the connections; nothing else of it is used.
_strategies: list[object] = []


def start(cluster: Cluster) -> str:
    """Connect all workers and return this one's CPU device.

    Raises ValueError without addresses, RuntimeError when TensorFlow has already run an op.
    """
    if cluster.size == 1:
        return "CPU:0"
    if len(cluster.addresses) != cluster.size:
        raise ValueError(
            f'`backend` "tensorflow" must know {cluster.size} addresses: TF_CONFIG (`demb launch`), '
            f"use srun, or pass `addresses`. Received: {cluster.addresses} from {cluster.source}"
        )
    _choose_gpu(cluster)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": list(cluster.addresses)}),
        task_type="worker",
        task_id=cluster.rank,
        rpc_layer="grpc",
    )
    try:
        with _sigterm_kept():
            _strategies.append(tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver))
    except RuntimeError as error:
        # TensorFlow configures collectives only before its first op.
        raise RuntimeError(
            '`init()` with backend "tensorflow" must come before any other TensorFlow op: call '
            f"dmp.init() first in the program. TensorFlow says: {error}"
        ) from error
    return f"/job:worker/replica:0/task:{cluster.rank}/device:CPU:0"


@contextlib.contextmanager
def _sigterm_kept() -> Iterator[None]:
    """TensorFlow's preemption notifier takes SIGTERM and ends nothing: give it back to who had it before.

    Only the main thread may (Python's `signal`); None is a handler that Python does not know.
    """
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def payload_device(cpu: str) -> str:
    """The device whose collectives move the parts: this worker's GPU where it has one."""
    if not tf.config.list_physical_devices("GPU"):
        return cpu
    return cpu.replace("CPU:0", "GPU:0")


def _choose_gpu(cluster: Cluster) -> None:
    """One GPU a worker: the strategy would claim all of the machine's for each of them."""
    gpus = tf.config.list_physical_devices("GPU")
    if len(gpus) > 1 and cluster.local_size > 1:
        tf.config.set_visible_devices(gpus[cluster.local_rank % len(gpus)], "GPU")
