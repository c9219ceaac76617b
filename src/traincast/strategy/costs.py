"""The costs of overlaps and segments, from the seconds of works: each formula once.

Plain Python runs these functions on NumPy arrays, and Numba compiles the same functions into the loops of an
evaluator and of a search. So a forecast, a calibration and a search cannot disagree about what a step costs.

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
    host = np.cumsum(launches)
    device = np.cumsum(works)
    return np.max(host - device + works), device[-1], host[-1]


def tail_seconds(lead: Any, host: Any) -> Any:
    """How long the host goes on after the ``lead`` of a segment."""
    return max(0.0, host - lead)


def _fill_overlaps(  # noqa: PLR0917  (Numba takes positional arguments)
    overlap_work: Any, terms: Any, behind_start: Any, behind: Any, interference: Any, costs: Any
) -> None:
    """Fill the costs of overlaps, which follow those of works; ``interference`` multiplies that of each."""
    at = len(costs) - len(overlap_work)
    for number in range(len(overlap_work)):
        hiding = costs[behind[behind_start[number] : behind_start[number + 1]]]
        share, slowdown, waited = terms[number]
        costs[at + number] = overlap_seconds(
            costs[overlap_work[number]], share * hiding.sum(), interference * slowdown, waited > 0.0
        )


def _fill_segments(start: Any, launches: Any, works: Any, tails: Any, costs: Any, segments: Any) -> None:  # noqa: PLR0917
    """Fill (lead, device, host) of every segment, or with ``tails`` (lead, device, tail); zeros if it has no works."""
    for number in range(len(start) - 1):
        here = slice(start[number], start[number + 1])
        lead = device = host = 0.0
        if here.start < here.stop:
            lead, device, host = segment_seconds(costs[launches[here]], costs[works[here]])
        segments[number] = lead, device, tail_seconds(lead, host) if tails else host


def _fill_compiled_segments(  # noqa: PLR0917
    start: Any, launches: Any, works: Any, tails: Any, costs: Any, segments: Any
) -> None:
    """The same for machine code."""
    for number in range(len(start) - 1):
        lead, device, host = 0.0, 0.0, 0.0
        for at in range(start[number], start[number + 1]):
            launch, work = costs[launches[at]], costs[works[at]]
            lead, device, host = in_line(lead, device, host, launch, work, launch)
        segments[number, 0], segments[number, 1] = lead, device
        segments[number, 2] = tail_seconds(lead, host) if tails else host


def _fill_compiled(  # noqa: PLR0917  (Numba takes positional arguments)
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
    """Overlaps and segments in one call, for machine code."""
    _fill_overlaps(overlap_work, terms, behind_start, behind, interference, costs)
    _fill_compiled_segments(segment_start, launches, works, tails, costs, segments)


_compiled = Compiled(_fill_compiled)


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

    def fill(self, seconds: Floats, *, compiled: bool, tails: bool = True, interference: float = 1.0) -> Floats:
        """A table of costs from the ``seconds`` of the works: works, overlaps, three for each segment.

        The three are lead, device and tail of the segment, or without ``tails`` lead, device and host. ``compiled``
        runs the loops as machine code, which pays where they run thousands of times.
        """
        leaves = len(seconds) + len(self.overlap_work)
        table = np.empty(leaves + 3 * (len(self.segment_start) - 1))
        costs, segments = table[:leaves], table[leaves:].reshape(-1, 3)
        costs[: len(seconds)] = seconds
        overlaps = self.overlap_work, self.terms, self.behind_start, self.behind
        runs = self.segment_start, self.launches, self.works
        if compiled:
            _compiled(*overlaps, *runs, interference, tails, costs, segments)
        else:
            _fill_overlaps(*overlaps, interference, costs)
            _fill_segments(*runs, tails, costs, segments)
        return table


def ragged(parts: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """Starts and values of a ragged column."""
    start = np.zeros(len(parts) + 1, dtype=np.int64)
    np.cumsum([len(p) for p in parts], out=start[1:])
    values = np.fromiter((v for p in parts for v in p), dtype=np.int64, count=int(start[-1]))
    return start, values
