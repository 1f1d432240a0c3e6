"""Defaults that suit the data, and named sets of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from .options import DataOptions, TrainOptions

_PLAIN: dict[str, Any] = {"wide": False, "dropout": 0.0, "embedding_l2": 0.0}
_CLICKS = {**_PLAIN, "model": "dlrm", "embedding_dim": 8, "bottom_mlp": (64, 32), "top_mlp": (64, 32)}
_FIELDS = {**_PLAIN, "model": "dlrm", "embedding_dim": 16, "bottom_mlp": (), "top_mlp": (64, 32)}
_BAGS = {**_FIELDS, "model": "bags"}

_NETWORK: dict[str, dict[str, Any]] = {
    "criteo": {**_CLICKS, "wide": True},
    "synthetic": _CLICKS,
    "libfm": _FIELDS,
    "movielens": _BAGS,
    "weighted": _BAGS,
}

_ADAM: dict[str, Any] = {"optimizer": "adam", "learning_rate": 1e-3}
_TRAINING: dict[str, dict[str, Any]] = {
    "criteo": {**_ADAM, "batch_size": 128, "epochs": 5},
    "synthetic": {**_ADAM, "batch_size": 2048, "epochs": 1, "learning_rate": 2e-3},
    "libfm": {**_ADAM, "batch_size": 512, "epochs": 6},
    "movielens": {**_ADAM, "batch_size": 512, "epochs": 8},
    "weighted": {**_ADAM, "batch_size": 512, "epochs": 3},
}

PRESETS: dict[str, TrainOptions] = {
    "demo": TrainOptions(
        preset="demo", inputs=DataOptions(data="synthetic", rows=1_500_000, valid_rows=50_000)
    ),
    "demo-long": TrainOptions(
        preset="demo-long", inputs=DataOptions(data="synthetic", rows=8_000_000, valid_rows=200_000)
    ),
}


def resolve(options: TrainOptions) -> TrainOptions:
    """Every None that stands for "as the data suits" filled in; the format found."""
    kind = find_format(options.inputs)
    inputs = dataclasses.replace(options.inputs, format=kind)
    network = _filled(options.network, _NETWORK[kind])
    return _filled(dataclasses.replace(options, inputs=inputs, network=network), _TRAINING[kind])


def find_format(inputs: DataOptions) -> Any:
    """The format given, or told by the name of the data."""
    if inputs.format != "auto":
        return inputs.format
    if inputs.data == "synthetic":
        return "synthetic"
    path = Path(inputs.data)
    if path.is_dir() and list(path.glob("*.inter")):
        return "movielens"
    return {".libfm": "libfm", ".dat": "weighted"}.get(path.suffix, "criteo")


def _filled(options: Any, defaults: dict[str, Any]) -> Any:
    missing = {name: value for name, value in defaults.items() if getattr(options, name) is None}
    return dataclasses.replace(options, **missing)
