"""From data options to a training and a validation source."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from distributed_embeddings.data import (
    CriteoTsv,
    SyntheticClicks,
    TableSlice,
    WeightedInteractions,
    expand_paths,
    load_libfm,
    load_movielens,
)

from .options import DataOptions

_VALID_FRACTION = 0.1


@dataclass(frozen=True)
class Sources:
    """Tables or streams of `data`; best_possible_auc: on the validation rows, where the truth is known."""

    train: Any
    valid: Any | None
    best_possible_auc: float | None = None


def open_sources(options: DataOptions, seed: int) -> Sources:
    """Open what the options name; both sources have a row.

    Raises FileNotFoundError, ValueError naming option or file and line.
    """
    return _OPEN[options.format](options, seed)


def open_evaluation(options: DataOptions, data: str | None, seed: int) -> tuple[Any, float | None]:
    """(source, best possible AUC or None): `data` read as the run read its own, by default its validation data."""
    if data is not None and options.format == "criteo":
        return _criteo_source(options, data, "data"), None
    if data is not None and options.format != "libfm":
        raise ValueError(
            f"`--data` must not be given for a run on {options.format}: its validation rows are evaluated. "
            f"Received: --data {data!r}"
        )
    # libFM tables number their ids over all files of the run: the training file is read again for that.
    sources = open_sources(options if data is None else dataclasses.replace(options, valid=data), seed)
    if sources.valid is None:
        raise ValueError("`--data` must be given: the run had no validation data.")
    return sources.valid, sources.best_possible_auc


def _criteo(options: DataOptions, seed: int) -> Sources:
    valid = None if options.valid is None else _criteo_source(options, options.valid, "valid")
    return Sources(_criteo_source(options, options.data, "data"), valid)


def _criteo_source(options: DataOptions, paths: str, option: str) -> Any:
    reader = CriteoTsv(paths, buckets=options.buckets, strict=options.strict, bad_rows=options.bad_rows)
    source = reader if options.stream else reader.load()
    # Of a stream no more is read here than it takes to see a row.
    has_row = any(map(len, reader.blocks())) if options.stream else source.num_rows > 0
    _require(has_row, option, reader.paths)
    return source


def _synthetic(options: DataOptions, seed: int) -> Sources:
    train = SyntheticClicks(options.rows, seed=seed, stream="train")
    valid = SyntheticClicks(options.valid_rows, seed=seed, stream="valid")
    return Sources(train, valid, valid.best_possible_auc())


def _libfm(options: DataOptions, seed: int) -> Sources:
    paths = [_one_file(options.data, "data")]
    if options.valid is not None:
        paths.append(_one_file(options.valid, "valid"))
    for path, option in zip(paths, ("data", "valid"), strict=False):
        with path.open("rb") as file:
            _require(any(map(bytes.strip, file)), option, [path])
    tables = load_libfm(*paths)
    return Sources(tables[0], tables[1] if len(tables) > 1 else None)


def _movielens(options: DataOptions, seed: int) -> Sources:
    _require_no_valid(options)
    return _held_out(options, *load_movielens(options.data, test_fraction=_VALID_FRACTION, seed=seed))


def _weighted(options: DataOptions, seed: int) -> Sources:
    _require_no_valid(options)
    table = WeightedInteractions(_one_file(options.data, "data"), seed=seed)
    # Rows 2k and 2k + 1 are a pair of one user: both are trained on, or neither.
    pairs = np.random.Generator(np.random.Philox(seed)).permutation(table.num_rows // 2)
    count = round(_VALID_FRACTION * len(pairs))
    rows = [np.sort(np.concatenate([2 * half, 2 * half + 1])) for half in (pairs[count:], pairs[:count])]
    return _held_out(options, TableSlice(table, rows[0]), TableSlice(table, rows[1]))


def _held_out(options: DataOptions, train: Any, valid: Any) -> Sources:
    if not train.num_rows or not valid.num_rows:
        raise ValueError(
            "`--data` must have rows enough to train on and to hold a tenth of them out. "
            f"Received: {train.num_rows + valid.num_rows} rows in {options.data}"
        )
    return Sources(train, valid)


def _require(has_row: bool, option: str, paths: Sequence[Path]) -> None:
    if not has_row:
        named = ", ".join(map(str, paths))
        raise ValueError(f"`--{option}` must have at least one row. Received: none in {named}")


def _one_file(pattern: str, option: str) -> Path:
    paths = expand_paths(pattern)
    if len(paths) != 1:
        raise ValueError(
            f"`--{option}` must name one file for this format. Received: {pattern!r}, {len(paths)} files"
        )
    return paths[0]


def _require_no_valid(options: DataOptions) -> None:
    if options.valid is not None:
        raise ValueError(
            f"`--valid` must not be given for {options.format}: a random tenth of --data is held out. "
            f"Received: --valid {options.valid!r}"
        )


_OPEN: dict[str, Callable[[DataOptions, int], Sources]] = {
    "criteo": _criteo,
    "synthetic": _synthetic,
    "libfm": _libfm,
    "movielens": _movielens,
    "weighted": _weighted,
}
