"""Whether other processes took the core while something was timed."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

_MOST_DELAY: Final = 0.02
"""A sample that waited for the core for a larger share of its time is contaminated."""
_UNUSUAL: Final = 2.0
"""A step of several ranks is contaminated if it waited this many times as long as steps usually do."""
_LEAST_SHARE: Final = 0.5
"""At least this share of the samples is kept: if all waited, those that waited least."""


def run_queue_delay_s() -> float:
    """Return the seconds for which the calling thread could run but waited for a core; 0 if not known."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0


def thread_delays_s() -> dict[str, float]:
    """Return, for each thread of this process, the seconds for which it could run but waited for a core."""
    found = {}
    for file in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError, ValueError, IndexError):
            found[file.parent.name] = int(file.read_text(encoding="ascii").split()[1]) * 1e-9
    return found


def longest_delay_s(before: Mapping[str, float]) -> float:
    """Return how long the thread that waited longest for a core has waited since :func:`thread_delays_s`."""
    return max((seconds - before.get(thread, 0.0) for thread, seconds in thread_delays_s().items()), default=0.0)


def disturbed(shares: Sequence[float]) -> list[bool]:
    """Return which of some equal steps other processes disturbed, from the share of each that waited for a core.

    Ranks that share cores wait for one another in every step; that belongs to the step. A step is disturbed if it
    waited for more than 2 % of its time, and for more than twice the median share.

    >>> disturbed([0.0, 0.01, 0.3, 0.0])
    [False, False, True, False]
    >>> disturbed([0.2, 0.25, 0.3, 0.2])
    [False, False, False, False]
    """
    if not shares:
        return []
    limit = max(_MOST_DELAY, _UNUSUAL * statistics.median(shares))
    return [share > limit for share in shares]


def quiet(samples: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the samples (seconds, seconds waited for the core) that waited at most 2 % of their time.

    At least half of them are returned: those that waited least, in their order. Subtract the wait from what is left to
    know the time on a core of its own.

    >>> quiet([(1.0, 0.0), (1.5, 0.5), (1.0, 0.01)])
    [(1.0, 0.0), (1.0, 0.01)]
    """
    shares = [waited / seconds if seconds > 0.0 else 0.0 for seconds, waited in samples]
    least = max(1, -(-len(samples) // 2)) if samples else 0
    limit = max([_MOST_DELAY, *sorted(shares)[:least][-1:]])
    return [sample for sample, share in zip(samples, shares, strict=True) if share <= limit]
