"""Timing: run a call repeatedly; median, minimum and spread of its times."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from traincast.collector import without_collector

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
