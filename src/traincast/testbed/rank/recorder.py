"""What a rank did, and when: its spans, and the clock that all processes of a machine share."""

from __future__ import annotations

import threading
import time
from typing import Any, Final, NamedTuple

now: Final = time.monotonic
"""Seconds since some moment that is the same for all processes of this machine."""


def sleep_until(when: float) -> None:
    """Returns at ``when``, or at once if it has passed."""
    ahead = when - now()
    if ahead > 0.0:
        time.sleep(ahead)


class SpanRow(NamedTuple):
    """One span of one rank; ``microbatch`` and ``peer`` are −1 if there is none. Times are seconds of the clock."""

    step: int
    microbatch: int
    stream: str
    category: str
    label: str
    name: str
    start_s: float
    end_s: float
    nbytes: float
    peer: int

    def columns(self, rank: int, *, step: int, start: float) -> list[Any]:
        """The row of a run's table of spans: those of counted step ``step``, with times since its ``start``."""
        return [
            rank, step, self.microbatch, self.stream, self.category, self.label, self.name,
            self.start_s - start, self.end_s - start, self.nbytes,
        ]  # fmt: skip


class SpanRecorder:
    """Collects the spans of one rank. Threads of the communication library add theirs as well."""

    def __init__(self) -> None:
        self.step = -1
        self.microbatch = -1
        self.rows: list[SpanRow] = []
        self._lock = threading.Lock()

    def add(  # noqa: PLR0917  (the columns of a span)
        self,
        stream: str,
        category: str,
        label: str,
        name: str,
        start: float,
        end: float,
        *,
        nbytes: float = 0.0,
        peer: int = -1,
        at: tuple[int, int] | None = None,
    ) -> None:
        """Record a span of the current step and microbatch.

        ``at`` is another step and microbatch, for communication that ends when another step may have begun.
        """
        step, microbatch = at or (self.step, self.microbatch)
        with self._lock:
            self.rows.append(SpanRow(step, microbatch, stream, category, label, name, start, end, nbytes, peer))
