"""`Block`: some columns of every row of a variable, such as a table whose optimizer slots lie beside its rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from distributed_embeddings.ops import kernels
from distributed_embeddings.ops.table_resource import TableResource


@dataclass(frozen=True)
class Block:
    """Columns of a variable [rows, columns].

    offset: where a row's block begins, bytes behind the row's begin. width: values of `dtype` a row.
    """

    variable: tf.Variable
    offset: int
    width: int
    dtype: tf.DType

    @classmethod
    def whole(cls, variable: tf.Variable) -> Block:
        """All columns of a variable."""
        if not isinstance(variable, tf.Variable):
            raise TypeError(
                "`variable` must be a tf.Variable (of a keras.Variable, pass `.value`, and create it with "
                "autocast=False: under mixed precision `.value` is otherwise a cast copy). "
                f"Received: variable of type {type(variable).__name__}"
            )
        return cls(variable, 0, int(variable.shape[1]), variable.dtype)

    @property
    def num_rows(self) -> int:
        """Rows of the variable."""
        return int(self.variable.shape[0])

    @property
    def is_table(self) -> bool:
        """Whether it is what the variable shows, and no slot beside it."""
        same = self.width == self.variable.shape[1] and self.dtype == self.variable.dtype
        return self.offset == 0 and same

    def read(self, start: int, stop: int) -> np.ndarray:
        """Rows [start, stop) as NumPy [stop - start, width], without a copy of the rest."""
        return self.read_tensor(start, stop).numpy()

    def read_tensor(self, start: int, stop: int) -> tf.Tensor:
        """As `read`, as a tensor; in a tf.function too."""
        if kernels.enabled_for(self.variable):
            return kernels.library().demb_read_block(
                self.variable.handle,
                start,
                stop - start,
                dtype=self.dtype,
                offset=self.offset,
                width=self.width,
            )
        return self.gather(tf.range(start, stop, dtype=tf.int64))

    def write(self, start: int, values: np.ndarray | tf.Tensor) -> None:
        """Overwrite the rows from `start` on; values [n, width], cast to the block's dtype."""
        values = tf.cast(values, self.dtype)
        if kernels.enabled_for(self.variable):
            kernels.library().demb_write_block(
                self.variable.handle, start, values, offset=self.offset, width=self.width
            )
        else:
            self.scatter(tf.range(start, start + len(values), dtype=tf.int64), values)

    def gather(self, rows: tf.Tensor) -> tf.Tensor:
        """Read rows: int64 [n] → [n, width] in the block's dtype.

        Every row must lie in [0, num_rows) (CPU: an error, GPU: not checked). Its gradient with respect to the variable
        is an IndexedSlices.
        """
        # `sparse_read` is ResourceGather on the handle. Any read of the variable's value (ReadVariableOp) would
        # copy the whole table: its first gather or scatter puts a resource variable into copy-on-read mode.
        values = self.variable.sparse_read(rows) if self.is_table else self._from_row(self._whole_rows(rows))
        values.set_shape([None, self.width])
        return values

    def scatter(self, rows: tf.Tensor, values: tf.Tensor) -> None:
        """Overwrite rows in place: rows int64 [n], none twice; values [n, width], cast to the block's dtype."""
        values = tf.cast(values, self.dtype)
        if not self.is_table or isinstance(self.variable, TableResource):
            values = self._into_row(self._whole_rows(rows), values)
        # Measured on CPU (4096 rows of 16 in tables of 100k and 10M rows): gather, compute, ResourceScatterUpdate
        # takes a third of the time of ResourceScatterSub or of ResourceSparseApplyAdagradV2.
        # On the handle: `Variable.scatter_update` would return the variable, which a caller can read whole.
        with tf.device(self.variable.device):
            tf.raw_ops.ResourceScatterUpdate(resource=self.variable.handle, indices=rows, updates=values)

    def _whole_rows(self, rows: tf.Tensor) -> tf.Tensor:
        """Rows with all that lies beside them."""
        return tf.raw_ops.ResourceGather(
            resource=self.variable.handle, indices=rows, dtype=self.variable.dtype
        )

    @property
    def _columns(self) -> slice:
        """The block's columns, counted in elements of the variable."""
        size = self.variable.dtype.size
        start = self.offset // size
        return slice(start, start + self.width * self.dtype.size // size)

    def _from_row(self, rows: tf.Tensor) -> tf.Tensor:
        values = rows[:, self._columns]
        if self.dtype == self.variable.dtype:
            return values
        return tf.bitcast(
            tf.reshape(values, [-1, self.width, self.dtype.size // self.variable.dtype.size]), self.dtype
        )

    def _into_row(self, rows: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
        if self.dtype != self.variable.dtype:
            pieces = tf.bitcast(values, self.variable.dtype)
            values = tf.reshape(pieces, [-1, self._columns.stop - self._columns.start])
        return tf.concat([rows[:, : self._columns.start], values, rows[:, self._columns.stop :]], 1)


def as_block(variable: Block | tf.Variable) -> Block:
    """A block as it is, a variable as the block of all its columns."""
    return variable if isinstance(variable, Block) else Block.whole(variable)
