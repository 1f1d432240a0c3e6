"""Waiting for peers: polls, burns no core, says whom it waits for, and gives up at the deadline."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence

from .errors import CommunicationError
from .settings import seconds_from_env

# A peer in step arrives within this time: yielding the core costs less than a sleep's wake-up (~60 µs and
# more).
YIELD_SECONDS = 0.002
FIRST_SLEEP_SECONDS = 20e-6
LONGEST_SLEEP_SECONDS = 1e-3
# Where another thread has work for the core, yielding takes half of it away. But messages over TCP move only while
# somebody polls.
SHARED_YIELD_SECONDS = 50e-6
SHARED_LONGEST_SLEEP_SECONDS = 0.1e-3


class Waiter:
    """All waits of one rank.

    watchdog_seconds: after it one line on stderr, repeated with doubling interval (env DEMB_WATCHDOG_SECONDS,
    10). deadline_seconds: after it CommunicationError (env DEMB_DEADLINE_SECONDS, 300).
    """

    def __init__(
        self, rank: int, watchdog_seconds: float | None = None, deadline_seconds: float | None = None
    ) -> None:
        self.rank = rank
        self.watchdog_seconds = watchdog_seconds or seconds_from_env("DEMB_WATCHDOG_SECONDS", 10.0)
        self.deadline_seconds = deadline_seconds or seconds_from_env("DEMB_DEADLINE_SECONDS", 300.0)
        self.farewell_seconds = seconds_from_env("DEMB_FAREWELL_SECONDS", 15.0)
        self._yield, self._longest_sleep = YIELD_SECONDS, LONGEST_SLEEP_SECONDS

    def share_core(self, shared: bool = True) -> None:
        """From now on another thread of this process has work while this one waits, or none has."""
        self._yield = SHARED_YIELD_SECONDS if shared else YIELD_SECONDS
        self._longest_sleep = SHARED_LONGEST_SLEEP_SECONDS if shared else LONGEST_SLEEP_SECONDS

    def wait(
        self,
        done: Callable[[], bool],
        operation: str,
        missing: Callable[[], Sequence[int]],
        *,
        deadline: float | None = None,
    ) -> None:
        """Poll `done` until it is true. `operation` and `missing` (ranks) describe it when it is long.

        deadline: seconds, by default `deadline_seconds`. Raises CommunicationError then.
        """
        start = time.monotonic()
        while time.monotonic() - start < self._yield:
            if done():
                return
            os.sched_yield()
        self._sleep_until(
            done, operation, missing, start, self.deadline_seconds if deadline is None else deadline
        )

    def _sleep_until(
        self,
        done: Callable[[], bool],
        operation: str,
        missing: Callable[[], Sequence[int]],
        start: float,
        deadline: float,
    ) -> None:
        pause = FIRST_SLEEP_SECONDS
        report_at = self.watchdog_seconds
        while not done():
            time.sleep(pause)
            pause = min(pause * 1.5, self._longest_sleep)
            waited = time.monotonic() - start
            if waited >= deadline:
                text = self.describe(operation, missing(), waited)
                raise CommunicationError(f"{text} {self.at_deadline()}")
            if waited >= report_at:
                report_at *= 2
                self.report(operation, missing(), waited)

    def report(self, operation: str, missing: Sequence[int], waited: float) -> None:
        """Write the watchdog's line."""
        sys.stderr.write(f"[demb rank {self.rank}] watchdog: {self.describe(operation, missing, waited)}\n")
        sys.stderr.flush()

    def describe(self, operation: str, missing: Sequence[int], waited: float) -> str:
        """One sentence: who waits where, for whom, since when."""
        ranks = ", ".join(map(str, missing)) or "none (the transfer itself)"
        since = time.strftime("%H:%M:%S", time.localtime(time.time() - waited))
        late = f"waits for rank(s) {ranks} since {since} ({waited:.1f} s)"
        return f"rank {self.rank} is in {operation} and {late}."

    def at_deadline(self) -> str:
        """What a wait that long means."""
        return (
            f"That is the deadline (DEMB_DEADLINE_SECONDS={self.deadline_seconds:g}): the late rank has died, hangs, "
            "or computes longer; see its own output."
        )
