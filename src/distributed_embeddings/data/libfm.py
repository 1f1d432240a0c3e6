"""libFM text as the Frappe files have it: a label and one `id:1` a field, ids numbered over all fields."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .features import Column, Feature
from .sources import InMemoryTable

FRAPPE_FIELDS = (
    "user", "item", "daytime", "weekday", "isweekend", "homework", "cost", "weather", "country", "city",
)  # fmt: skip

_PAIR = re.compile(r"([0-9]{1,18}):1(?:\.0*)?")
_LABELS = {"1": 1, "+1": 1, "-1": 0, "0": 0}


def load_libfm(
    *paths: str | os.PathLike[str], fields: Sequence[str] = FRAPPE_FIELDS
) -> tuple[InMemoryTable, ...]:
    """One table a file, all with the same features: one for each field, in order, one id a sample.

    Each field's ids lie in a range of their own; its feature's ids count from the start of that range,
    taken over all files given together (so give training and test files in one call). Labels 1 → 1, -1 or 0
    → 0. Raises FileNotFoundError; ValueError `path:LINE: …` for a bad label, field or number of fields.
    """
    parsed = [_parse(Path(path), len(fields)) for path in paths]
    ids = np.concatenate([matrix for _, matrix in parsed]) if parsed else np.empty((0, len(fields)), np.int64)
    if not len(ids):
        raise ValueError(
            f"`paths` must name at least one file with a row. Received: {[str(path) for path in paths]}."
        )
    low, high = ids.min(axis=0), ids.max(axis=0)
    features = [Feature(name, int(size)) for name, size in zip(fields, high - low + 1, strict=True)]
    tables = []
    for labels, matrix in parsed:
        columns: dict[str, Column] = {name: matrix[:, i] - low[i] for i, name in enumerate(fields)}
        tables.append(InMemoryTable(columns, labels, features))
    return tuple(tables)


def _parse(path: Path, num_fields: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    labels: list[int] = []
    ids: list[list[int]] = []
    with path.open(encoding="latin-1") as file:
        for number, line in enumerate(file, 1):
            tokens = line.split()
            if not tokens:
                continue
            if tokens[0] not in _LABELS:
                raise ValueError(f"{path}:{number}: the label must be 1, -1 or 0. Received: {tokens[0]!r}.")
            if len(tokens) != num_fields + 1:
                raise ValueError(
                    f"{path}:{number}: a row must have {num_fields} fields after the label. "
                    f"Received: {len(tokens) - 1}."
                )
            labels.append(_LABELS[tokens[0]])
            ids.append([_field_id(path, number, token) for token in tokens[1:]])
    return np.array(labels, np.float32), np.array(ids, np.int64).reshape(-1, num_fields)


def _field_id(path: Path, number: int, token: str) -> int:
    match = _PAIR.fullmatch(token)
    if match is None:
        raise ValueError(
            f"{path}:{number}: a field must be 'id:1' (one id of weight 1). Received: {token!r}."
        )
    return int(match[1])
