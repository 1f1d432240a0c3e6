"""What is kept of a run: config.json, result.json."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import time
from pathlib import Path
from typing import Any

from .options import TrainOptions, to_dict, train_options


def create_run_dir(kind: str) -> Path:
    """A new directory runs/<format>-<local time>, with a number where that exists; nobody else's."""
    base = Path("runs") / f"{kind}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in itertools.count(1):
        path = base if number == 1 else base.with_name(f"{base.name}-{number}")
        # Asking first and making it later would give two runs of one second the same directory.
        with contextlib.suppress(FileExistsError):
            path.mkdir(parents=True, exist_ok=False)
            break
    return path


def write_json(path: Path, value: Any) -> None:
    """Write JSON; numbers that JSON cannot say (NaN, infinities) become null."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_finite(value), indent=2) + "\n")


def read_config(run: Path) -> TrainOptions:
    """The options of a run. Raises FileNotFoundError, ValueError naming the file."""
    path = run / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{run} must be the directory of a run. Received: no {path}")
    try:
        return train_options(json.loads(path.read_text()))
    except ValueError as error:
        raise ValueError(
            f"{path} must be a run's config as `demb train` wrote it. Received: {error}"
        ) from error


def config_text(options: TrainOptions) -> str:
    return json.dumps(to_dict(options), indent=2)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
