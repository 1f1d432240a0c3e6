"""A click stream shaped like Criteo's with a planted truth: any number of rows, best AUC known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ._planted import PlantedTruth, auc
from ._power_law import coprime_step, power_law_ranks
from .criteo import CATEGORICAL_NAMES, log_transform
from .features import DENSE, Columns, Feature
from .hashing import counter_bits, key64, normal_pairs, unit_interval

NUM_DENSE = 13
NUM_CATEGORICAL = 26
DEFAULT_VOCABULARY_SIZES = (
    50, 100, 20, 30, 1000, 10, 500, 200, 10, 5000, 2000, 10000, 1000,
    25, 1500, 8000, 12, 700, 300, 10, 20000, 15, 12, 3000, 60, 1200,
)  # fmt: skip

_CALIBRATION_ROWS = 16384
_CHUNK = 65536
# One slot a number (in pairs, so one more), one a categorical feature, one for the click.
_SLOTS = NUM_DENSE + 1 + NUM_CATEGORICAL + 1
# Rates of missing values by column, over and over: some columns are whole, some full of holes, as in Criteo.
_MISSING_DENSE = np.array([0.0, 0.2, 0.1, 0.0, 0.4])
_MISSING_ID = np.array([0.0, 0.0, 0.1, 0.0, 0.0, 0.3])


@dataclass(frozen=True)
class RawClicks:
    """Rows before any transform: numbers int64 and missing bool [B, 13]; ids int64 [B, 26], 0 = missing."""

    labels: NDArray[np.float32]
    numbers: NDArray[np.int64]
    missing: NDArray[np.bool_]
    ids: NDArray[np.int64]


class SyntheticClicks:
    """A `Table` whose row r is a pure function of (seed, stream, r): any worker can draw any row.

    stream: rows of differently named streams are independent, their truth is the same: "train", "valid", …
    of one seed. vocabulary_sizes: 26 numbers of ids, id 0 being "missing". exponent: of the Zipf-like law
    P(rank) ~ rank^-exponent (continuous power law, floored). base_rate: mean click probability. logit_std:
    how much the truth says; the default gives a best possible AUC near 0.80. Raises ValueError naming the
    argument.
    """

    def __init__(
        self,
        num_rows: int,
        *,
        seed: int = 0,
        stream: str = "train",
        vocabulary_sizes: Sequence[int] = DEFAULT_VOCABULARY_SIZES,
        exponent: float = 1.05,
        base_rate: float = 0.25,
        logit_std: float = 1.4,
    ) -> None:
        _check(num_rows, vocabulary_sizes, exponent, base_rate, logit_std)
        self._num_rows = num_rows
        self._sizes = np.array(vocabulary_sizes, np.int64)
        self._exponent = exponent
        self._steps = np.array([coprime_step(int(size) - 1) for size in vocabulary_sizes], np.int64)
        self._key = key64(seed, *stream.encode())
        # The sample has a key of its own: the truth is the same for every stream.
        numbers, missing, ids, _ = self._inputs(key64(seed, 0x63616C), np.arange(_CALIBRATION_ROWS))
        dense = _dense(numbers, missing)
        self._truth = PlantedTruth.calibrated(seed, self._sizes, dense, ids, base_rate, logit_std)

    @property
    def features(self) -> tuple[Feature, ...]:
        return tuple(
            Feature(name, int(size)) for name, size in zip(CATEGORICAL_NAMES, self._sizes, strict=True)
        )

    @property
    def num_dense(self) -> int:
        return NUM_DENSE

    @property
    def num_rows(self) -> int:
        return self._num_rows

    def take(self, rows: NDArray[np.int64]) -> Columns:
        raw = self.raw(rows)
        dense = _dense(raw.numbers, raw.missing)
        # One copy lays each feature out by itself: 26 strided columns would be copied one by one later.
        by_feature = np.ascontiguousarray(raw.ids.T)
        return Columns({DENSE: dense, **dict(zip(CATEGORICAL_NAMES, by_feature, strict=True))}, raw.labels)

    def raw(self, rows: NDArray[np.int64]) -> RawClicks:
        """Rows as `write_criteo_tsv` writes them."""
        return self._scored_rows(rows)[0]

    def probabilities(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """The true click probability of each row, float64 [B]."""
        return self._scored_rows(rows)[1]

    def best_possible_auc(self, num_rows: int | None = None) -> float:
        """AUC of the true probabilities against the labels of the first `num_rows` rows (default: all).

        No model that has not seen these labels can be expected to beat it on these rows.
        """
        probabilities, labels = self._scored(num_rows)
        return auc(probabilities, labels)

    def expected_best_auc(self, num_rows: int | None = None) -> float:
        """The same without the luck of these labels: expectation over labels drawn from the probabilities."""
        probabilities, _ = self._scored(num_rows)
        return auc(probabilities, probabilities)

    def _scored(self, num_rows: int | None) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        total = self._num_rows if num_rows is None else num_rows
        if not 1 <= total <= self._num_rows:
            raise ValueError(f"`num_rows` must be in [1, {self._num_rows}]. Received: {total}.")
        probabilities, labels = np.empty(total), np.empty(total)
        for start in range(0, total, _CHUNK):
            stop = min(start + _CHUNK, total)
            raw, probabilities[start:stop] = self._scored_rows(np.arange(start, stop))
            labels[start:stop] = raw.labels
        return probabilities, labels

    def _scored_rows(self, rows: NDArray[np.int64]) -> tuple[RawClicks, NDArray[np.float64]]:
        numbers, missing, ids, coin = self._inputs(self._key, rows)
        probabilities = self._truth.probabilities(_dense(numbers, missing), ids)
        return RawClicks((coin < probabilities).astype(np.float32), numbers, missing, ids), probabilities

    def _inputs(
        self, key: int, rows: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64], NDArray[np.float64]]:
        """Numbers, which of them are missing, ids, and the uniform number that decides the click."""
        bits = counter_bits(key, rows, _SLOTS)
        numbers, missing = _numbers(bits[:, : NUM_DENSE + 1])
        return numbers, missing, self._ids(bits[:, NUM_DENSE + 1 : -1]), unit_interval(bits[:, -1])

    def _ids(self, bits: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Ids 1 … size - 1 by a power law over ranks, the ranks scattered over the ids; 0 for missing."""
        rank = power_law_ranks(unit_interval(bits), self._sizes - 1, self._exponent)
        # The frequent ids must not be neighbours: a table cut into ranges of rows would have all its load
        # in one.
        ids = 1 + (rank * self._steps) % (self._sizes - 1)
        ids[_chance(bits, _MISSING_ID)] = 0
        return ids


