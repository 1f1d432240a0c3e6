"""Batches of one shard: the same rows in the same global order for any number of shards.

Global batch t is rows [t * G, (t + 1) * G) of the epoch's order; shard i of n gets its contiguous part [i *
m // n, (i + 1) * m // n) of the m rows that batch has (m = G but for a short last batch). Parts differ by
at most one row, every shard sees equally many batches, and a part may be empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .features import Column, Columns, Feature
from .sources import Stream, Table

Batch: TypeAlias = tuple[dict[str, Column], NDArray[np.float32]]
"""(features by name, labels float32 [B]) of one shard."""


class Batches:
    """Per-shard batches of a `Table` or a `Stream`.

    global_batch_size: rows of all shards together. shuffle: a new order each epoch, drawn from (seed,
    epoch); a stream is shuffled inside windows of `shuffle_window` rows. drop_remainder: leave a short last
    global batch out. A table gives each shard only its own rows to fetch; of a stream every shard reads all
    and keeps its part. Raises ValueError naming the argument.
    """

    def __init__(
        self,
        source: Table | Stream,
        global_batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        shard_index: int = 0,
        num_shards: int = 1,
        drop_remainder: bool = False,
        shuffle_window: int = 1_000_000,
    ) -> None:
        for name, value in (
            ("global_batch_size", global_batch_size),
            ("num_shards", num_shards),
            ("shuffle_window", shuffle_window),
        ):
            if value < 1:
                raise ValueError(f"`{name}` must be at least 1. Received: {name}={value}.")
        if not 0 <= shard_index < num_shards:
            raise ValueError(
                f"`shard_index` must be in [0, num_shards). "
                f"Received: shard_index={shard_index}, num_shards={num_shards}."
            )
        self.source = source
        self.global_batch_size = global_batch_size
        self._shuffle, self._seed, self._window = shuffle, seed, shuffle_window
        self._shard, self._num_shards = shard_index, num_shards
        self._drop_remainder = drop_remainder

    @property
    def features(self) -> tuple[Feature, ...]:
        return self.source.features

    @property
    def num_dense(self) -> int:
        return self.source.num_dense

    @property
    def num_batches(self) -> int | None:
        """Batches an epoch, the same on every shard; None for a stream, whose rows nobody has counted."""
        if not isinstance(self.source, Table):
            return None
        full, rest = divmod(self.source.num_rows, self.global_batch_size)
        return full + (rest > 0 and not self._drop_remainder)

    def __iter__(self) -> Iterator[Batch]:
        return self.epoch(0)

    def epoch(self, epoch: int, first_batch: int = 0) -> Iterator[Batch]:
        """The shard's batches of one epoch from global batch `first_batch` on; the two numbers are all the state."""
        parts = (
            self._table_parts(self.source, epoch, first_batch)
            if isinstance(self.source, Table)
            else self._stream_parts(self.source, epoch, first_batch)
        )
        for part in parts:
            yield dict(part.features), part.labels

    def epochs(self, first_epoch: int, num_epochs: int | None, first_batch: int = 0) -> Iterator[Batch]:
        """Epochs one after another, each in its own order; num_epochs None never ends.

        Raises ValueError when an endless or long run would spin on a source without a batch.
        """
        numbers = count(first_epoch) if num_epochs is None else range(first_epoch, first_epoch + num_epochs)
        for number in numbers:
            seen = False
            for batch in self.epoch(number, first_batch if number == first_epoch else 0):
                seen = True
                yield batch
            if not seen and not (number == first_epoch and first_batch):
                raise ValueError(f"`source` must have {self._least()}. Received: fewer in epoch {number}.")

    def to_tf_dataset(self, *, first_epoch: int = 0, num_epochs: int | None = 1, first_batch: int = 0) -> Any:
        """`tf.data.Dataset` of (features, labels float32 [B, 1]); TensorFlow is imported here and not before.

        Features: see `Table`; ragged ones are `tf.RaggedTensor` [B, None], int64 and, for weights, float32.
        B is None in the element spec. `fit` needs `steps_per_epoch=num_batches` when num_epochs is not 1.
        """
        from ._tf_dataset import to_tf_dataset

        return to_tf_dataset(self, first_epoch, num_epochs, first_batch)

    def _least(self) -> str:
        """The rows without which there is no batch."""
        if self._drop_remainder:
            return f"at least one batch of {self.global_batch_size} rows an epoch (drop_remainder=True)"
        return "at least one row an epoch"

    def _part(self, start: int, rows: int) -> NDArray[np.int64]:
        """Positions of this shard in a global batch of `rows` rows that begins at `start`."""
        low = self._shard * rows // self._num_shards
        high = (self._shard + 1) * rows // self._num_shards
        return np.arange(start + low, start + high, dtype=np.int64)

    def _permutation(self, rows: int, *key: int) -> NDArray[np.int64]:
        generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([self._seed, *key])))
        return generator.permutation(rows).astype(np.int64, copy=False)

    def _table_parts(self, table: Table, epoch: int, first_batch: int) -> Iterator[Columns]:
        order = self._permutation(table.num_rows, epoch) if self._shuffle else None
        for start in range(first_batch * self.global_batch_size, table.num_rows, self.global_batch_size):
            rows = min(self.global_batch_size, table.num_rows - start)
            if rows < self.global_batch_size and self._drop_remainder:
                return
            part = self._part(start, rows)
            yield table.take(part if order is None else order[part])

    def _stream_parts(self, stream: Stream, epoch: int, first_batch: int) -> Iterator[Columns]:
        size, number = self.global_batch_size, 0
        rest: Columns | None = None
        for window in self._windows(stream, epoch):
            block = window if rest is None else Columns.concatenate([rest, window])
            whole = len(block) - len(block) % size
            for start in range(0, whole, size):
                if number >= first_batch:
                    yield block.take(self._part(start, size))
                number += 1
            rest = block.take(np.arange(whole, len(block), dtype=np.int64))
        if rest is not None and len(rest) and number >= first_batch and not self._drop_remainder:
            yield rest.take(self._part(0, len(rest)))

    def _windows(self, stream: Stream, epoch: int) -> Iterator[Columns]:
        """The stream's rows in the epoch's order, in pieces of any size."""
        if not self._shuffle:
            yield from stream.blocks()
            return
        held: list[Columns] = []
        number = 0
        for block in stream.blocks():
            held.append(block)
            if sum(map(len, held)) >= self._window:
                yield self._shuffled(held, epoch, number)
                held, number = [], number + 1
        if held:
            yield self._shuffled(held, epoch, number)

    def _shuffled(self, held: list[Columns], epoch: int, number: int) -> Columns:
        window = Columns.concatenate(held)
        return window.take(self._permutation(len(window), epoch, number))
