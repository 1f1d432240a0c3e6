"""A model to a `.keras` file and back, together on all ranks."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any


def check_path(path: Path) -> None:
    """Raise ValueError unless the name is that of a Keras model."""
    if path.suffix != ".keras":
        raise ValueError(f"the saved model must be named *.keras. Received: {path}")


def save(model: Any, path: Path) -> None:
    """Write the model on rank 0, whole tables: any number of workers can read it. Collective."""
    import distributed_embeddings.dist_model_parallel as dmp

    path.parent.mkdir(parents=True, exist_ok=True)
    dmp.save_model(model, path)


def load(model: Any, path: Path) -> None:
    """Set a built model's weights from a file of `save`. Raises FileNotFoundError, ValueError. Collective."""
    check_path(path)
    if not path.is_file():
        raise FileNotFoundError(f"the saved model {path} must exist. Train with --save, or give --weights.")
    try:
        model.load_weights(path)
    # What zipfile, h5py and Keras raise for a damaged file or another model's; none of them says which file.
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, OSError, ValueError) as error:
        raise ValueError(
            f"the saved model {path} must be a whole file written by `demb train --save` for this run. "
            f"Received: {type(error).__name__}: {error}"
        ) from error