def _numbers(bits: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Counts, log-normal with another centre and spread a column; I2 reaches down to -2 as Criteo's does."""
    u = unit_interval(bits)
    half = u.shape[1] // 2
    normals = np.concatenate(normal_pairs(u[:, :half], u[:, half:]), axis=1)[:, :NUM_DENSE]
    centre = np.linspace(0.5, 4.0, NUM_DENSE)
    spread = np.linspace(1.0, 1.6, NUM_DENSE)[::-1]
    numbers = np.floor(np.exp(centre + spread * normals)).astype(np.int64)
    numbers[:, 1] -= 2
    return numbers, _chance(bits[:, :NUM_DENSE], _MISSING_DENSE)


def _chance(bits: NDArray[np.uint64], rates: NDArray[np.float64]) -> NDArray[np.bool_]:
    """True at the columns' rates, from the 11 low bits that `unit_interval` leaves unused."""
    limits = np.resize(np.round(rates * 2048), bits.shape[1]).astype(np.uint64)
    hit: NDArray[np.bool_] = (bits & np.uint64(0x7FF)) < limits
    return hit


def _dense(numbers: NDArray[np.int64], missing: NDArray[np.bool_]) -> NDArray[np.float32]:
    return log_transform(np.where(missing, np.nan, numbers))


def _check(
    num_rows: int, vocabulary_sizes: Sequence[int], exponent: float, base_rate: float, logit_std: float
) -> None:
    if num_rows < 1:
        raise ValueError(f"`num_rows` must be at least 1. Received: {num_rows}.")
    # rank * step must stay below 2^63.
    if len(vocabulary_sizes) != NUM_CATEGORICAL or not all(2 <= size < 1 << 31 for size in vocabulary_sizes):
        raise ValueError(
            f"`vocabulary_sizes` must be {NUM_CATEGORICAL} numbers in [2, 2^31). "
            f"Received: {tuple(vocabulary_sizes)}."
        )
    if exponent < 0:
        raise ValueError(f"`exponent` must not be negative. Received: {exponent}.")
    if not 0 < base_rate < 1:
        raise ValueError(f"`base_rate` must be between 0 and 1. Received: {base_rate}.")
    if logit_std < 0:
        raise ValueError(f"`logit_std` must not be negative. Received: {logit_std}.")
