"""Whether other processes took the core while something was timed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

_MOST_DELAY: Final = 0.02
"""A sample that waited for the core for a larger share of its time is contaminated."""
_LEAST_SHARE: Final = 0.5
"""At least this share of the samples is kept: if all waited, those that waited least."""


def run_queue_delay_s() -> float:
    """Return the seconds for which the calling thread could run but waited for a core; 0 if not known."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0


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
