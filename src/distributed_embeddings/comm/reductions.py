"""Reductions of parts in rank order: the order is fixed, so every rank and every run gets the same bits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .buffers import Array

OPS = ("sum", "mean", "max", "min")


def check_op(op: str, dtype: np.dtype) -> None:  # type: ignore[type-arg]
    """Raise ValueError unless `op` is known and defined for `dtype`."""
    if op not in OPS:
        raise ValueError(
            f'`op` must be "sum", "mean", "max" or "min". Received: op={op!r} (of type {type(op)})'
        )
    if dtype == np.bool_ and op in ("sum", "mean"):
        raise ValueError(f'`op` must be "max" or "min" for dtype bool: it has no sum. Received: op={op!r}')


def reduce_parts(parts: Sequence[Array], op: str, out: Array) -> None:
    """Write the reduction of equal-shaped `parts` into `out`. 16-bit floats accumulate in float32."""
    narrow = out.dtype.itemsize == 2 and out.dtype.kind not in "iu"
    if op in ("max", "min"):
        _fold(np.maximum if op == "max" else np.minimum, parts, out)
        return
    total = np.empty(out.shape, np.float32) if narrow else out
    _fold(np.add, [part.astype(np.float32) for part in parts] if narrow else parts, total)
    if op == "mean":
        # Integers divide as tf.reduce_mean does: towards minus infinity is NumPy's and Python's rule.
        (np.floor_divide if out.dtype.kind in "iu" else np.divide)(total, len(parts), out=total)
    if narrow:
        out[...] = total.astype(out.dtype)


def _fold(function: np.ufunc, parts: Sequence[Array], out: Array) -> None:
    if len(parts) == 1:
        out[...] = parts[0]
        return
    function(parts[0], parts[1], out=out)
    for part in parts[2:]:
        function(out, part, out=out)
