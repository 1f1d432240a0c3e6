"""A model to a file and back, together on all ranks."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

SUFFIXES = (".keras", ".weights.h5")


def check_path(path: Path) -> None:
    """Raise ValueError unless Keras can write such a file."""
    if not path.name.endswith(SUFFIXES):
        raise ValueError(f"`--save` must end in one of {SUFFIXES}. Received: --save {path}")


def save(model: Any, path: Path, communicator: Any) -> None:
    """Write the model on rank 0: whole tables, so that any number of workers can read them. Collective.

    Written beside and renamed: a reader never sees half a file.
    """
    check_path(path)
    with tempfile.TemporaryDirectory() as scratch:
        # Every rank takes part in gathering the tables; what the others write is thrown away.
        target = path if communicator.rank == 0 else Path(scratch) / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        suffix = next(s for s in SUFFIXES if path.name.endswith(s))
        part = target.with_name(target.name.removesuffix(suffix) + ".part" + suffix)
        (model.save if suffix == ".keras" else model.save_weights)(part)
        part.replace(target)
    communicator.barrier(phase="model saved")


def load(model: Any, path: Path) -> None:
    """Set the model's weights from a file of `save`. Raises FileNotFoundError, ValueError naming it. Collective."""
    check_path(path)
    if not path.is_file():
        raise FileNotFoundError(f"the saved model {path} must exist. Train with --save, or give --weights.")
    model.load_weights(path)
