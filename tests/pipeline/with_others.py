"""What several workers run, in one process: the stages with their exchanges, with nobody on the other side."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from distributed_embeddings.pipeline import core


@contextmanager
def as_with_others() -> Iterator[None]:
    """A pipeline built in here does not know that it is alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "is_alone", lambda communicator: False)
        yield
