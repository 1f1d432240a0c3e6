"""A tf.Variable whose rows may be wider than the table it holds: optimizer slots lie beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

# A subclass of the class that `tf.Variable(...)` makes, so that Keras and TensorFlow see a tf.Variable; one minor
# release of TensorFlow is pinned by the kernels anyway.
from tensorflow.python.ops.resource_variable_ops import ResourceVariable, variable_accessed

from distributed_embeddings.ops import kernels

KERNEL_DTYPES = ("float32", "bfloat16", "float16")


class TableResource(ResourceVariable):
    """A table [rows, columns] of float32, bfloat16 or float16 in huge pages, filled with one value. Only with kernels.

    To everybody it is a tf.Variable of that shape. Every access goes through a kernel that knows the width of the rows
    at run time, so that functions traced before slots were laid beside the rows stay right.
    """

    def __init__(
        self, shape: tuple[int, int], dtype: str, trainable: bool, name: str, fill: float = 0.0
    ) -> None:
        rows, columns = shape
        super().__init__(
            lambda: kernels.library().demb_new_table(tf.constant(shape, tf.int64), dtype=dtype, fill=fill),
            trainable=trainable,
            name=name,
            shape=tf.TensorShape([rows, None]),
        )
        self._shape = tf.TensorShape([rows, columns])

    def widen(
        self,
        columns: int,
        slot_offsets: Sequence[int],
        slot_widths: Sequence[int],
        slot_values: Sequence[float],
    ) -> None:
        """Make rows `columns` wide and fill the slots, float32, by their offsets in bytes; the table stays."""
        kernels.library().demb_resize_rows(
            self.handle,
            columns=columns,
            keep=int(self.shape[1]),
            slot_offsets=list(slot_offsets),
            slot_widths=list(slot_widths),
            slot_values=list(slot_values),
        )

    def _read_variable_op(self, no_copy: bool = False) -> tf.Tensor:
        variable_accessed(self)
        rows, columns = self.shape
        values = kernels.library().demb_read_block(
            self.handle, 0, rows, dtype=self.dtype, offset=0, width=columns
        )
        values.set_shape(self.shape)
        return values

    def sparse_read(self, indices: Any, name: str | None = None) -> tf.Tensor:
        variable_accessed(self)
        (values,), _ = kernels.library().demb_lookup(
            [self.handle],
            [indices],
            [],
            [],
            num_features=1,
            num_rows=[int(self.shape[0])],
            dims=[int(self.shape[1])],
            feature_names=["ids"],
            table_names=[str(self.name).removesuffix(":0")],
            table_of=[0],
            splits_of=[-1],
            weights_of=[-1],
            combiners=["none"],
            invalid_ids="raise",
        )
        return tf.cast(values, self.dtype)

    def assign(
        self, value: Any, use_locking: bool | None = None, name: str | None = None, read_value: bool = True
    ) -> Any:
        value = tf.convert_to_tensor(value, self.dtype)
        if not self.shape.is_compatible_with(value.shape):
            raise ValueError(f"`value` must be of shape {self.shape}. Received: shape={value.shape}")
        operation = kernels.library().demb_write_block(
            self.handle, 0, value, offset=0, width=int(self.shape[1])
        )
        return self if read_value else operation

    def assign_add(self, delta: Any, *args: Any, **kwargs: Any) -> Any:
        return self.assign(self + delta, *args, **kwargs)

    def assign_sub(self, delta: Any, *args: Any, **kwargs: Any) -> Any:
        return self.assign(self - delta, *args, **kwargs)

    def _restore_from_tensors(self, restored_tensors: dict[str, tf.Tensor]) -> Any:
        return self.assign(restored_tensors["VARIABLE_VALUE"], read_value=False)


class TableMemory(keras.Variable):
    """A keras.Variable [rows, columns] filled with one value, in a `TableResource` where kernels can be used.

    Its `.value` is the tf.Variable itself (autocast off): a cast under mixed precision would read the table. Creation
    makes no second copy.
    """

    def __init__(
        self, shape: tuple[int, int], dtype: str, *, fill: float = 0.0, trainable: bool, name: str
    ) -> None:
        self._fill = fill
        # keras.initializers.Constant multiplies a tensor of ones: two temporaries of the table's size. tf.fill is
        # one tensor, and the variable takes it over without a copy.
        super().__init__(
            lambda shape, dtype: tf.fill(tf.constant(shape, tf.int64), tf.constant(fill, dtype)),
            shape=shape,
            dtype=dtype,
            trainable=trainable,
            autocast=False,
            # Keras allows no "/" in a variable's name, and a table may be called by its layer's path.
            name=name.replace("/", "_"),
        )

    def _initialize_with_initializer(self, initializer: Callable[..., tf.Tensor]) -> None:
        if kernels.enabled_for("") and self._dtype in KERNEL_DTYPES:
            self._value = TableResource(
                tuple(self._shape), self._dtype, self.trainable, self.name, self._fill
            )
        else:
            super()._initialize_with_initializer(initializer)


@tf.RegisterGradient("DembReadBlock")
def _read_gradient(op: Any, upstream: tf.Tensor) -> list[Any]:
    """Only whole tables are read under a tape."""
    return [upstream, None, None]
