"""The arithmetic of a report."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Summary:
    """Seconds of one competitor's phase: the median over rounds of the turns' medians, and the fastest step."""

    median: float
    minimum: float
    rounds: int


@dataclass(frozen=True)
class Ratio:
    """Ratio of medians, with the least and the greatest of the rounds' own ratios."""

    value: float
    low: float
    high: float

    def text(self, digits: int = 2) -> str:
        return f"{self.value:.{digits}f} [{self.low:.{digits}f}–{self.high:.{digits}f}]"


def summarise(turns: Sequence[Sequence[float]]) -> Summary:
    """turns[round]: seconds of each step. Raises ValueError when there is none."""
    if not turns or not all(turns):
        raise ValueError(f"`turns` must hold at least one step a round. Received: turns={turns}")
    medians = [statistics.median(turn) for turn in turns]
    return Summary(statistics.median(medians), min(min(turn) for turn in turns), len(turns))


def ratio(over: Sequence[Sequence[float]], under: Sequence[Sequence[float]]) -> Ratio:
    """over ÷ under; round i of one belongs to round i of the other."""
    if len(over) != len(under):
        raise ValueError(
            f"both sides must have the same rounds. Received: {len(over)} rounds over {len(under)}"
        )
    each = [statistics.median(a) / statistics.median(b) for a, b in zip(over, under, strict=True)]
    return Ratio(summarise(over).median / summarise(under).median, min(each), max(each))


def geometric_mean(values: Sequence[float]) -> float:
    """exp(mean(log)); raises ValueError for no values or values ≤ 0."""
    if not values or min(values) <= 0:
        raise ValueError(f"`values` must be positive and at least one. Received: values={list(values)}")
    return math.exp(statistics.fmean(map(math.log, values)))
