"""Spans as a page draws them: sorted by lane and time, without overlaps, and few enough for a browser."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

MAX_SPANS: Final = 40_000
"""Most spans that a page holds; if there are more, the short ones are merged."""

_SEVERAL: Final = -1
"""Label number of a merged span whose tasks have different labels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnSpans:
    """The spans that the page draws, sorted by lane and time; times are in nanoseconds.

    A span stands for ``count`` tasks, which keep its lane busy for ``busy`` nanoseconds.
    """

    lane: Ints
    start: Ints
    end: Ints
    busy: Ints
    label: Ints
    category: Ints
    microbatch: Ints
    count: Ints
    critical: Ints

    def __len__(self) -> int:
        return len(self.lane)


def columns_of(spans: DrawnSpans, limit: int = MAX_SPANS) -> tuple[Ints, dict[str, Any]]:
    """Return the numbers of the lanes that have spans, and the columns of a page's timeline.

    Spans that overlap on a lane are cut; if more than ``limit`` are left, short ones are merged.
    """
    drawn, cell = _merged(_cut(spans), limit)
    several = bool((drawn.count > 1).any())
    lanes, lane_of = np.unique(drawn.lane, return_inverse=True)
    lane_start = np.searchsorted(lane_of, np.arange(len(lanes) + 1))
    before = np.concatenate([[0], drawn.end[:-1]])[: len(drawn)]
    before[lane_start[:-1]] = 0
    return lanes, {
        "num_tasks": len(spans),
        "merged_below_s": cell / 1e9 if cell else None,
        "lane_start": lane_start.tolist(),
        "gap": (drawn.start - before).tolist(),
        "duration": (drawn.end - drawn.start).tolist(),
        "idle": (drawn.end - drawn.start - drawn.busy).tolist() if several else [],
        "label": drawn.label.tolist(),
        "category": drawn.category.tolist(),
        "microbatch": drawn.microbatch.tolist(),
        "count": drawn.count.tolist() if several else [],
        "critical": np.flatnonzero(drawn.critical).tolist(),
    }


def _cut(spans: DrawnSpans) -> DrawnSpans:
    """Return the spans with no overlaps: where several run at once on a lane, they are cut at each begin and end.

    Messages that share a link overlap. Each stretch of time in which the same tasks run becomes one span.
    """
    lanes = np.unique(spans.lane[1:][_same(spans.lane) & (spans.start[1:] < spans.end[:-1])])
    if not len(lanes):
        return spans
    parts = [_taken(spans, np.flatnonzero(~np.isin(spans.lane, lanes)))]
    for lane in lanes.tolist():
        own = _taken(spans, np.flatnonzero(spans.lane == lane))
        times = np.unique(np.concatenate([own.start, own.end]))
        first, last = np.searchsorted(times, own.start), np.searchsorted(times, own.end)
        task = np.repeat(np.arange(len(own)), last - first)
        stretch = np.arange(len(task)) - np.repeat(np.cumsum(last - first) - (last - first) - first, last - first)
        order = np.argsort(stretch, kind="stable")
        pieces = replace(
            _taken(own, task[order]),
            start=times[stretch[order]],
            end=times[stretch[order] + 1],
        )
        opens = np.flatnonzero(np.diff(stretch[order], prepend=-1))
        parts.append(replace(_together(pieces, opens), busy=pieces.end[opens] - pieces.start[opens]))
    whole = DrawnSpans(**{f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(DrawnSpans)})
    return _taken(whole, np.lexsort((whole.start, whole.lane)))


def _taken(spans: DrawnSpans, chosen: Ints) -> DrawnSpans:
    return DrawnSpans(**{f.name: getattr(spans, f.name)[chosen] for f in fields(DrawnSpans)})


def _merged(spans: DrawnSpans, limit: int) -> tuple[DrawnSpans, int]:
    """Return about ``limit`` spans at most, and the length in nanoseconds below which spans were merged (0: none).

    Time is divided into cells. Spans that are shorter than a cell, start in the same cell and have the same lane,
    category and microbatch become one span. The cell grows until few enough spans are left.
    """
    if len(spans) <= limit:
        return spans, 0
    longest = int(spans.end.max())
    cell = max(1, longest // 100_000)
    while True:
        merged = _merge(spans, cell)
        if len(merged) <= limit or cell >= longest:
            return merged, cell
        cell = min(longest, cell * 3 // 2 + 1)


def _merge(spans: DrawnSpans, cell: int) -> DrawnSpans:
    small = (spans.end - spans.start) < cell
    together = small[1:] & small[:-1] & _same(spans.start // cell)
    for column in (spans.lane, spans.category, spans.microbatch):
        together &= _same(column)
    return _together(spans, np.flatnonzero(np.concatenate([[True], ~together])))


def _together(spans: DrawnSpans, first: Ints) -> DrawnSpans:
    """Merge runs of spans into one span each; ``first`` has the index at which each run begins."""
    low = np.minimum.reduceat(spans.label, first)
    high = np.maximum.reduceat(spans.label, first)
    return replace(
        spans,
        lane=spans.lane[first],
        start=spans.start[first],
        end=np.maximum.reduceat(spans.end, first),
        busy=np.add.reduceat(spans.busy, first),
        label=np.where(low == high, low, _SEVERAL),
        category=spans.category[first],
        microbatch=spans.microbatch[first],
        count=np.add.reduceat(spans.count, first),
        critical=np.maximum.reduceat(spans.critical, first),
    )


def _same(column: Ints) -> Flags:
    """For every entry but the first, whether it equals the one before it."""
    return np.equal(column[1:], column[:-1])
