"""How old the rows may be that a lookup reads: the one argument of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

EXACT = "exact"


@dataclass(frozen=True)
class Staleness:
    """What the lookup for batch t reads: exactly the updates of batches 0 … t-1-lag.

    exact: with lag 0 and the overlap of lag 1: all rows but those of batch t-1 go ahead. depth: batches whose vectors
    may be there before the batch ahead of them has ended.
    """

    lag: int = 0
    exact: bool = False

    @property
    def depth(self) -> int:
        return 1 if self.exact else self.lag

    @property
    def look_ahead(self) -> int:
        """Batches behind the one being trained whose ids the embedding graph reads."""
        return 2 if self.exact else max(1, self.lag)

    def __str__(self) -> str:
        return EXACT if self.exact else str(self.lag)


def parse(value: int | Literal["exact"] | Staleness) -> Staleness:
    """0, 1, 2, … or "exact". Raises ValueError for anything else."""
    if isinstance(value, Staleness):
        return value
    if value == EXACT:
        return Staleness(exact=True)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return Staleness(value)
    raise ValueError(
        f'`staleness` must be "exact" or a number of steps from 0 on. Received: staleness={value!r}'
    )
