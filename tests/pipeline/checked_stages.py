"""Stages of a pretend embedding graph that check the pipeline's invariants while a schedule runs them.

A table is a version log: for each row, the batches whose updates it has had, in order.
"""

from __future__ import annotations

from collections import defaultdict

from distributed_embeddings.pipeline.schedule import run
from distributed_embeddings.pipeline.staleness import Staleness

NEVER = -1  # the stamp of a row that nothing has announced


class Violation(AssertionError):
    """A schedule or a stage broke an invariant."""


def require(holds: bool, what: str) -> None:
    if not holds:
        raise Violation(what)


class CheckedStages:
    """`schedule.Stages` over sets of rows. batches: the rows of batch `first`, of the one behind it, …"""

    def __init__(
        self,
        batches: list[set[int]],
        staleness: Staleness,
        first: int = 0,
        whole: frozenset[int] = frozenset(),
    ) -> None:
        """whole: batches whose steps do not split, counted from the first."""
        self.whole = whole
        self.rows = {first + i: rows for i, rows in enumerate(batches)}
        self.staleness, self.first, self.end = staleness, first, first + len(batches)
        self.stamps: dict[int, int] = {}
        self.forward: dict[int, set[int]] = {}  # rows of a batch that it shares with the one before
        self.backward: dict[int, set[int]] = defaultdict(set)  # … with the one behind
        self.versions: dict[int, list[int]] = defaultdict(list)
        self.planned: list[int] = []
        self.reads: dict[int, dict[int, tuple[int, ...]]] = defaultdict(dict)
        self.writes: dict[int, set[int]] = defaultdict(set)
        self.handed_over: list[int] = []
        self.gradients: list[int] = []
        self.retired: list[int] = []
        self.log: list[tuple[str, int]] = []

    # The stages

    def plan(self, batch: int) -> bool:
        self.log.append(("plan", batch))
        require(batch == self.first + len(self.planned), f"batch {batch} is planned out of order")
        require(batch < self.end, f"batch {batch} does not exist")
        self.planned.append(batch)
        alive = len(self.planned) - len(self.retired)
        require(alive <= self.staleness.depth + 2, f"{alive} plans are alive")
        ahead = batch - (self.gradients[-1] + 1 if self.gradients else self.first)
        require(ahead <= self.staleness.look_ahead, f"batch {batch} is read {ahead} ahead")
        return batch + 1 < self.end

    def announce(self, batch: int) -> bool:
        more = self.plan(batch)
        self.log.append(("announce", batch))
        rows, before = self.rows[batch], self.rows.get(batch - 1, set())
        self.forward[batch] = self.shared(rows, batch - 1)
        self.stamps.update(dict.fromkeys(rows, batch))
        self.backward[batch - 1] = self.shared(before, batch)
        return more

    def look_up(self, batch: int) -> None:
        self.log.append(("look_up", batch))
        self.read(batch, self.rows[batch])
        self.hand_over(batch)

    def look_up_free(self, batch: int) -> None:
        self.log.append(("look_up_free", batch))
        require(batch in self.forward, f"the conflicts of batch {batch} are not known")
        self.read(batch, self.rows[batch] - self.forward[batch])

    def take_gradient(self, batch: int) -> None:
        self.log.append(("take_gradient", batch))
        require(batch in self.handed_over, f"batch {batch} has a gradient before it has vectors")
        require(batch == self.first + len(self.gradients), f"the gradient of batch {batch} is out of order")
        self.gradients.append(batch)

    def update(self, batch: int) -> None:
        self.log.append(("update", batch))
        self.write(batch, self.rows[batch])
        self.retire(batch)

    def update_free(self, batch: int) -> None:
        self.log.append(("update_free", batch))
        self.write(batch, self.rows[batch] - self.backward[batch])
        self.retire(batch)

    def turn(self, batch: int) -> None:
        self.log.append(("turn", batch))
        self.write(batch, self.backward[batch])
        self.read(batch + 1, self.forward[batch + 1])
        self.hand_over(batch + 1)

    def splits(self, batch: int) -> bool:
        return batch - self.first not in self.whole

    # Merged stages: the single ones, in their order

    def advance(self, batch: int, ahead: int) -> bool:
        self.update(batch)
        more = self.plan(ahead)
        self.look_up(ahead)
        return more

    def turn_whole(self, batch: int) -> None:
        self.update(batch)
        self.look_up(batch + 1)

    def ahead(self, batch: int) -> bool:
        self.update_free(batch - 1)
        self.look_up_free(batch + 1)
        return self.announce(batch + 2)

    # What they do to the tables

    def shared(self, rows: set[int], batch: int) -> set[int]:
        return {r for r in rows if self.stamps.get(r, NEVER) == batch}

    def read(self, batch: int, rows: set[int]) -> None:
        """Every row has had exactly the updates of batches 0 … batch-1-lag: with no lag, no earlier batch that was
        announced has still to write it."""
        require(batch in self.planned, f"the rows of batch {batch} are not known")
        for row in rows:
            require(row not in self.reads[batch], f"row {row} is read twice for batch {batch}")
            due = [b for b in range(self.first, batch - self.staleness.lag) if row in self.rows[b]]
            had = self.versions[row]
            require(had == due, f"row {row} is read for batch {batch} after the updates {had}, not {due}")
            self.reads[batch][row] = tuple(had)
        alive = len(set(self.reads) - set(self.gradients))
        require(alive <= self.staleness.depth + 1, f"the vectors of {alive} batches are alive")

    def write(self, batch: int, rows: set[int]) -> None:
        require(batch in self.gradients, f"batch {batch} is applied without a gradient")
        for row in rows:
            require(row not in self.writes[batch], f"row {row} is written twice for batch {batch}")
            # Batches may pass each other on rows they do not share; on one row never.
            require(not self.versions[row] or self.versions[row][-1] < batch, f"updates of row {row} swapped")
            late = [b for b in self.handed_over if b > batch and row in self.rows[b]]
            require(
                self.staleness.lag > 0 or not late,
                f"batch {batch} writes row {row} after the hand-over of {late}",
            )
            self.versions[row].append(batch)
            self.writes[batch].add(row)

    def hand_over(self, batch: int) -> None:
        require(batch == self.first + len(self.handed_over), f"batch {batch} is handed over out of order")
        require(set(self.reads[batch]) == self.rows[batch], f"batch {batch} is handed over with rows unread")
        self.handed_over.append(batch)

    def retire(self, batch: int) -> None:
        require(batch == self.first + len(self.retired), f"batch {batch} is retired out of order")
        require(self.writes[batch] == self.rows[batch], f"batch {batch} is retired with rows not updated")
        self.retired.append(batch)

    def check_end(self) -> None:
        """Everything has happened, once."""
        everything = list(range(self.first, self.end))
        for name in ("planned", "handed_over", "gradients", "retired"):
            require(getattr(self, name) == everything, f"{name}: {getattr(self, name)}")
        for row in set().union(*self.rows.values()):
            due = [b for b in everything if row in self.rows[b]]
            require(self.versions[row] == due, f"row {row} has had {self.versions[row]}, not {due}")


def run_checked(stages: CheckedStages, schedule=run) -> CheckedStages:
    """Run a schedule over stages to its end; raises Violation."""
    schedule(stages, stages.staleness, stages.first)
    stages.check_end()
    return stages
