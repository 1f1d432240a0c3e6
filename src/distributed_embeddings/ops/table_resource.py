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


class _ByPython:
    """Stands for a handle where TensorFlow's C++ looks for it.

    Eager ops that are given a ResourceVariable read its handle in C++, all columns of it, slots too, and ask no Python
    for the value. They do so only where `_handle` is an EagerTensor; this is none: `_read_variable_op` is asked.
    """

    def __init__(self, handle: tf.Tensor) -> None:
        self.real = handle

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


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
        self._handle = _ByPython(self._handle)

    @property
    def handle(self) -> tf.Tensor:
        handle = self._handle
        return handle.real if isinstance(handle, _ByPython) else handle

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
        # A shape that is known only when the function runs must not end in a part of the table.
        value = tf.ensure_shape(value, self.shape)
        operation = kernels.library().demb_write_block(
            self.handle, 0, value, offset=0, width=int(self.shape[1])
        )
        return self if read_value else operation

    def assign_add(self, delta: Any, *args: Any, **kwargs: Any) -> Any:
        return self.assign(self + delta, *args, **kwargs)

    def assign_sub(self, delta: Any, *args: Any, **kwargs: Any) -> Any:
        return self.assign(self - delta, *args, **kwargs)

    def gather_nd(self, indices: Any, name: str | None = None) -> tf.Tensor:
        indices = tf.convert_to_tensor(indices)
        rows = self.sparse_read(indices[..., 0])
        if indices.shape[-1] == 1:
            return rows
        return tf.gather(rows, indices[..., 1], batch_dims=indices.shape.rank - 1)

    def scatter_update(self, sparse_delta: tf.IndexedSlices, *args: Any, **kwargs: Any) -> Any:
        return self._write_rows(tf.cast(sparse_delta.indices, tf.int64), sparse_delta.values)

    def scatter_add(self, sparse_delta: tf.IndexedSlices, *args: Any, **kwargs: Any) -> Any:
        rows, sums = self._summed(sparse_delta)
        return self._write_rows(rows, tf.cast(self.sparse_read(rows), tf.float32) + sums)

    def scatter_sub(self, sparse_delta: tf.IndexedSlices, *args: Any, **kwargs: Any) -> Any:
        rows, sums = self._summed(sparse_delta)
        return self._write_rows(rows, tf.cast(self.sparse_read(rows), tf.float32) - sums)

    def _summed(self, slices: tf.IndexedSlices) -> tuple[tf.Tensor, tf.Tensor]:
        """Unique rows and their sums, float32."""
        return kernels.library().demb_sum_slices(
            slices.indices,
            tf.cast(slices.values, tf.float32),
            num_rows=[int(self.shape[0])],
            dims=[int(self.shape[1])],
        )

    def _write_rows(self, rows: tf.Tensor, values: tf.Tensor) -> Any:
        """Overwrite rows and nothing beside them."""
        values = tf.ensure_shape(tf.cast(values, self.dtype), [None, self.shape[1]])
        wide = tf.raw_ops.ResourceGather(resource=self.handle, indices=rows, dtype=self.dtype)
        updates = tf.concat([values, wide[:, self.shape[1] :]], 1)
        tf.raw_ops.ResourceScatterUpdate(resource=self.handle, indices=rows, updates=updates)
        return self

    def _strided_slice_assign(
        self, begin: Any, end: Any, strides: Any, value: Any, name: str | None, **masks: int
    ) -> Any:
        """`table[…].assign(value)`. Copies the table."""
        value = tf.cast(value, self.dtype)
        changed = tf.raw_ops.TensorStridedSliceUpdate(
            input=self.read_value(), begin=begin, end=end, strides=strides, value=value, **masks
        )
        return self.assign(changed)

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        # TensorFlow's own ops of these names would write across the slots, and not all of them check.
        raise NotImplementedError(
            f"table '{self.name}' can be changed by assign, assign_add, assign_sub, scatter_update, scatter_add, "
            "scatter_sub and an assignment to a slice."
        )

    scatter_max = scatter_min = scatter_mul = scatter_div = batch_scatter_update = _refuse
    scatter_nd_update = scatter_nd_add = scatter_nd_sub = scatter_nd_max = scatter_nd_min = _refuse

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
