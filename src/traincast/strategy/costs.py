"""The costs of overlaps and segments, from the seconds of works: each formula once.

Plain Python runs these functions, and Numba compiles the same functions into the loops of an evaluator and of a search.
So a forecast, a calibration and a search cannot disagree about what a step costs. Only a segment has two forms: a rule
for one work after another, and its closed form for arrays.

Costs are numbered: works first, then overlaps. A number below zero counts from the end, as Python's indices do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from traincast.compiled import Compiled

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def overlap_seconds(traffic: Any, compute: Any, interference: Any, waited: Any) -> Any:
    """Seconds that ``traffic`` adds to a step when it runs behind ``compute`` (both in seconds).

    The compute waits for the traffic it does not hide, max(0, traffic − compute), if it waits at all. Both run side by
    side for min(traffic, compute), which slows the compute down by ``interference`` times that.
    """
    exposed = max(0.0, traffic - compute) if waited else 0.0
    return exposed + interference * min(traffic, compute)


def in_line(  # noqa: PLR0917  (Numba takes positional arguments)
    lead: Any, device: Any, host: Any, next_lead: Any, next_device: Any, next_host: Any
) -> Any:
    """``(lead, device, host)`` of two segments, the second right after the first.

    A single work is the segment (launch, work, launch).
    """
    return max(lead, host - device + next_lead), device + next_device, host + next_host


def segment_seconds(launches: Any, works: Any) -> Any:
    """``(lead, device, host)`` of works that run in line, each after its own launch; both are arrays of seconds.

    ``lead`` = maxᵢ(Σ_{j≤i} launches − Σ_{j<i} works) is how long the host runs before the device can start and then
    never wait again. ``device`` and ``host`` are the sums of both arrays. This is :func:`in_line` applied work by work,
    in closed form: NumPy is faster with arrays, machine code with one work at a time.
    """
    host = launches.cumsum()
    device = works.cumsum()
    return (host - device + works).max(), device[-1], host[-1]


def tail_seconds(lead: Any, host: Any) -> Any:
    """How long the host goes on after the ``lead`` of a segment."""
    return max(0.0, host - lead)


def _fill(  # noqa: PLR0917  (Numba takes positional arguments)
    overlap_work: Any,
    terms: Any,
    behind_start: Any,
    behind: Any,
    segment_start: Any,
    launches: Any,
    works: Any,
    interference: Any,
    tails: Any,
    costs: Any,
    segments: Any,
) -> None:
    """Fill the costs of overlaps, which follow those of works, then those of segments; see :class:`CostTable`."""
    at = len(costs) - len(overlap_work)
    for number in range(len(overlap_work)):
        hiding = 0.0
        for other in range(behind_start[number], behind_start[number + 1]):
            hiding += costs[behind[other]]
        traffic, share, slowdown = costs[overlap_work[number]], terms[number, 0], interference * terms[number, 1]
        costs[at + number] = overlap_seconds(traffic, share * hiding, slowdown, terms[number, 2] > 0.0)
    for number in range(len(segment_start) - 1):
        lead, device, host = 0.0, 0.0, 0.0
        for at in range(segment_start[number], segment_start[number + 1]):
            launch, work = costs[launches[at]], costs[works[at]]
            lead, device, host = in_line(lead, device, host, launch, work, launch)
        segments[number, 0], segments[number, 1] = lead, device
        segments[number, 2] = tail_seconds(lead, host) if tails else host


_fill_compiled = Compiled(_fill)


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """Overlaps and segments as columns: which works they are made of.

    Overlap i runs work ``overlap_work[i]`` behind the works ``behind[behind_start[i]:behind_start[i+1]]``; its
    ``terms`` are the share of these that hides it, the interference, and 1 if it is waited for. Segment i has
    ``launches`` and ``works`` from ``segment_start[i]`` to ``segment_start[i+1]``.
    """

    overlap_work: Ints
    terms: Floats
    behind_start: Ints
    behind: Ints
    segment_start: Ints
    launches: Ints
    works: Ints


class CostTable:
    """A table of costs for the seconds of ``num_works`` works: works, overlaps, three for each segment.

    The three are lead, device and tail of the segment, or without ``tails`` lead, device and host. The loop is machine
    code, and all arrays are kept: this is for tables that are filled very often.
    """

    def __init__(self, composition: Composition, num_works: int, *, tails: bool = True) -> None:
        leaves = num_works + len(composition.overlap_work)
        self.costs: Floats = np.empty(leaves + 3 * (len(composition.segment_start) - 1))
        self.works: Floats = self.costs[:num_works]
        self.leaves: Floats = self.costs[:leaves]
        self.segments: Floats = self.costs[leaves:].reshape(-1, 3)
        self._composition = (
            composition.overlap_work,
            composition.terms,
            composition.behind_start,
            composition.behind,
            composition.segment_start,
            composition.launches,
            composition.works,
        )
        self._tails = tails

    def fill(self, seconds: Floats, interference: float = 1.0) -> Floats:
        """The costs for the ``seconds`` of the works; ``interference`` multiplies that of every overlap.

        The array is the same each time.
        """
        self.works[:] = seconds
        _fill_compiled(*self._composition, interference, self._tails, self.leaves, self.segments)
        return self.costs


def starts_of(sizes: npt.ArrayLike) -> Ints:
    """Where the parts of a ragged column start, from their sizes; the last entry is where all end."""
    counts = np.asarray(sizes, dtype=np.int64)
    starts = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def ragged(parts: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """Starts and values of a ragged column."""
    start = starts_of([len(p) for p in parts])
    values = np.fromiter((v for p in parts for v in p), dtype=np.int64, count=int(start[-1]))
    return start, values
