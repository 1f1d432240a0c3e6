"""The one protocol through which bytes travel between workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

Tensor = Any  # tf.Tensor: TensorFlow ships no type stubs


class Communicator(Protocol):
    """Collectives over `size` workers: tensors in, tensors out, eager or inside `tf.function`.

    Every rank calls the same operations in the same order. `phase` names the operation in errors, watchdog
    lines and traces; ranks compare it. None of the operations is differentiable. dtypes: bool, int8..int64,
    uint8, float16, bfloat16, float32, float64; sums of 16-bit floats accumulate in float32.
    Raises CommunicationError (or a TensorFlow error with the same text inside `tf.function`) on every rank
    when a peer is lost, late beyond the deadline, or in another operation.
    """

    backend: str
    rank: int
    size: int
    local_rank: int
    local_size: int

    def all_to_all(self, values: Tensor, splits: Tensor, *, phase: str) -> tuple[Tensor, Tensor]:
        """Send `splits[d]` rows (axis 0) of `values` [n, ...] to each rank d, in order.

        splits: int64 [size], summing to n. Returns (received rows ordered by source rank, int64 [size] rows a
        source). The trailing shape of `values` is static and equal on all ranks.
        """
        ...

    def all_to_all_parts(
        self, parts: Sequence[tuple[Tensor, Tensor]], *, phase: str
    ) -> list[tuple[Tensor, Tensor]]:
        """Several `all_to_all` in one operation: (values, splits) each, of any dtypes; as many on every rank."""
        ...

    def all_gather(self, values: Tensor, *, phase: str) -> tuple[Tensor, Tensor]:
        """Concatenate all `values` [n_r, ...] on axis 0. Returns (rows, int64 [size] rows a rank)."""
        ...

    def reduce_scatter(self, values: Tensor, splits: Tensor, *, phase: str) -> Tensor:
        """Sum `values` [n, ...] over ranks; rank r keeps its `splits[r]` rows. `splits` are equal on all."""
        ...

    def all_reduce(self, values: Tensor, op: str = "sum", *, phase: str) -> Tensor:
        """Reduce equal shapes: op is "sum", "mean", "max" or "min". Bitwise the same on every rank."""
        ...

    def broadcast(self, values: Tensor, root: int = 0, *, phase: str) -> Tensor:
        """Return `root`'s `values`; shapes and dtypes are equal on all ranks."""
        ...

    def barrier(self, *, phase: str) -> None:
        """Wait for every rank (eager only)."""
        ...

    def duplicate(self, name: str) -> Communicator:
        """A second communicator of the same ranks, for another thread: what happens on one never meets the other.

        name: what errors and watchdog lines call it. Collective, eager only. Raises RuntimeError where threads may not
        communicate beside each other.
        """
        ...

    def when_waiting(self, call: Callable[[], None] | None) -> bool:
        """Call back in every exchange from now on, once this rank has sent its part and only waits; None: no more.

        `call` runs in the exchange's thread and must not raise. Returns False where a backend cannot tell: it never
        calls.
        """
        ...

    def tell_failure(self, text: str) -> None:
        """Make the others' next operation fail with `text`, on every rank, instead of leaving them waiting.

        Returns when they know, or after DEMB_FAREWELL_SECONDS. Never raises.
        """
        ...

    def raised(self, error: BaseException) -> bool:
        """Whether an error came out of this communicator's last operation, and so on every rank."""
        ...

    def explain(self, error: BaseException) -> BaseException:
        """The communication error inside `error`, which TensorFlow wraps in a page of its own; else `error`."""
        ...

    def shutdown(self) -> None:
        """Leave the job with all other ranks. Leaving while others still work is an error on them."""
        ...
