"""Whether exact mode splits its batches: it measures both ways of running a step, and keeps the faster."""

from __future__ import annotations

from collections import deque
from statistics import median

TRIAL = 12  # steps of each way
_SETTLING = 4  # of them not counted
CYCLE = 1000  # steps from one trial to the next
_GAIN = 0.95  # a step of whole batches must be this much shorter


class SplitChoice:
    """One rank's vote, of its own clock; the majority's way is run, by all ranks.

    Steps are named by their batch, so that all ranks try the same way at the same time. Split steps overlap more, and
    work more: two exchanges and a dozen small operations. Where no exchange waits for a network, that is not paid back.
    """

    def __init__(self) -> None:
        kept = TRIAL - _SETTLING
        self._seconds: dict[bool, deque[float]] = {way: deque(maxlen=kept) for way in (False, True)}
        self._whole = False

    def wants_whole(self, batch: int) -> bool:
        """Whether this rank would run the step of `batch` whole."""
        phase = batch % CYCLE
        if phase < 2 * TRIAL:
            return phase >= TRIAL
        return self._whole

    def note(self, batch: int, seconds: float) -> None:
        """The step of `batch` took so long."""
        phase = batch % CYCLE
        if phase >= 2 * TRIAL or phase % TRIAL < _SETTLING:
            return
        self._seconds[phase >= TRIAL].append(seconds)
        split, whole = self._seconds[False], self._seconds[True]
        if split and whole:
            self._whole = median(whole) < _GAIN * median(split)
