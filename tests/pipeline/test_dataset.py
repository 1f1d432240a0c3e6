"""One reader, two threads at their own pace: each element once to each, in order, and no further ahead than allowed."""

from __future__ import annotations

import random
import time
import weakref

import numpy as np
import pytest
import tensorflow as tf
from threads import LONG, blocked, started

from distributed_embeddings.pipeline.dataset import PipelineDataset

EMPTY = -1


def element(i: int, size: int = 1):
    """ids, of one number, and dense features of 4 × size bytes."""
    return tf.constant([i]), tf.fill([size], float(i))


def dataset(source, **options) -> PipelineDataset:
    return PipelineDataset(source, lambda e: [e[0]], lambda e: [e[1]], lambda: element(EMPTY), **options)


def elements(count: int, size: int = 1):
    return (element(i, size) for i in range(count))


def numbers(samples) -> list[int]:
    return [int(s.part[0][0]) for s in samples]


def read_all(data: PipelineDataset, take, sleeps: random.Random, pace: float, count: int):
    samples = []
    while len(samples) < count:
        time.sleep(sleeps.random() * pace)
        samples.append(take())
        # No look at the other thread's side can be sharper than this without stopping it.
        assert samples[-1].batch + 1 - data.state()["next_batch"] <= data.look_ahead
    return samples


def tf_data(count: int):
    return tf.data.Dataset.range(count).map(
        lambda i: (tf.cast(i, tf.int32)[None], tf.cast(i, tf.float32)[None])
    )


@pytest.mark.parametrize("paces", [(0, 0), (0, 0.002), (0.002, 0), (0.002, 0.002)], ids=str)
@pytest.mark.parametrize("look_ahead", [1, 2, 5])
@pytest.mark.parametrize("source", [elements, tf_data])
def test_two_threads_get_the_same_once_and_in_order(source, look_ahead, paces):
    count, more, first = 40, 3, 100
    data = dataset(source(count), look_ahead=look_ahead, first_batch=first)
    sides = [
        started(read_all, data, take, random.Random(7), pace, count + more)
        for take, pace in zip((data.next_embedding, data.next_main), paces, strict=True)
    ]
    embedding, main = (side.result(LONG) for side in sides)
    assert numbers(embedding) == numbers(main) == [*range(count), *[EMPTY] * more]
    for samples in (embedding, main):
        assert [s.batch for s in samples] == list(range(first, first + count + more))
        assert [s.real for s in samples] == [True] * count + [False] * more
        assert [s.last for s in samples] == [False] * (count - 1) + [True] * (1 + more)
    assert (data.held_bytes, data.has_next) == (0, False)
    assert data.peak_bytes <= 4 * look_ahead


@pytest.mark.parametrize("look_ahead", [1, 3])
def test_reading_stops_at_the_look_ahead(look_ahead):
    read = []
    data = dataset((read.append(i) or element(i) for i in range(20)), look_ahead=look_ahead)
    for _ in range(look_ahead):
        data.next_embedding()
    waiting = started(data.next_embedding)
    assert blocked(waiting)
    assert read == list(range(look_ahead + 1))  # one more, to know that there is one
    assert data.next_main().batch == 0
    assert waiting.result(LONG).batch == look_ahead
    assert blocked(started(data.next_embedding), 0.01)


@pytest.mark.parametrize(
    ("budget", "always", "held"),
    [
        (100, 1, 1),
        (101, 1, 2),
        (250, 1, 3),
        (1, 1, 1),
        (1, 4, 4),
        (250, 4, 4),
        (None, 1, 6),
        (10_000, 1, 6),
    ],
)
def test_reading_stops_at_the_byte_budget(budget, always, held):
    data = dataset(elements(20, size=25), look_ahead=6, byte_budget=budget, always=always)
    for _ in range(held):
        data.next_embedding()
    assert data.held_bytes == data.peak_bytes == 100 * held
    waiting = started(data.next_embedding)
    assert blocked(waiting, 0.02)
    data.next_main()
    assert waiting.result(LONG).batch == held


def test_a_large_element_is_waited_out():
    source = (element(i, size) for i, size in enumerate([1, 1, 100, 1, 1]))
    data = dataset(source, look_ahead=5, byte_budget=10)
    for _ in range(3):
        data.next_embedding()
    waiting = started(data.next_embedding)
    data.next_main()
    data.next_main()
    assert blocked(waiting, 0.02)
    data.next_main()
    assert waiting.result(LONG).batch == 3
    assert (data.held_bytes, data.peak_bytes) == (4, 408)


def test_main_waits_for_the_reader():
    data = dataset(elements(3))
    waiting = started(data.next_main)
    assert blocked(waiting)
    data.next_embedding()
    assert numbers([waiting.result(LONG)]) == [0]


