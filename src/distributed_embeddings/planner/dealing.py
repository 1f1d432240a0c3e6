"""Which rank gets which piece. A piece is a whole table or one of its column slices; its size is in bytes."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence

# Sizes of the pieces, bytes already on each rank, first rank to deal to -> a rank for each piece.
Deal = Callable[[Sequence[int], Sequence[int], int], list[int]]


def basic(sizes: Sequence[int], loads: Sequence[int], start: int) -> list[int]:
    """Round-robin in the given order."""
    return [(start + turn) % len(loads) for turn in range(len(sizes))]


def memory_balanced(sizes: Sequence[int], loads: Sequence[int], start: int) -> list[int]:
    """Round-robin by falling size, there and back (0 … n-1, n-1 … 0): rank 0 is not always fullest."""
    world_size = len(loads)
    ranks = [0] * len(sizes)
    for turn, piece in enumerate(_falling(sizes)):
        lap, seat = divmod(turn, world_size)
        ranks[piece] = (start + (seat if lap % 2 == 0 else world_size - 1 - seat)) % world_size
    return ranks


def longest_first(sizes: Sequence[int], loads: Sequence[int], start: int) -> list[int]:
    """Each piece, by falling size, to the emptiest rank (LPT; Graham 1969: at most 4/3 of the optimum)."""
    heap = [(load, rank) for rank, load in enumerate(loads)]
    heapq.heapify(heap)
    ranks = [0] * len(sizes)
    for piece in _falling(sizes):
        load, rank = heap[0]
        ranks[piece] = rank
        heapq.heapreplace(heap, (load + sizes[piece], rank))
    return ranks


def _falling(sizes: Sequence[int]) -> list[int]:
    return sorted(range(len(sizes)), key=lambda piece: (-sizes[piece], piece))


_EVENEST: tuple[Deal, ...] = (longest_first, memory_balanced, basic)

# The deals a strategy tries. The one that leaves the fullest rank emptiest is taken, the first of equals: LPT, unless
# a simpler one happens to do better.
DEALS: Mapping[str, tuple[Deal, ...]] = {
    "auto": _EVENEST,
    "basic": (basic,),
    "memory_balanced": (memory_balanced,),
    "memory_optimized": _EVENEST,
}
