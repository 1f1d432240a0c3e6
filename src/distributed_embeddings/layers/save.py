"""A `.keras` file from all ranks' tables."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import keras

from distributed_embeddings import comm


def save_model(model: keras.Model, filepath: str | os.PathLike[str], **kwargs: Any) -> None:
    """Save a model with its tables and optimizer slots whole: readable on any number of workers by
    `keras.saving.load_model` (on every rank). Call it on every rank; rank 0 writes `filepath`, last of all by a rename.

    One table at a time is whole in memory, on every rank.
    """
    communicator = comm.current()
    target = Path(filepath)
    with tempfile.TemporaryDirectory() as scratch:
        # The other ranks write a file that nobody reads: Keras walks model and optimizer in its own order, and each
        # table on that way is a collective.
        path = target if communicator.rank == 0 else Path(scratch) / target.name
        partial = path.with_name(f".{path.stem}.partial{path.suffix}")
        model.save(partial, **kwargs)
        partial.replace(path)
        communicator.barrier(phase="save_model")
