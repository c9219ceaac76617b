"""Which collective a run timed and over how many ranks, from its numbers where its log does not say it.

nccl-tests prints the bandwidth of the algorithm, size / time, and the bandwidth of the bus. Their ratio depends on the
collective and the number of ranks n only: 2 (n − 1) / n for all_reduce; (n − 1) / n for all_gather, reduce_scatter and
all_to_all; 1 for broadcast, reduce and send/receive (PERFORMANCE.md of nccl-tests). In the tests in which every rank
has a part of the message, ``count`` is one part and ``size`` all n parts, which gives n exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from traincast.profiling.collectives.nccl_rows import LogRow
from traincast.profiling.collectives.nccl_runs import LogRun

_PARTS: Final = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
_LEAST_ALGBW: Final = 0.02
"""Bandwidths below this, in GB/s, have too few digits for a ratio."""
MAX_RANKS: Final = 1_000_000
_STEPS: Final = tuple(1 << k for k in range(20, -1, -1))


def collectives_of(run: LogRun) -> tuple[str, ...]:
    """Return the collectives that the columns of a run allow, the most usual first."""
    rows = run.rows
    if run.from_bandwidth:
        return ("all_reduce",)
    rooted = any(row.root is not None and row.root >= 0 for row in rows)
    reduces = any(row.redop not in ("", "none") for row in rows)
    parts = shared_parts(rows) > 1
    low, high = ratio_of(rows)
    unchecked = any(row.checked_in_place is False for row in rows)
    if rooted:
        found: tuple[str, ...] = ("reduce",) if reduces else ("gather", "scatter") if parts else ("broadcast",)
    elif parts:
        if reduces:
            found = ("reduce_scatter",)
        elif unchecked:
            found = ("all_to_all",)
        elif any(row.checked_in_place for row in rows):
            found = ("all_gather",)
        else:
            found = ("all_gather", "all_to_all")
    elif unchecked or not (reduces or high < 1):
        found = ("p2p",)
    elif high < 1:
        found = ("reduce_scatter",) if reduces else ("all_gather", "all_to_all")
    elif low > 1 or any(row.checked_in_place for row in rows):
        found = ("all_reduce",)
    else:
        found = ("all_reduce", "p2p", "reduce_scatter")
    return found


def shared_parts(rows: Sequence[LogRow]) -> int:
    """Return how many times ``count`` elements fit in ``size``, if that is the same in all rows; else 0."""
    found = {row.shares for row in rows if row.count}
    return found.pop() if len(found) == 1 else 0


def ratio_of(rows: Sequence[LogRow]) -> tuple[float, float]:
    """Return the least and the largest ratio busbw / algbw that agrees with the digits of all rows.

    If the rows contradict each other, only the row with the largest bandwidth counts.
    """
    spans = [
        (
            (row.busbw - row.rounding) / (row.algbw + row.rounding),
            (row.busbw + row.rounding) / (row.algbw - row.rounding),
        )
        for row in rows
        if row.algbw >= _LEAST_ALGBW
    ]
    if not spans:
        return 0.0, math.inf
    low, high = max(a for a, _ in spans), min(b for _, b in spans)
    return (low, high) if low <= high else min(spans, key=lambda span: span[1] - span[0])


def ranks_in(run: LogRun, collective: str) -> tuple[int, int]:
    """Return the least and the largest number of ranks that the numbers of a run allow; (0, 0) if they allow any."""
    if collective in _PARTS and (parts := shared_parts(run.rows)) > 1:
        return parts, parts
    scale = 2.0 if collective == "all_reduce" else 1.0 if collective in _PARTS else 0.0
    low, high = ratio_of(run.rows)
    if not scale or not low:
        return 0, 0
    least = scale / (scale - low) if low < scale else MAX_RANKS
    most = scale / (scale - high) if high < scale else MAX_RANKS
    first, last = math.ceil(least - 1e-9), math.floor(min(most, MAX_RANKS) + 1e-9)
    if first > last:  # the digits are one unit off
        first = last = round((least + most) / 2)
    return max(2, first), max(2, last)


def likely_ranks(least: int, most: int) -> int:
    """Return the roundest number in a range: a multiple of the largest power of two, near the middle of the range."""
    for step in _STEPS:
        first = -(-least // step) * step
        if first <= most:
            middle = round((least + min(most, 4 * least)) / 2 / step) * step
            return min(max(first, middle), most // step * step)
    return least