def test_an_empty_rank_goes_on_as_long_as_the_others():
    data = dataset(iter(()), first_batch=4)
    assert not data.has_next
    for batch in (4, 5):
        assert data.next_embedding()[:1] == (batch,)
        sample = data.next_main()
        assert (sample.batch, sample.real, sample.last, numbers([sample])) == (batch, False, True, [EMPTY])


def test_asking_for_the_next_reads_one_element_once():
    data = dataset(elements(2))
    assert data.has_next and data.has_next
    samples = [data.next_embedding(), data.next_embedding()]
    assert (numbers(samples), [s.last for s in samples]) == ([0, 1], [False, True])


def failing(good: int, error: BaseException):
    yield from elements(good)
    raise error


def test_a_reader_error_surfaces_where_it_reads():
    error = OSError("the disk")
    data = dataset(failing(3, error), look_ahead=9)
    with pytest.raises(OSError) as raised:
        while True:
            data.next_embedding()
    assert raised.value is error
    # What was read before is there; behind it the other graph waits until it is told.
    assert numbers([data.next_main(), data.next_main()]) == [0, 1]
    waiting = started(data.next_main)
    assert blocked(waiting, 0.02)
    data.abort(error)
    assert waiting.exception(LONG) is error


def test_a_reader_error_in_the_first_element():
    data = dataset(failing(0, OSError("the disk")))
    with pytest.raises(OSError, match="the disk"):
        _ = data.has_next


def test_abort_wakes_both():
    data, error = dataset(elements(9), look_ahead=1), ValueError("elsewhere")
    data.next_embedding()
    reader = started(data.next_embedding)
    assert blocked(reader, 0.02)
    data.abort(error)
    assert reader.exception(LONG) is error
    other = dataset(elements(9))
    main = started(other.next_main)
    assert blocked(main, 0.02)
    other.abort(error)
    assert main.exception(LONG) is error


def test_state_says_where_the_main_graph_is():
    data = dataset(elements(10), first_batch=20)
    for _ in range(4):
        data.next_embedding()
    assert data.state() == {"next_batch": 20, "batches": 0}
    data.next_main()
    data.next_main()
    state = data.state()
    assert state == {"next_batch": 22, "batches": 2}
    rest = (e for i, e in enumerate(elements(10)) if i >= state["batches"])
    again = dataset(rest, first_batch=state["next_batch"])
    again.next_embedding()
    sample = again.next_main()
    assert (sample.batch, numbers([sample])) == (22, [2])


class Alive:
    """How many of the tensors that were shown to it are still there."""

    def __init__(self) -> None:
        self._seen: list[weakref.ref] = []

    def see(self, tensors) -> None:
        self._seen += map(weakref.ref, tensors)

    def __len__(self) -> int:
        return sum(r() is not None for r in self._seen)


@pytest.mark.parametrize("source", [elements, tf_data])
def test_nothing_is_kept_that_both_have_used(source):
    data, alive = dataset(source(6), look_ahead=3), Alive()

    def take(side):
        sample = side()
        alive.see(sample.part)
        return sample.batch

    for batch in range(6):
        assert take(data.next_embedding) == batch
        assert len(alive) == 0  # a part is the graph's that took it
        assert take(data.next_main) == batch
        assert len(alive) == 0
    assert data.held_bytes == 0


def test_only_what_a_graph_still_needs_is_kept():
    alive = Alive()

    def make(i):
        tensors = [*element(i), tf.constant("unused")]
        alive.see(tensors)
        return tensors

    data = dataset((make(i) for i in range(5)), look_ahead=5)
    for _ in range(3):
        data.next_embedding()
    assert (
        len(alive) == 3 + 3
    )  # the main graph's parts, and the element that was read to know that it is there
    for _ in range(2):
        data.next_main()
    assert len(alive) == 1 + 3


def test_numpy_elements():
    source = ((np.array([i]), np.full([3], i, np.float32)) for i in range(2))
    data = PipelineDataset(source, lambda e: [e[0]], lambda e: [e[1]], lambda: None)
    data.next_embedding()
    assert data.held_bytes == 12
    assert numbers([data.next_main()]) == [0]


@pytest.mark.parametrize(("look_ahead", "always", "least"), [(0, 1, 1), (2, 3, 3), (4, 0, 1)])
def test_a_look_ahead_too_short_is_refused(look_ahead, always, least):
    text = f"`look_ahead` must be {least} or more. Received: look_ahead={look_ahead}"
    with pytest.raises(ValueError, match=text):
        dataset(elements(1), look_ahead=look_ahead, always=always)
