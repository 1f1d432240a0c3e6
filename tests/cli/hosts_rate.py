"""Measures what emulated hosts let through: `python tests/cli/hosts_rate.py`, as root, a minute. No test."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable

import tensorflow as tf

from distributed_embeddings import comm
from distributed_embeddings.cli.bench.hosts import EmulatedHosts, missing

PART = 8 * 10**6  # bytes for every other worker


def main() -> None:
    if (reason := missing()) is not None:
        sys.exit(reason)
    command = [sys.executable, __file__, "worker"]
    for workers in (2, 4):
        print(f"{workers} workers, plain launch", flush=True)
        comm.launch(command, workers, timeout=200)
        for rate in ("1gbit", "100mbit"):
            print(f"{workers} workers, {rate}", flush=True)
            with EmulatedHosts(rate) as hosts:
                hosts.launch(command, workers, timeout=200)
                print(f"  sent: {[round(n / 1e6, 1) for n in hosts.sent_bytes()]} MB", flush=True)


def worker() -> None:
    group = comm.init()
    values = tf.random.uniform([group.size, PART // 4])
    splits = tf.ones([group.size], tf.int64)
    small = tf.ones([4])
    across = group.size - group.local_size
    exchange, best = seconds(lambda: group.all_to_all(values, splits, phase="rate"), 15)
    reduce, _ = seconds(lambda: group.all_reduce(small, phase="latency"), 500)
    barrier, _ = seconds(lambda: group.barrier(phase="latency"), 500)
    if group.rank == 0:
        # Over plain launch nobody is on another host: what goes to the other workers then.
        parts = across * group.local_size if across else group.size - 1
        whose = f"host, {loopback() / 1e6:.1f} MB in all over its loopback" if across else "worker"
        rate, most = (parts * PART / taken / 1e6 for taken in (exchange, best))
        print(
            f"  all_to_all, 8 MB a pair: {exchange * 1e3:.1f} ms, {rate:.0f} MB/s (at most {most:.0f}) out of a "
            f"{whose}; all_reduce of 16 bytes {reduce * 1e6:.0f} µs; barrier {barrier * 1e6:.0f} µs",
            flush=True,
        )


def seconds(call: Callable[[], object], times: int) -> tuple[float, float]:
    """Median and least of `times` calls, each after a barrier."""
    taken = []
    for _ in range(times):
        comm.current().barrier(phase="begin")
        begin = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken), min(taken)


def loopback() -> int:
    """Bytes through this host's loopback device."""
    with open("/proc/net/dev") as file:
        return next(int(line.split(":")[1].split()[0]) for line in file if line.strip().startswith("lo:"))


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    worker() if sys.argv[1:] == ["worker"] else main()
