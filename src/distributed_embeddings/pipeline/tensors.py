"""Structures of tensors as flat lists, and back: functions of a graph take and give flat lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


class Form:
    """The form of a structure of tensors, ragged and sparse ones too; None in it stays None."""

    def __init__(self, structure: Any) -> None:
        self._structure = structure
        leaves = tf.nest.flatten(structure, expand_composites=True)
        self._present = [leaf is not None for leaf in leaves]
        self.size = sum(self._present)

    def pack(self, flat: Sequence[Any]) -> Any:
        """The structure with these tensors in it."""
        given = iter(flat)
        leaves = [next(given) if here else None for here in self._present]
        return tf.nest.pack_sequence_as(self._structure, leaves, expand_composites=True)


def flatten(structure: Any) -> list[Any]:
    """The tensors of a structure, without its Nones."""
    return [t for t in tf.nest.flatten(structure, expand_composites=True) if t is not None]


def any_batch(spec: Any) -> Any:
    """A TensorSpec, ragged or sparse too, with a first axis of any length."""
    if isinstance(spec, tf.RaggedTensorSpec):
        shape = tf.TensorShape([None, *spec.shape[1:]])
        return tf.RaggedTensorSpec(shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype)
    if isinstance(spec, tf.SparseTensorSpec):
        return tf.SparseTensorSpec(tf.TensorShape([None, *spec.shape[1:]]), spec.dtype)
    if spec.shape.rank:
        return tf.TensorSpec(tf.TensorShape([None, *spec.shape[1:]]), spec.dtype)
    return tf.TensorSpec(spec.shape, spec.dtype)


def specs_of(tensors: Sequence[tf.Tensor]) -> list[tf.TensorSpec]:
    """Specs of the tensors of a graph, for the function that takes them next."""
    return [tf.TensorSpec(t.shape, t.dtype) for t in tensors]
