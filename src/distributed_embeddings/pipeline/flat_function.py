"""Functions over flat lists of tensors, called without TensorFlow's binding of arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


class FlatFunction:
    """A function of tensors of given specs that gives a list of tensors; traced at once, for a trace beside a running
    step would share Keras's state.

    Called through the op that calls functions: a ConcreteFunction first binds, checks and packs every argument.
    Measured on functions of 28, 55 and 110 tensors, captured ones among them: 0.46, 0.85 and 1.36 ms a call, of which
    0.04, 0.36 and 0.56 are left.
    """

    def __init__(
        self, function: Callable[..., Any], specs: Sequence[tf.TensorSpec], *, autograph: bool = False
    ) -> None:
        concrete = tf.function(function, input_signature=list(specs), autograph=autograph)
        self._function = concrete.get_concrete_function()
        self._captured = list(self._function.captured_inputs)
        self._dtypes = [t.dtype for t in self.outputs]

    @property
    def graph(self) -> Any:
        """The trace."""
        return self._function.graph

    @property
    def outputs(self) -> list[tf.Tensor]:
        """Of the trace, flat."""
        return list(self._function.outputs)

    def __call__(self, *tensors: tf.Tensor) -> list[tf.Tensor]:
        found = tf.raw_ops.StatefulPartitionedCall(
            args=[*tensors, *self._captured], Tout=self._dtypes, f=self._function
        )
        return list(found) if self._dtypes else []
