"""Timing: run a call repeatedly; median, minimum and spread of its times; whether other processes took the core."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from traincast.collector import without_collector

_MOST_DELAY: Final = 0.02
"""A sample that waited for the core for a larger share of its time is contaminated."""
_UNUSUAL: Final = 2.0
"""A step of several ranks is contaminated if it waited this many times as long as steps usually do."""


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


SUSPECT_DISPERSION: Final = 0.25
"""A relative interquartile range above this marks a row as suspect."""

SLOW_RATE: Final = 2e9
"""FLOP/s that any processor reaches: used to skip work that would take far too long even at this rate."""

_SAMPLE_S: Final = 100e-6
_MAX_INNER: Final = 100
_MIN_REPEATS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The time of a call in seconds: median and minimum of ``count`` runs.

    ``dispersion`` is the interquartile range over the median.
    """

    median_s: float
    min_s: float
    dispersion: float
    count: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Timing:
        """The timing of ``samples``, in seconds.

        >>> Timing.of([1.0, 2.0, 3.0, 4.0, 5.0])
        Timing(median_s=3.0, min_s=1.0, dispersion=0.6666666666666666, count=5)
        """
        low, middle, high = (float(q) for q in np.percentile(samples, (25, 50, 75)))
        return cls(
            median_s=middle,
            min_s=float(min(samples)),
            dispersion=(high - low) / middle if middle > 0 else 0.0,
            count=len(samples),
        )


class Clock(Protocol):
    """Times ``inner`` consecutive runs of a call on one type of device."""

    def seconds(self, call: Callable[[], object], inner: int) -> float:
        """Seconds per run."""
        ...


class HostClock:
    """The clock of the host: correct if a call returns only when its work is done."""

    def seconds(self, call: Callable[[], object], inner: int) -> float:
        """Seconds per run."""
        start = time.perf_counter_ns()
        for _ in range(inner):
            call()
        return (time.perf_counter_ns() - start) / inner * 1e-9


class CudaClock:
    """Events on the device's stream: the time of the host does not count."""

    def seconds(self, call: Callable[[], object], inner: int) -> float:
        """Seconds per run."""
        import torch

        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(inner):
            call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / inner * 1e-3


def clock_of(device: str) -> Clock:
    """The clock for a PyTorch device type."""
    return CudaClock() if device == "cuda" else HostClock()


def measure(
    call: Callable[[], object], *, clock: Clock, repeats: int, warmup: int = 3, seconds: float = 10.0
) -> Timing:
    """Warm ``call`` up, then run it ``repeats`` times.

    A call shorter than 100 µs is run several times per sample. If all repeats would take longer than ``seconds``,
    there are fewer, but at least three.
    """
    with without_collector():
        spent = once = clock.seconds(call, 1)
        for _ in range(warmup - 1):
            if spent > seconds / 4:
                break
            once = clock.seconds(call, 1)
            spent += once
        inner = max(1, min(_MAX_INNER, math.ceil(_SAMPLE_S / max(once, 1e-9))))
        samples: list[float] = []
        while len(samples) < repeats and (len(samples) < _MIN_REPEATS or spent < seconds):
            samples.append(clock.seconds(call, inner))
            spent += samples[-1] * inner
    return Timing.of(samples)
