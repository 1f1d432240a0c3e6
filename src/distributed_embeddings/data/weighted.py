"""Weighted interactions (HetRec Last.fm: user, artist, plays): a user's artists as a weighted, ragged bag."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ._tab import read_tab, to_float
from .features import WEIGHTS_SUFFIX, Columns, Feature, Ragged

HEADER = ("userID", "artistID", "weight")


class WeightedInteractions:
    """A `Table` asking whether a user listens to an artist, given the other artists of that user.

    Rows 2k and 2k + 1 belong to interaction k of the file: first its own artist (label 1), then an artist
    that user does not have, drawn with `seed` (label 0). Features of both: `history`, ragged: the user's
    artists without that of interaction k, `history_weights` = log(1 + weight); `artist`: the candidate.
    Both rows having one history, its length tells nothing about the label. A batch is made when asked for;
    bags are held once a user. Raises FileNotFoundError; ValueError `path:LINE: …` for a bad row, a pair
    given twice, a weight below 0.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, seed: int = 0, header: tuple[str, str, str] = HEADER
    ) -> None:
        users, artists, weights = _read(Path(path), header)
        _, user = np.unique(users, return_inverse=True)
        names, artist = np.unique(artists, return_inverse=True)
        order = np.lexsort((artist, user))
        self._user, self._artist = user[order].astype(np.int64), artist[order].astype(np.int64)
        lengths = np.bincount(self._user).astype(np.int64)
        self._bags = Ragged.from_lengths(self._artist, lengths)
        self._weights = Ragged(np.log1p(weights[order]).astype(np.float32), self._bags.row_splits)
        self._num_artists = len(names)
        self._negative = self._draw_negatives(seed)

    @property
    def features(self) -> tuple[Feature, ...]:
        size = self._num_artists
        return Feature("history", size, None, weighted=True), Feature("artist", size)

    @property
    def num_dense(self) -> int:
        return 0

    @property
    def num_rows(self) -> int:
        return 2 * len(self._user)

    def take(self, rows: NDArray[np.int64]) -> Columns:
        interaction, negative = np.divmod(rows, 2)
        own = self._artist[interaction]
        user = self._user[interaction]
        bags, weights = self._bags.take(user), self._weights.take(user)
        keep = bags.values != np.repeat(own, bags.lengths)
        # Every bag holds the artist of its interaction once, and loses just that one.
        lengths = bags.lengths - 1
        return Columns(
            {
                "history": Ragged.from_lengths(bags.values[keep], lengths),
                "history" + WEIGHTS_SUFFIX: Ragged.from_lengths(weights.values[keep], lengths),
                "artist": np.where(negative == 1, self._negative[interaction], own),
            },
            (1 - negative).astype(np.float32),
        )

    def _draw_negatives(self, seed: int) -> NDArray[np.int64]:
        if len(self._user) and self._bags.lengths.max() >= self._num_artists:
            raise ValueError(
                "Every user must lack at least one artist. Received: a user who has all of them."
            )
        generator = np.random.Generator(np.random.Philox(seed))
        known = self._user * self._num_artists + self._artist
        drawn = generator.integers(0, self._num_artists, len(self._user))
        while True:
            again = np.flatnonzero(np.isin(self._user * self._num_artists + drawn, known))
            if not len(again):
                return drawn
            drawn[again] = generator.integers(0, self._num_artists, len(again))


def _read(path: Path, header: tuple[str, str, str]) -> tuple[list[str], list[str], NDArray[np.float64]]:
    users: list[str] = []
    artists: list[str] = []
    weights: list[float] = []
    seen: set[tuple[str, str]] = set()
    for line, (user, artist, text) in read_tab(path, header):
        weight = to_float(path, line, header[2], text)
        if weight < 0:
            raise ValueError(f"{path}:{line}: {header[2]} must not be negative. Received: {text!r}.")
        if (user, artist) in seen:
            raise ValueError(
                f"{path}:{line}: a pair must be given once. Received: {user!r}, {artist!r} again."
            )
        seen.add((user, artist))
        users.append(user)
        artists.append(artist)
        weights.append(weight)
    if not users:
        raise ValueError(f"{path}: the file must have at least one row after its header. Received: none.")
    return users, artists, np.array(weights, np.float64)
