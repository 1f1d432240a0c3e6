"""MovieLens 100K in RecBole's .inter/.item/.user files: one-hot users and items, multi-hot (ragged) genres."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ._tab import read_tab, to_float
from .features import Column, Feature, Ragged
from .sources import InMemoryTable, TableSlice

# The age groups of MovieLens 1M: under 18, 18-24, 25-34, 35-44, 45-49, 50-55, 56 and over.
AGE_LIMITS = (18, 25, 35, 45, 50, 56)


def load_movielens(
    directory: str | os.PathLike[str],
    *,
    name: str = "ml-100k",
    like_from: float = 4.0,
    test_fraction: float = 0.1,
    seed: int = 0,
) -> tuple[TableSlice, TableSlice]:
    """(train, test), a seeded random split of the ratings in `directory`/`name`.inter, .item and .user.

    Features: user_id, item_id, age (group), gender, occupation, one id each, and genres, ragged. Ids number
    the tokens in sorted order, so they do not depend on the split. Label: rating >= like_from. Raises
    FileNotFoundError; ValueError `path:LINE: …`, also for a rating of an unknown user or item.
    """
    base = Path(directory)
    users, user_columns, user_features = _users(base / f"{name}.user")
    items, genres, genre_feature = _items(base / f"{name}.item")
    user_rows, item_rows, ratings = _ratings(base / f"{name}.inter", users, items)
    columns: dict[str, Column] = {
        "user_id": user_rows,
        "item_id": item_rows,
        "genres": genres.take(item_rows),
    }
    columns |= {key: values[user_rows] for key, values in user_columns.items()}
    features = [Feature("user_id", len(users)), Feature("item_id", len(items)), genre_feature, *user_features]
    labels = (ratings >= like_from).astype(np.float32)
    return InMemoryTable(columns, labels, features).split(test_fraction, seed)


def _users(path: Path) -> tuple[dict[str, int], dict[str, NDArray[np.int64]], list[Feature]]:
    rows = sorted(
        (fields[0], to_float(path, line, "age", fields[1]), fields[2], fields[3])
        for line, fields in read_tab(path, ("user_id", "age", "gender", "occupation", "zip_code"))
    )
    genders, occupations = _numbered([row[2] for row in rows]), _numbered([row[3] for row in rows])
    columns = {
        "age": np.digitize([row[1] for row in rows], AGE_LIMITS).astype(np.int64),
        "gender": np.array([genders[row[2]] for row in rows], np.int64),
        "occupation": np.array([occupations[row[3]] for row in rows], np.int64),
    }
    sizes = (len(AGE_LIMITS) + 1, len(genders), len(occupations))
    features = [Feature(key, size) for key, size in zip(columns, sizes, strict=True)]
    return {row[0]: number for number, row in enumerate(rows)}, columns, features


def _items(path: Path) -> tuple[dict[str, int], Ragged, Feature]:
    fields = [row for _, row in read_tab(path, ("item_id", "movie_title", "release_year", "class"))]
    rows = sorted((row[0], row[3].split()) for row in fields)
    genres = _numbered([genre for _, row in rows for genre in row])
    ragged = Ragged.from_rows([[genres[genre] for genre in row] for _, row in rows], np.int64)
    return {item: i for i, (item, _) in enumerate(rows)}, ragged, Feature("genres", len(genres), None)


def _ratings(
    path: Path, users: dict[str, int], items: dict[str, int]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    found: tuple[list[int], list[int], list[float]] = ([], [], [])
    for line, (user, item, rating, _) in read_tab(path, ("user_id", "item_id", "rating", "timestamp")):
        for what, token, known in (("user", user, users), ("item", item, items)):
            if token not in known:
                raise ValueError(
                    f"{path}:{line}: the {what} must be in the .{what} file. Received: {token!r}."
                )
        found[0].append(users[user])
        found[1].append(items[item])
        found[2].append(to_float(path, line, "rating", rating))
    if not found[0]:
        raise ValueError(f"{path}: the file must have at least one rating after its header. Received: none.")
    return np.array(found[0], np.int64), np.array(found[1], np.int64), np.array(found[2], np.float64)


def _numbered(tokens: Sequence[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate(sorted(set(tokens)))}
