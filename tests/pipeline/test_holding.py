"""Where the embedding graph is the slower one, vectors wait until it waits itself; never longer."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import tensorflow as tf

from distributed_embeddings.pipeline.core import _require_threads
from distributed_embeddings.pipeline.engine import StageRunner
from distributed_embeddings.pipeline.queues import GRADIENT_HEAD, VECTOR_HEAD, HandOverQueue

EARLY, SOON = 4, 8


class Lane:
    """A communicator that tells, or does not, when it waits."""

    def __init__(self, tells: bool = True) -> None:
        self.tells, self.call = tells, None

    def when_waiting(self, call):
        self.call = call
        return self.tells


class Job:
    def __init__(self, tells: bool = True) -> None:
        self.lane = Lane(tells)
        self.vectors = HandOverQueue(VECTOR_HEAD, 8, "vectors")
        self.gradients = HandOverQueue(GRADIENT_HEAD, 8, "gradients")
        nothing = SimpleNamespace(
            span=lambda *_: nullcontext(), mark=lambda *_: None, count=lambda *_: None, advance=lambda *_: None,
            store=lambda *_: None, drop=lambda *_: None, fetch=lambda *_: [],
        )  # fmt: skip
        graph = SimpleNamespace(communicator=self.lane, look_up=lambda: [tf.constant(1.0)])
        self.runner = StageRunner(graph, None, nothing, self.vectors, self.gradients, nothing)
        self.batch = 0

    def early(self) -> None:
        """A gradient that is there before it is asked for."""
        head = [tf.zeros([], spec.dtype) for spec in GRADIENT_HEAD[1:]]
        self.gradients.put([tf.constant(self.batch, tf.int64), *head])
        self.runner.take_gradient(self.batch)
        self.batch += 1

    def look_up(self) -> int:
        """Vectors of a batch that the main graph can take."""
        self.runner.look_up(self.batch)
        return self.vectors.size()


@pytest.fixture
def job():
    job = Job()
    job.runner.hold.begin(job.lane)
    return job


def slow(job: Job) -> Job:
    """The embedding graph has been the slower one for a while."""
    for _ in range(EARLY):
        job.early()
    return job


def late(job: Job) -> None:
    """A gradient that is not there when it is asked for."""
    queue = job.gradients
    job.runner._gradients = SimpleNamespace(size=lambda: 0, take=queue.take)
    job.early()
    job.runner._gradients = queue


def test_vectors_wait_until_the_embedding_graph_waits(job):
    assert slow(job).look_up() == 0
    job.lane.call()
    assert job.vectors.size() == 1
    job.lane.call()  # nothing is held now
    assert job.vectors.size() == 1


def test_vectors_are_not_held_before_gradients_were_early_for_a_while(job):
    for _ in range(EARLY - 1):
        job.early()
    assert job.look_up() == 1


def test_a_gradient_that_is_awaited_releases_and_counts_anew(job):
    assert slow(job).look_up() == 0
    # The main graph can only give this gradient when it has the vectors: waiting for it would be a deadlock.
    late(job)
    assert job.vectors.size() == 1
    assert job.look_up() == 2
    slow(job)  # a hold that made the main graph wait is not tried again so soon
    assert job.look_up() == 3
    assert slow(job).look_up() == 3


def test_a_pause_after_many_holds_is_not_their_fault(job):
    slow(job)
    for _ in range(3):  # of training: evaluation, say
        for _ in range(SOON + 1):
            assert job.look_up() == 0
            job.lane.call()
            job.vectors.clear()
            job.early()
        late(job)
        slow(job)
        assert job.look_up() == 0
        job.lane.call()
        job.vectors.clear()


def test_the_next_vectors_release_those_before(job):
    assert slow(job).look_up() == 0
    assert job.look_up() == 1


def test_the_end_releases_and_nothing_is_called_then(job):
    assert slow(job).look_up() == 0
    job.runner.hold.end(job.lane)
    assert job.vectors.size() == 1 and job.lane.call is None


def test_a_closed_queue_wants_nothing(job):
    assert slow(job).look_up() == 0
    job.vectors.close()
    job.lane.call()


@pytest.mark.parametrize("tells", [False, True])
def test_nothing_is_held_where_nobody_would_release_it(tells):
    job = Job(tells)
    if not tells:  # else: nobody began
        job.runner.hold.begin(job.lane)
    assert slow(job).look_up() == 1


def test_one_thread_for_two_graphs_is_refused(monkeypatch):
    monkeypatch.setenv("TF_NUM_INTEROP_THREADS", "1")
    with pytest.raises(ValueError, match="Received: 1 by TF_NUM_INTEROP_THREADS"):
        _require_threads(2)
    _require_threads(1)
    monkeypatch.setenv("TF_NUM_INTEROP_THREADS", "2")
    _require_threads(2)
    monkeypatch.delenv("TF_NUM_INTEROP_THREADS")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {5})
    with pytest.raises(ValueError, match="Received: 1 by the number of this process's cores"):
        _require_threads(2)
    monkeypatch.setattr("tensorflow.config.threading.get_inter_op_parallelism_threads", lambda: 2)
    _require_threads(2)
