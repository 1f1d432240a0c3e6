"""Where a pipeline takes the place of lookups: while a step is traced, and when somebody reads or writes tables."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import tensorflow as tf


class HandOver(Protocol):
    """Stands in for lookups in one trace of a step."""

    def on_lookup(self, layer: Any, ids: Sequence[Any], weights: Sequence[Any]) -> list[Any] | None:
        """Outputs of the layer's features in feature order, float32; None: let the layer look them up itself.

        ids, weights: by `layer.local_inputs`; weights may be None.
        """

    def covers(self, plan: Any) -> bool:
        """Whether the tables of a plan are updated elsewhere."""

    def gradients(self) -> list[tf.Tensor]:
        """Gradients of the vectors handed over, as far as the tape has come."""

    def decide(self, finite: tf.Tensor, scale: tf.Tensor) -> None:
        """The workers' decision on this step: whether it counts (bool), and what its loss was multiplied by."""


class TableGuard(Protocol):
    """Asked before tables or their slots are read or written outside of a step."""

    def before_read(self, what: str) -> None: ...

    def before_write(self, what: str) -> None: ...


_local = threading.local()


def current() -> HandOver | None:
    """What stands in for lookups in this thread's trace; None: nothing does."""
    return getattr(_local, "active", None)


@contextmanager
def handed_over(to: HandOver) -> Iterator[None]:
    """Trace with `to` in the place of lookups."""
    before = current()
    _local.active = to
    try:
        yield
    finally:
        _local.active = before
