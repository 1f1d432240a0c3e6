"""The order of the embedding graph's stages. Nothing here knows what a stage does."""

from __future__ import annotations

from itertools import count
from typing import Protocol

from distributed_embeddings.pipeline.staleness import Staleness


class Stages(Protocol):
    """What the embedding graph can do with a batch, by its global id. Every stage but `take_gradient` is collective."""

    def plan(self, batch: int) -> bool:
        """Read a batch and exchange its ids. Returns whether any rank has another batch behind it."""

    def announce(self, batch: int) -> bool:
        """As `plan`, and find the rows that the batch shares with the one before it."""

    def look_up(self, batch: int) -> None:
        """Look all its rows up and hand the vectors over."""

    def look_up_free(self, batch: int) -> None:
        """Look up the rows that it does not share with the batch before."""

    def take_gradient(self, batch: int) -> None:
        """Wait until the main graph has handed the gradient over."""

    def update(self, batch: int) -> None:
        """Update all its rows."""

    def advance(self, batch: int, ahead: int) -> bool:
        """`update` of one batch, then `plan` and `look_up` of another; returns what `plan` does."""

    def ahead(self, batch: int) -> bool:
        """`update_free` of the batch before, `look_up_free` of the one behind, `announce` of the one behind that;
        returns what `announce` does."""

    def splits(self, batch: int) -> bool:
        """Whether the step of a batch treats rows that it shares with the one behind apart; the same on all ranks."""

    def turn_whole(self, batch: int) -> None:
        """`update` of a batch, then `look_up` of the one behind."""

    def update_free(self, batch: int) -> None:
        """Update the rows that it does not share with the batch behind."""

    def turn(self, batch: int) -> None:
        """Update the rows that it shares with the batch behind, look them up for that one, and hand its vectors
        over."""


def run(stages: Stages, staleness: Staleness, first: int) -> None:
    """All stages of a stream that begins with batch `first`, which exists. Ends with the last batch's update."""
    if staleness.exact:
        _exact(stages, first)
    elif staleness.lag:
        _lagged(stages, first, staleness.lag)
    else:
        _waiting(stages, first)


def _waiting(stages: Stages, first: int) -> None:
    """Staleness 0: ids go ahead, vectors wait for the update before."""
    batch, more = first, stages.plan(first)
    stages.look_up(first)
    while more:
        more = stages.plan(batch + 1)
        stages.take_gradient(batch)
        stages.update(batch)
        batch += 1
        stages.look_up(batch)
    stages.take_gradient(batch)
    stages.update(batch)


def _lagged(stages: Stages, first: int, lag: int) -> None:
    """Vectors go `lag` batches ahead: batch t reads the updates of all up to t-1-lag."""
    planned, more = first - 1, True  # the last batch handed over, and whether one follows it
    while more and planned < first + lag - 1:
        planned += 1
        more = stages.plan(planned)
        stages.look_up(planned)
    if more:
        planned += 1
        more = stages.plan(planned)
        stages.look_up(planned)
    for batch in count(first):
        stages.take_gradient(batch)
        if more:
            planned += 1
            more = stages.advance(batch, planned)
        else:
            stages.update(batch)
            if batch == planned:
                return


def _exact(stages: Stages, first: int) -> None:
    """Rows that two batches in a row share wait for the first one's update; all others go ahead. A step that does not
    split lets all rows wait."""
    following = stages.announce(first)
    stages.look_up(first)
    behind = stages.announce(first + 1) if following else False
    batch = first
    owing = False  # the free rows of the batch before have not had its update
    while following:
        split = stages.splits(batch)
        if owing and split and behind:
            beyond = stages.ahead(batch)
        else:
            if owing:
                stages.update_free(batch - 1)
            if split:
                stages.look_up_free(batch + 1)
            beyond = stages.announce(batch + 2) if behind else False
        stages.take_gradient(batch)
        (stages.turn if split else stages.turn_whole)(batch)
        batch, following, behind, owing = batch + 1, behind, beyond, split
    if owing:
        stages.update_free(batch - 1)
    stages.take_gradient(batch)
    stages.update(batch)
