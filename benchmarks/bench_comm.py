"""The mpi backend against bare mpi4py in the same run: run under `demb launch -n 2 -- python benchmarks/bench_comm.py`.

Rank 0 prints one JSON object. Bare is `Alltoall`, blocking, with two buffers reused and already touched; ours is
`all_to_all` inside `tf.function`. Both are taken in turns, so that whatever else runs on the machine meets both.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from typing import Any

import mpi4py
import numpy as np
import tensorflow as tf
from mpi4py import MPI

from distributed_embeddings import comm

WIDTH = 64  # float32 columns: 256 bytes a row


def timed(call: Callable[[], Any]) -> float:
    MPI.COMM_WORLD.Barrier()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def all_to_all(communicator: comm.Communicator, part_bytes: int, repeats: int) -> dict[str, float]:
    """Median milliseconds of one exchange, and bare time over ours in percent (medians of paired rounds)."""
    rows = part_bytes // (4 * WIDTH)
    # Ones, not zeros: pages of zeros nobody wrote are one page of the kernel, which reads from the cache.
    sent, received = (np.ones((rows * communicator.size, WIDTH), np.float32) for _ in range(2))
    values, splits = tf.constant(sent), tf.constant([rows] * communicator.size, tf.int64)

    @tf.function
    def step(values: tf.Tensor, splits: tf.Tensor) -> Any:
        return communicator.all_to_all(values, splits, phase="benchmark")

    calls = {"bare": lambda: MPI.COMM_WORLD.Alltoall(sent, received), "ours": lambda: step(values, splits)}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats + 3):
        for name, call in calls.items():
            seconds[name].append(timed(call))
    bare, ours = (np.array(seconds[name][3:]) for name in ("bare", "ours"))
    return {
        "part_bytes": part_bytes,
        "bare_ms": round(float(np.median(bare)) * 1e3, 3),
        "ours_ms": round(float(np.median(ours)) * 1e3, 3),
        "percent_of_bare": round(100 * float(np.median(bare) / np.median(ours)), 1),
        "percent_of_bare_fastest_tenth": round(
            100 * float(np.quantile(bare, 0.1) / np.quantile(ours, 0.1)), 1
        ),
        "ours_gigabytes_per_second": round(part_bytes * communicator.size / float(np.median(ours)) / 1e9, 2),
    }


def waiting(communicator: comm.Communicator, seconds: float = 2.0) -> float:
    """Percent of a core that rank 0 uses while the last rank is late."""
    communicator.barrier(phase="start")
    if communicator.rank == communicator.size - 1:
        time.sleep(seconds)
    wall, used = time.perf_counter(), time.process_time()
    communicator.barrier(phase="late")
    return round(100 * (time.process_time() - used) / (time.perf_counter() - wall), 2)


def small_all_reduce(communicator: comm.Communicator, repeats: int) -> float:
    """Median microseconds of 64 floats inside `tf.function`."""
    values = tf.zeros([64])
    step = tf.function(lambda v: communicator.all_reduce(v, phase="small"))
    return round(float(np.median([timed(lambda: step(values)) for _ in range(repeats)][3:])) * 1e6, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part-bytes", type=int, nargs="+", default=[1 << 16, 1 << 20, 8 << 20])
    parser.add_argument("--repeats", type=int, default=60)
    arguments = parser.parse_args()
    communicator = comm.init("mpi")
    report = {
        "workers": communicator.size,
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "tensorflow": tf.__version__,
        "mpi4py": mpi4py.__version__,
        "mpi": MPI.Get_library_version().split(",")[0],
        "python": platform.python_version(),
        "all_to_all": [all_to_all(communicator, n, arguments.repeats) for n in arguments.part_bytes],
        "small_all_reduce_us": small_all_reduce(communicator, arguments.repeats),
        "waiting_percent_of_a_core": waiting(communicator),
    }
    if communicator.rank == 0:
        print(json.dumps(report, indent=2))
    comm.shutdown()


if __name__ == "__main__":
    main()
