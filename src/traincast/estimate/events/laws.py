"""Carries measured collectives to more ranks: the law of each algorithm, applied to a measured curve.

A collective of S bytes among n ranks is a chain of k(n) equal messages of c(S, n) bytes, one after the other. A curve
measured among n₀ ranks therefore gives the time of one message, m(c) = t(c⁻¹(c), n₀) / k(n₀), and

    t(S, n) = k(n) · m(c(S, n))

for any other number of ranks. The curve m is whatever was measured: it has no assumed latency and no assumed bandwidth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.estimate.events.keys import P2P

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Law:
    """``messages(n)`` messages in a chain; each carries one part of n of the buffer if ``parts``, else all of it."""

    messages: Callable[[int], float]
    parts: bool = True

    def message_bytes(self, nbytes: float, num_ranks: int) -> float:
        """Return the bytes of one message of a collective of ``nbytes``."""
        return nbytes / num_ranks if self.parts else nbytes

    def buffer_bytes(self, message_bytes: float, num_ranks: int) -> float:
        """Return the bytes of the collective whose messages have ``message_bytes``: the inverse."""
        return message_bytes * num_ranks if self.parts else message_bytes


def _ring_twice(n: int) -> float:
    return 2.0 * (n - 1)


def _ring(n: int) -> float:
    return float(n - 1)


def _gloo_ring(n: int) -> float:
    """A ring in halves of a message. Two ranks share one connection: a second half waits behind the other's first.

    So two ranks take the time of three halves, and n > 2 ranks that of 2(n − 1). Seen in runs of 2 and 4 ranks.
    """
    return 1.5 if n == 2 else float(n - 1)


def _tree(n: int) -> float:
    return float(math.ceil(math.log2(n)))


def _one(n: int) -> float:
    return 1.0


LAWS: Final[dict[str, Law]] = {
    "all_reduce": Law(_ring_twice),  # a ring that reduces, then a ring that gathers
    "all_gather": Law(_ring),
    "reduce_scatter": Law(_ring),
    "all_to_all": Law(_ring),  # every rank sends one part to each other rank, one after the other
    "broadcast": Law(_tree, parts=False),  # a binomial tree
    P2P: Law(_one, parts=False),
}
"""The law of each collective, by its name."""
GLOO_LAWS: Final[dict[str, Law]] = {**LAWS, "all_gather": Law(_gloo_ring)}
"""The laws of collectives over gloo."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCurve:
    """Seconds of one kind of collective by size, measured among ``num_ranks`` ranks; sizes ascend.

    ``low`` and ``high`` are the ends of the 90 % interval of each time. ``laws`` are those of the library that was
    measured.
    """

    collective: str
    num_ranks: int
    num_nodes: int
    nbytes: Floats
    seconds: Floats
    low: Floats
    high: Floats
    laws: Mapping[str, Law] = field(default_factory=lambda: LAWS)

    def at(self, nbytes: float, num_ranks: int) -> tuple[float, float, float]:
        """Return the seconds, low and high of a collective of ``nbytes`` among ``num_ranks`` ranks."""
        law = self.laws[self.collective]
        size = law.buffer_bytes(law.message_bytes(nbytes, num_ranks), self.num_ranks)
        factor = law.messages(num_ranks) / law.messages(self.num_ranks)
        seconds, low, high = (factor * interpolated(size, self.nbytes, y) for y in (self.seconds, self.low, self.high))
        return seconds, low, high


def interpolated(size: float, sizes: Floats, seconds: Floats) -> float:
    """Return the seconds at ``size``: straight lines between measured points, both axes logarithmic.

    A size below the smallest takes its time. A size beyond the largest follows the slope of the last two points, which
    is at most 1 (proportional to the size) and at least 0.

    >>> interpolated(2.0, np.array([1.0, 4.0]), np.array([1.0, 4.0]))
    2.0
    >>> interpolated(16.0, np.array([1.0, 4.0]), np.array([1.0, 2.0]))
    4.0
    """
    if size <= sizes[0] or len(sizes) == 1:
        return float(seconds[0] * max(1.0, size / sizes[0])) if len(sizes) == 1 else float(seconds[0])
    x, y = np.log(sizes), np.log(seconds)
    if size <= sizes[-1]:
        return round_trip(float(np.interp(math.log(size), x, y)), size, sizes, seconds)
    slope = min(1.0, max(0.0, float((y[-1] - y[-2]) / (x[-1] - x[-2]))))
    return float(seconds[-1] * (size / sizes[-1]) ** slope)


def round_trip(logarithm: float, size: float, sizes: Floats, seconds: Floats) -> float:
    """Return the exponential of ``logarithm``; a size that was measured takes exactly its own time."""
    found = np.flatnonzero(sizes == size)
    return float(seconds[found[0]]) if len(found) else math.exp(logarithm)
