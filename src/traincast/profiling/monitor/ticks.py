"""The moments at which a sampler reads: multiples of its period since its start, so that it never drifts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from traincast.errors import RequestError

SLOWEST_HZ: Final = 1.0
FASTEST_HZ: Final = 1000.0


class Ticks:
    """Waits for the next multiple of a period; multiples that have passed are left out and counted as ``missed``.

    A sampler that wakes up late takes its next reading at the moment at which it would have been taken anyway. Another
    clock may be given as ``now``, with its ``sleep``.
    """

    def __init__(
        self,
        hz: float,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not SLOWEST_HZ <= hz <= FASTEST_HZ:
            raise RequestError(f"{hz:g} readings per second: expected {SLOWEST_HZ:g} to {FASTEST_HZ:g}")
        self.period_s = 1.0 / hz
        self.missed = 0
        self._now, self._sleep = now, sleep
        self._start, self._number = now(), 0

    def wait(self) -> None:
        """Return at the next multiple that has not passed."""
        due = self._number + 1
        ahead = self._start + due * self.period_s - self._now()
        if ahead <= 0.0:
            passed = int(-ahead / self.period_s) + 1
            self.missed += passed
            due += passed
            ahead += passed * self.period_s
        self._sleep(ahead)
        self._number = due
