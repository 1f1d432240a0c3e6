"""Checks of one call's arguments, shared by the backends: the text of what is wrong, or nothing.

A rank whose arguments are wrong still meets the others and tells them, so that all ranks raise.
"""

from __future__ import annotations

from typing import Any

from .reductions import check_op


def splits_error(shape: tuple[int, ...], splits: Any, size: int, phase: str) -> str:
    """`splits` [size] must be row counts that sum to `shape[0]`."""
    rows = shape[0] if shape else -1
    if splits.shape == (size,) and splits.min() >= 0 and int(splits.sum()) == rows:
        return ""
    return (
        f"`splits` must be {size} row counts that sum to the rows of `values`. Received: "
        f"splits={splits.tolist()} for values of shape {tuple(shape)} in {phase!r}"
    )


def op_error(op: str, dtype: Any) -> str:
    """`op` must be known and defined for `dtype`."""
    try:
        check_op(op, dtype)
    except ValueError as error:
        return str(error)
    return ""


def root_error(root: int, size: int, phase: str) -> str:
    """`root` must be a rank."""
    if 0 <= root < size:
        return ""
    return f"`root` must be a rank below {size}. Received: root={root} in {phase!r}"


def scalar_error(shape: tuple[int, ...], phase: str) -> str:
    """`values` must have rows."""
    return "" if shape else f"`values` must have an axis 0. Received: a scalar in {phase!r}"
