"""Suites of `demb bench ops`: which cases, and who competes in them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from .cases import Case

EVERYWHERE = ("ours", "fbgemm", "limit")
ALL = ("ours", "fbgemm", "fbgemm_huge", "embedding_bag", "plain_tf", "keras", "limit")


@dataclass(frozen=True)
class Entry:
    """A case and its competitors; the first is whom the others' ratios are against."""

    case: Case
    competitors: tuple[str, ...] = EVERYWHERE


def steps(batch: int, hotness: int) -> int:
    """Steps a call: four where a step is a few milliseconds, as Keras's steps_per_execution is used. Starting a
    tf.function costs 1 to 2 ms, whatever is in it."""
    return 4 if batch * hotness <= 4096 else 1


def issue() -> list[Entry]:
    """The whole grid. The slow ones compete in a part of it: more would take days and say the same."""
    grid = itertools.product(
        (1, 2), ("adagrad", "rowwise_adagrad"), ("zipf1.05", "uniform"), (4096, 65536), (1, 10, 50),
        (16, 32, 64, 128), (10**5, 10**6, 10**7),
    )  # fmt: skip
    entries = []
    for threads, rule, distribution, batch, hotness, dim, rows in grid:
        case = Case(
            rows, dim, hotness, batch, distribution, rule, threads, steps_per_call=steps(batch, hotness)
        )
        small = batch == 4096 and hotness <= 10 and dim in (16, 128) and distribution == "zipf1.05"
        more = ("fbgemm_huge", "embedding_bag", "plain_tf", "keras") if small else ()
        entries.append(Entry(case, (*EVERYWHERE, *more)))
    return entries


def quick() -> list[Entry]:
    """A quarter of an hour: a case of each kind."""
    shapes = [
        (10**5, 16, 1, 4096, "zipf1.05", "adagrad"),
        (10**5, 16, 1, 65536, "zipf1.05", "adagrad"),
        (10**6, 32, 10, 4096, "zipf1.05", "adagrad"),
        (10**5, 128, 1, 4096, "zipf1.05", "adagrad"),
        (10**6, 16, 10, 4096, "uniform", "adagrad"),
        (10**5, 128, 10, 4096, "zipf1.05", "rowwise_adagrad"),
        (10**6, 64, 1, 4096, "uniform", "rowwise_adagrad"),
    ]
    return [
        Entry(Case(*shape, threads=threads, steps_per_call=steps(shape[3], shape[2])))
        for threads in (1, 2)
        for shape in shapes
    ]


def large() -> list[Entry]:
    """Tables far beyond the caches, as many of them as let two competitors fit in 24 GiB."""
    tables = {16: 8, 32: 4, 64: 2, 128: 1}
    grid = itertools.product((1, 2), ("adagrad", "rowwise_adagrad"), ("uniform", "zipf1.05"), (1, 10), tables)
    return [
        Entry(Case(10**7, dim, hotness, 65536, distribution, rule, threads, tables[dim]))
        for threads, rule, distribution, hotness, dim in grid
    ]


def rows() -> list[Entry]:
    """1e7 rows against 1e5 rows with equally many distinct ids: what remains is caches and TLB."""
    grid = itertools.product((1, 2), ("adagrad", "rowwise_adagrad"), (16, 64), (10**5, 10**7))
    return [
        Entry(Case(size, dim, 1, 65536, "spread", rule, threads, tables=2), ("ours", "limit"))
        for threads, rule, dim, size in grid
    ]


def keras() -> list[Entry]:
    """One table of 10M × 16, 4,096 ids, against Keras: ten steps a call, so that starting a function is no part."""
    return [
        Entry(
            Case(10**7, 16, 1, 4096, "uniform", "adagrad", t, 1, 10), ("ours", "plain_tf", "keras", "limit")
        )
        for t in (1, 2)
    ]


def growth() -> list[Entry]:
    """A table of 4 GiB: what resident memory does over a thousand steps."""
    return [
        Entry(Case(2**26, 16, 1, 4096, "uniform", rule, 1, 1), ("ours",))
        for rule in ("adagrad", "rowwise_adagrad")
    ]


def one() -> list[Entry]:
    """A second's work, to see that all competitors run."""
    return [Entry(Case(1000, 16, 3, 256, tables=4), ALL)]


SUITES: dict[str, Callable[[], list[Entry]]] = {
    f.__name__: f for f in (issue, quick, large, rows, keras, growth, one)
}
