"""The cases every backend must pass, and the worker that runs them all in one group of processes.

Each case communicates first and compares afterwards, so that a failing rank does not put the others out of
step. Run as a script: `conformance_cases.py DIRECTORY [CASE …]` writes DIRECTORY/RANK.json: case → "" or the
traceback.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from distributed_embeddings import comm

Comm = comm.Communicator
CASES: dict[str, Callable[[Comm], None]] = {}
FLOATS = ("float16", "bfloat16", "float32", "float64")
DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", *FLOATS)
LARGE = "all_to_all_over_64_mib"


def case(function: Callable[[Comm], None]) -> Callable[[Comm], None]:
    CASES[function.__name__] = function
    return function


def rows_of(rank: int, count: int, dtype: str, width: tuple[int, ...] = (3,)) -> np.ndarray:
    """Small integers that differ by rank and place: their sums are exact in every dtype."""
    size = int(np.prod((count, *width)))
    numbers = (np.arange(size) * 7 + rank * 3) % 9
    return numbers.reshape((count, *width)).astype(tf.as_dtype(dtype).as_numpy_dtype)


def uneven(source: int, size: int) -> list[int]:
    """Rows from `source` to every rank: rank 1 sends nothing, the last receives nothing, the rest is uneven."""
    return [0 if source == 1 or target == size - 1 > 0 else source + 2 * target + 1 for target in range(size)]


def expected_exchange(comm: Comm, sent: list[np.ndarray], splits: list[list[int]]) -> np.ndarray:
    parts = []
    for source in range(comm.size):
        start = sum(splits[source][: comm.rank])
        parts.append(sent[source][start : start + splits[source][comm.rank]])
    return np.concatenate(parts)


def same(actual: Any, expected: Any) -> None:
    actual, expected = actual.numpy(), np.asarray(expected)
    assert actual.dtype == expected.dtype, (actual.dtype, expected.dtype)
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    assert actual.tobytes() == expected.tobytes(), (actual, expected)


def exchange(comm: Comm, splits: list[list[int]], dtype: str, width: tuple[int, ...] = (3,)) -> None:
    sent = [rows_of(r, sum(splits[r]), dtype, width) for r in range(comm.size)]
    received, counts = comm.all_to_all(tf.constant(sent[comm.rank]), splits[comm.rank], phase="exchange")
    same(counts, np.array([splits[s][comm.rank] for s in range(comm.size)], np.int64))
    same(received, expected_exchange(comm, sent, splits))


def _register_dtype(dtype: str) -> None:
    def all_to_all(comm: Comm) -> None:
        exchange(comm, [uneven(r, comm.size) for r in range(comm.size)], dtype)

    def all_gather(comm: Comm) -> None:
        lengths = [0 if r == 1 else r + 2 for r in range(comm.size)]
        parts = [rows_of(r, n, dtype) for r, n in enumerate(lengths)]
        gathered, counts = comm.all_gather(tf.constant(parts[comm.rank]), phase="gather")
        same(counts, np.array(lengths, np.int64))
        same(gathered, np.concatenate(parts))

    def broadcast(comm: Comm) -> None:
        root = comm.size - 1
        same(
            comm.broadcast(tf.constant(rows_of(comm.rank, 4, dtype)), root, phase="send"),
            rows_of(root, 4, dtype),
        )

    def extremes(comm: Comm) -> None:
        parts = [rows_of(r, 5, dtype) for r in range(comm.size)]
        own = tf.constant(parts[comm.rank])
        highest, lowest = comm.all_reduce(own, "max", phase="max"), comm.all_reduce(own, "min", phase="min")
        same(highest, np.max(np.stack(parts), 0))
        same(lowest, np.min(np.stack(parts), 0))

    def sums(comm: Comm) -> None:
        parts = [rows_of(r, 5, dtype) for r in range(comm.size)]
        own = tf.constant(parts[comm.rank])
        total, mean = comm.all_reduce(own, phase="sum"), comm.all_reduce(own, "mean", phase="mean")
        exact = np.sum(np.stack(parts).astype(np.float64), 0)
        same(total, exact.astype(parts[0].dtype))
        divided = exact / comm.size if dtype in FLOATS else exact // comm.size
        same(mean, divided.astype(parts[0].dtype))

    def reduce_scatter(comm: Comm) -> None:
        splits = [0 if r == 1 else 2 * r + 1 for r in range(comm.size)]
        parts = [rows_of(r, sum(splits), dtype) for r in range(comm.size)]
        kept = comm.reduce_scatter(tf.constant(parts[comm.rank]), splits, phase="scatter")
        start = sum(splits[: comm.rank])
        total = np.sum(np.stack(parts).astype(np.float64), 0).astype(parts[0].dtype)
        same(kept, total[start : start + splits[comm.rank]])

    for function in (
        all_to_all,
        all_gather,
        broadcast,
        extremes,
        *(() if dtype == "bool" else (sums, reduce_scatter)),
    ):
        CASES[f"{function.__name__}_{dtype}"] = function


for _dtype in DTYPES:
    _register_dtype(_dtype)


@case
def nothing_from_anybody(comm: Comm) -> None:
    exchange(comm, [[0] * comm.size] * comm.size, "float32")
    gathered, counts = comm.all_gather(tf.zeros([0, 4], tf.bfloat16), phase="none")
    same(gathered, np.zeros([0, 4], tf.bfloat16.as_numpy_dtype))
    same(counts, np.zeros(comm.size, np.int64))
    same(comm.all_reduce(tf.zeros([0, 3]), phase="none"), np.zeros([0, 3], np.float32))
    same(comm.broadcast(tf.zeros([0]), phase="none"), np.zeros([0], np.float32))
    same(comm.reduce_scatter(tf.zeros([0, 2]), [0] * comm.size, phase="none"), np.zeros([0, 2], np.float32))


@case
def shapes_of_rows(comm: Comm) -> None:
    for width in ((), (1,), (2, 3), (0,)):
        exchange(comm, [uneven(r, comm.size) for r in range(comm.size)], "float32", width)


@case
def scalars(comm: Comm) -> None:
    same(
        comm.all_reduce(tf.constant(comm.rank + 1, tf.int64), phase="one"),
        np.int64(sum(range(comm.size + 1))),
    )
    same(comm.broadcast(tf.constant(float(comm.rank)), phase="one"), np.float32(0))


@case
def ids_above_2_to_40(comm: Comm) -> None:
    ids = np.array([(1 << 40) + 1, (1 << 62) + comm.rank, -(1 << 41) - 3], np.int64)
    gathered, _ = comm.all_gather(tf.constant(ids), phase="ids")
    total = comm.all_reduce(tf.constant(ids[:1]), phase="ids")
    highest = comm.all_reduce(tf.constant(ids[1:2]), "max", phase="ids")
    every = [[(1 << 40) + 1, (1 << 62) + r, -(1 << 41) - 3] for r in range(comm.size)]
    same(gathered, np.array(every, np.int64).reshape(-1))
    same(total, np.array([comm.size * ((1 << 40) + 1)], np.int64))
    same(highest, np.array([(1 << 62) + comm.size - 1], np.int64))


@case
def special_floats_keep_their_bits(comm: Comm) -> None:
    for dtype in FLOATS:
        values = tf.constant([np.nan, -0.0, np.inf, -np.inf], tf.as_dtype(dtype))
        gathered, _ = comm.all_gather(values, phase="special")
        sent = comm.broadcast(values, phase="special")
        same(gathered, np.tile(values.numpy(), comm.size))
        same(sent, values.numpy())


@case
def narrow_sums_accumulate_in_float32(comm: Comm) -> None:
    """256 + 1 + 1 + … is 256 in bfloat16 when every partial sum is rounded."""
    for dtype, base in (("bfloat16", 256.0), ("float16", 2048.0)):
        own = tf.constant([base if comm.rank == 0 else 1.0], tf.as_dtype(dtype))
        total = comm.all_reduce(own, phase="narrow")
        kept = comm.reduce_scatter(tf.repeat(own, comm.size), [1] * comm.size, phase="narrow")
        exact = np.array([base + comm.size - 1], np.float32).astype(own.numpy().dtype)
        same(total, exact)
        same(kept, exact)


@case
def all_reduce_is_bitwise_equal_on_all_ranks(comm: Comm) -> None:
    for count in (7, 1000, 100_003):
        own = np.random.default_rng(comm.rank).normal(size=count).astype(np.float32)
        total = comm.all_reduce(tf.constant(own), phase="bits")
        bits, _ = comm.all_gather(tf.bitcast(total, tf.int32)[None], phase="compare")
        assert (bits.numpy() == bits.numpy()[0]).all()
        every = [np.random.default_rng(r).normal(size=count).astype(np.float32) for r in range(comm.size)]
        np.testing.assert_allclose(total, np.sum(every, 0, dtype=np.float64), rtol=1e-5, atol=1e-5)


@case
def several_operations_in_one_function(comm: Comm) -> None:
    @tf.function
    def step(values: Any, splits: Any) -> Any:
        received, counts = comm.all_to_all(values, splits, phase="forth")
        assert received.shape[1] == 2
        returned, _ = comm.all_to_all(received, counts, phase="back")
        total = comm.all_reduce(tf.reduce_sum(received, 0), phase="total")
        unused = comm.all_reduce(tf.constant(1.0), phase="unused result")
        del unused
        gathered, _ = comm.all_gather(values[:1] * 2, phase="first rows")
        return returned, total, gathered, comm.broadcast(tf.reduce_max(values), phase="largest")

    for extra in (1, 3, 2):  # a trace a shape, on every rank another
        counts = [[r + t + extra for t in range(comm.size)] for r in range(comm.size)]
        sent = [rows_of(r, sum(counts[r]), "float32", (2,)) + 1 for r in range(comm.size)]
        returned, total, gathered, largest = step(
            tf.constant(sent[comm.rank]), tf.constant(counts[comm.rank])
        )
        same(returned, sent[comm.rank])
        same(total, np.sum([s.sum(0) for s in sent], 0))
        same(gathered, np.concatenate([s[:1] * 2 for s in sent]))
        same(largest, sent[0].max())


@case
def inside_loops_and_branches(comm: Comm) -> None:
    @tf.function
    def loop(start: Any, steps: Any) -> Any:
        before = comm.all_reduce(start, phase="before")
        value = before
        for i in tf.range(steps):
            value = comm.all_reduce(value + tf.cast(i, tf.float32), "mean", phase="in the loop")
            if i % 2 == 0:
                value += comm.all_reduce(start, "max", phase="in the branch")
        return value, comm.all_gather(value[None], phase="after")[0]

    for steps in (3, 0, 5):
        value, gathered = loop(tf.constant(float(comm.rank)), tf.constant(steps))
        expected = float(sum(range(comm.size)))
        for i in range(steps):
            expected += i + (comm.size - 1 if i % 2 == 0 else 0)
        same(value, np.float32(expected))
        same(gathered, np.full(comm.size, expected, np.float32))


@case
def results_survive_later_operations(comm: Comm) -> None:
    """Receive buffers are reused: not while somebody holds a result, an alias or a view of it."""
    count = 60_000
    held = [comm.all_gather(tf.fill([count], float(i)), phase="hold")[0] for i in range(6)]
    views = [tensor.__array__() for tensor in held[:3]]
    firsts = [tensor[:2] for tensor in held]
    del held[1]
    for i in range(6):
        comm.all_gather(tf.fill([count], -1.0 - i), phase="later")
    assert [float(v[0]) for v in views] == [0, 1, 2]
    assert [float(v.min()) for v in views] == [0, 1, 2]
    assert [float(tf.reduce_min(t)) for t in held] == [0, 2, 3, 4, 5]
    assert [float(f[1]) for f in firsts] == [0, 1, 2, 3, 4, 5]


@case
def many_sizes_in_a_row(comm: Comm) -> None:
    rng = np.random.default_rng(5)  # the same on all ranks
    for _ in range(12):
        table = rng.integers(0, 200, (comm.size, comm.size))
        exchange(comm, table.tolist(), "int64", (1,))


@case
def wrong_arguments_raise_on_every_rank_and_the_job_goes_on(comm: Comm) -> None:
    wrong = [5] * comm.size if comm.rank == 0 else [0] * comm.size
    _raises("splits", lambda: comm.all_to_all(tf.zeros([0, 2]), wrong, phase="wrong"))
    _raises("op", lambda: comm.all_reduce(tf.zeros([1]), "median", phase="wrong"))
    _raises("op", lambda: comm.all_reduce(tf.constant([True]), phase="wrong"))
    _raises("root", lambda: comm.broadcast(tf.zeros([1]), comm.size, phase="wrong"))
    same(comm.all_reduce(tf.ones([1]), phase="goes on"), np.array([comm.size], np.float32))


@case
def another_dtype_or_phase_raises_on_every_rank(comm: Comm) -> None:
    if comm.size == 1:
        return
    last = comm.rank == comm.size - 1
    values = tf.zeros([2], tf.int64 if last else tf.int32)
    _raises("different dtype", lambda: comm.all_reduce(values, phase="ids"))
    _raises("'labels'", lambda: comm.all_gather(values, phase="labels" if last else "ids"))
    _raises("barrier", lambda: comm.barrier(phase="b") if last else comm.all_reduce(tf.zeros([3]), phase="a"))
    comm.barrier(phase="goes on")


@case
def duplicates_serve_two_threads_at_once(comm: Comm) -> None:
    other = comm.duplicate("embedding graph")
    assert (other.rank, other.size, other.backend) == (comm.rank, comm.size, comm.backend)
    sums: list[float] = []

    @tf.function
    def many(communicator: Comm, values: tf.Tensor) -> tf.Tensor:
        for k in range(8):
            values = communicator.all_reduce(values, phase=f"dense {k}") / comm.size
        return values

    def beside() -> None:
        for k in range(20):
            got, _ = other.all_gather(tf.fill([3 + comm.rank], float(k)), phase=f"ids {k}")
            sums.append(float(tf.reduce_sum(got)))

    thread = threading.Thread(target=beside)
    thread.start()
    for k in range(20):
        same(many(comm, tf.fill([5], float(k))), np.full(5, k, np.float32))
    thread.join(60)
    rows = sum(3 + r for r in range(comm.size))
    assert sums == [float(k * rows) for k in range(20)], sums
    other.shutdown()
    same(comm.all_reduce(tf.ones([1]), phase="goes on"), np.array([comm.size], np.float32))


@case
def an_exchange_tells_when_it_waits(comm: Comm) -> None:
    lane = comm.duplicate("embedding graph")
    calls: list[int] = []
    tells = lane.when_waiting(lambda: calls.append(1))
    assert tells == (comm.backend == "mpi")
    exchange = tf.function(lambda v: lane.all_to_all(v, tf.ones([comm.size], tf.int64), phase="vectors")[0])
    for _ in range(3):
        exchange(tf.ones([comm.size]))
    assert len(calls) == (3 if tells else 0), calls
    lane.when_waiting(None)
    exchange(tf.ones([comm.size]))
    assert len(calls) == (3 if tells else 0), calls
    lane.shutdown()


@case
def a_told_failure_raises_on_the_others(comm: Comm) -> None:
    if comm.size == 1:
        comm.tell_failure("nobody hears it")
        return
    lane = comm.duplicate("embedding graph")
    if comm.rank == comm.size - 1:
        lane.tell_failure("rank 7 has no disk left")
    else:
        _raises("rank 7 has no disk left", lambda: lane.all_reduce(tf.ones([3]), phase="gradients"))
    same(lane.all_reduce(tf.ones([1]), phase="goes on"), np.array([comm.size], np.float32))
    lane.shutdown()


@case
def barrier_is_eager_only(comm: Comm) -> None:
    traced = tf.function(lambda: comm.barrier(phase="traced"), autograph=False)
    _raises("eager", traced)
    comm.barrier(phase="eager")


def all_to_all_over_64_mib(comm: Comm) -> None:
    rows = (65 << 20) // 256 + 1
    part = np.full((rows, 64), comm.rank + 1, np.float32)
    values = tf.constant(np.concatenate([part + 10 * d for d in range(comm.size)]))
    received, counts = comm.all_to_all(values, [rows] * comm.size, phase="large")
    same(counts, np.full(comm.size, rows, np.int64))
    for source in range(comm.size):
        piece = received[source * rows : (source + 1) * rows]
        assert float(tf.reduce_min(piece)) == float(tf.reduce_max(piece)) == source + 1 + 10 * comm.rank


def _raises(text: str, call: Callable[[], Any]) -> None:
    try:
        call()
    except Exception as error:
        assert text in str(error), error
        return
    raise AssertionError(f"nothing was raised; expected {text!r}")


def main(directory: str, names: list[str]) -> None:
    communicator = comm.init()
    assert communicator.backend == os.environ["DEMB_BACKEND"]
    results = {}
    for name in names or list(CASES):
        try:
            (all_to_all_over_64_mib if name == LARGE else CASES[name])(communicator)
            results[name] = ""
        except Exception:
            results[name] = traceback.format_exc()
    Path(directory, f"{communicator.rank}.json").write_text(json.dumps(results))
    comm.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
