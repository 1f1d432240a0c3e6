"""Ranks by a power law, and how ranks become ids."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def power_law_ranks(u: NDArray[np.float64], counts: NDArray[np.int64], exponent: float) -> NDArray[np.int64]:
    """Ranks 0 … counts - 1 with P(rank) ~ (rank + 1)^-exponent: the continuous power law, floored.

    u: uniform in (0, 1), of a shape that `counts` broadcasts to.
    """
    count = counts.astype(np.float64)
    if abs(exponent - 1.0) < 1e-6:
        ranks = np.exp(u * np.log(count + 1.0))
    else:
        power = 1.0 - exponent
        ranks = (1.0 + u * ((count + 1.0) ** power - 1.0)) ** (1.0 / power)
    return np.minimum(ranks.astype(np.int64) - 1, counts - 1)


def coprime_step(size: int) -> int:
    """A step near size * 0.618 that visits every residue of `size`: rank * step mod size is a bijection."""
    step = max(1, int(size * 0.6180339887))
    while np.gcd(step, size) != 1:
        step += 1
    return step
