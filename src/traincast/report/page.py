"""Writes the page of a forecast: its report and timeline in one HTML file that loads nothing.

This module makes the data of the page, with the timeline in columns. The views in :mod:`traincast.pages` draw them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traincast.files import write_text
from traincast.pages import page_text
from traincast.report.critical_path import critical_tasks
from traincast.report.report import Report
from traincast.report.trace import STREAM_NAMES, lanes_by_row
from traincast.simulate import Timeline
from traincast.strategy.plan import NUM_STREAMS, Category, Plan, Stream

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

MAX_SPANS: Final = 40_000
"""Most spans that a page holds; if there are more, the short ones are merged."""

MAX_ROWS: Final = 64
"""Most rows (ranks) that a page shows."""

_SEVERAL: Final = -1
"""Label number of a merged span whose tasks have different labels."""


def write_page(report: Report, timeline: Timeline, path: Path) -> None:
    """Write ``report`` and ``timeline`` as one self-contained HTML file."""
    write_text(path, page_text("forecast", _page_data(report, timeline)))


def _page_data(report: Report, timeline: Timeline) -> dict[str, Any]:
    data = report.as_dict()
    for entry, rank in zip(data["ranks"], report.ranks, strict=True):
        entry["memory"] = rank.memory.as_dict()
    slow = [rank for rank, _ in report.conditions.slow] if report.conditions else []
    return {"report": data, "timeline": _timeline_data(timeline, slow)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spans:
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


def _timeline_data(timeline: Timeline, slow: Sequence[int]) -> dict[str, Any]:
    plan = timeline.plan
    rows = _shown_rows(plan, slow)
    every = _spans(timeline, rows)
    spans, cell = _merged(_cut(every), MAX_SPANS)
    several = bool((spans.count > 1).any())
    lanes, lane_of = np.unique(spans.lane, return_inverse=True)
    lane_start = np.searchsorted(lane_of, np.arange(len(lanes) + 1))
    before = np.concatenate([[0], spans.end[:-1]])[: len(spans)]
    before[lane_start[:-1]] = 0
    mesh = plan.mesh
    number = {int(row): n for n, row in enumerate(rows)}
    return {
        "step_ns": round(timeline.step_s * 1e9),
        "rows": [_row_data(plan, int(plan.ranks[row])) for row in rows],
        "num_ranks": mesh.num_ranks,
        "num_servers": int((plan.ranks >= mesh.num_ranks).sum()),
        "num_rows": len(plan.ranks),
        "num_tasks": len(every),
        "merged_below_s": cell / 1e9 if cell else None,
        "labels": list(plan.labels),
        "categories": [c.name.lower() for c in Category],
        "lanes": [
            {"row": number[int(lane) // NUM_STREAMS], "stream": STREAM_NAMES[Stream(int(lane) % NUM_STREAMS)]}
            for lane in lanes
        ],
        "lane_start": lane_start.tolist(),
        "gap": (spans.start - before).tolist(),
        "duration": (spans.end - spans.start).tolist(),
        "idle": (spans.end - spans.start - spans.busy).tolist() if several else [],
        "label": spans.label.tolist(),
        "category": spans.category.tolist(),
        "microbatch": spans.microbatch.tolist(),
        "count": spans.count.tolist() if several else [],
        "critical": np.flatnonzero(spans.critical).tolist(),
    }


def _row_data(plan: Plan, rank: int) -> dict[str, int]:
    """Describe a row: a rank of a stage, or a parameter server."""
    server = rank - plan.mesh.num_ranks
    return (
        {"rank": rank, "server": server} if server >= 0 else {"rank": rank, "stage": plan.mesh.coordinate(rank, "pp")}
    )


def _shown_rows(plan: Plan, slow: Sequence[int]) -> Ints:
    """Choose the rows to show: all of them, or :data:`MAX_ROWS`.

    Of many ranks, each stage shows its first ones, and slow ranks take the places of the last of their stage. If there
    are parameter servers, they get up to half of the rows.
    """
    count = len(plan.ranks)
    if count <= MAX_ROWS:
        return np.arange(count)
    servers = np.flatnonzero(plan.ranks >= plan.mesh.num_ranks)
    if len(servers):
        workers = count - len(servers)
        most = max(MAX_ROWS - len(servers), MAX_ROWS // 2)
        return np.concatenate([np.arange(min(workers, most)), servers[: MAX_ROWS - min(workers, most)]])
    stage = plan.ranks // plan.mesh.stride("pp")
    is_slow = np.isin(plan.ranks, slow)
    order = np.lexsort((np.arange(count), ~is_slow, stage))  # slow ranks first in their stage
    place = np.empty(count, dtype=np.int64)
    place[order] = np.arange(count) - np.searchsorted(stage, stage[order])  # ranks of a stage are consecutive
    return np.flatnonzero(place < max(1, MAX_ROWS // plan.mesh.pp))[:MAX_ROWS]


def _spans(timeline: Timeline, rows: Ints) -> _Spans:
    """Return one span per task and row; tasks that take no time have none."""
    plan = timeline.plan
    task, stream, row_start = lanes_by_row(plan)
    row = np.repeat(np.arange(len(plan.ranks)), np.diff(row_start))
    start = np.rint(timeline.start * 1e9).astype(np.int64)
    end = np.rint(timeline.end * 1e9).astype(np.int64)
    keep = np.isin(row, rows) & (end > start)[task]
    task, lane = task[keep], (row * NUM_STREAMS + stream)[keep]
    order = np.lexsort((start[task], lane))
    task, lane = task[order], lane[order]
    critical = np.zeros(plan.num_tasks, dtype=np.int64)
    critical[critical_tasks(timeline)] = 1
    return _Spans(
        lane=lane,
        start=start[task],
        end=end[task],
        busy=(end - start)[task],
        label=plan.label[task].astype(np.int64),
        category=plan.category[task].astype(np.int64),
        microbatch=plan.microbatch[task].astype(np.int64),
        count=np.ones(len(task), dtype=np.int64),
        critical=critical[task],
    )


def _cut(spans: _Spans) -> _Spans:
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
    whole = _Spans(**{f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(_Spans)})
    return _taken(whole, np.lexsort((whole.start, whole.lane)))


def _taken(spans: _Spans, chosen: Ints) -> _Spans:
    return _Spans(**{f.name: getattr(spans, f.name)[chosen] for f in fields(_Spans)})


def _merged(spans: _Spans, limit: int) -> tuple[_Spans, int]:
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


def _merge(spans: _Spans, cell: int) -> _Spans:
    small = (spans.end - spans.start) < cell
    together = small[1:] & small[:-1] & _same(spans.start // cell)
    for column in (spans.lane, spans.category, spans.microbatch):
        together &= _same(column)
    return _together(spans, np.flatnonzero(np.concatenate([[True], ~together])))


def _together(spans: _Spans, first: Ints) -> _Spans:
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
