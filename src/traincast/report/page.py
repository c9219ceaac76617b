"""The page: a report and its timeline as one HTML file that needs nothing else.

All values are embedded as one JSON document, the timeline in columns; the template's script draws them
and treats every string as text. Nothing is fetched, and the page's own policy forbids it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traincast.report.critical_path import critical_tasks
from traincast.report.embed import page_text
from traincast.report.report import Report
from traincast.report.trace import STREAM_NAMES, lanes_by_row, replacing
from traincast.simulate import Timeline
from traincast.strategy.plan import NUM_STREAMS, Category, Plan, Stream

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

MAX_SPANS: Final = 40_000
"""Spans that a page holds at most; of more, the short ones are merged."""

MAX_ROWS: Final = 64
"""Rows (ranks) that a page shows at most."""

_SEVERAL: Final = -1
"""Label of a merged span whose tasks have different labels."""


def write_page(report: Report, timeline: Timeline, path: Path) -> None:
    """Write ``report`` and ``timeline`` as one self-contained HTML file."""
    text = page_text("traincast.report", "page.html", _page_data(report, timeline))
    with replacing(path) as file:
        file.write(text)


def _page_data(report: Report, timeline: Timeline) -> dict[str, Any]:
    data = report.as_dict()
    for entry, rank in zip(data["ranks"], report.ranks, strict=True):
        entry["memory"] = rank.memory.as_dict()
    return {"report": data, "timeline": _timeline_data(timeline)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spans:
    """What the page draws, in order of lane and time; times in nanoseconds.

    A span may stand for ``count`` tasks, which keep the lane busy for ``busy`` of its time.
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


def _timeline_data(timeline: Timeline) -> dict[str, Any]:
    plan = timeline.plan
    rows = _shown_rows(plan)
    every = _spans(timeline, rows)
    spans, cell = _merged(every, MAX_SPANS)
    lanes, lane_of = np.unique(spans.lane, return_inverse=True)
    lane_start = np.searchsorted(lane_of, np.arange(len(lanes) + 1))
    before = np.concatenate([[0], spans.end[:-1]])[: len(spans)]
    before[lane_start[:-1]] = 0
    mesh = plan.mesh
    number = {int(row): n for n, row in enumerate(rows)}
    return {
        "step_ns": round(timeline.step_s * 1e9),
        "rows": [{"rank": int(plan.ranks[row]), "stage": mesh.coordinate(int(plan.ranks[row]), "pp")} for row in rows],
        "num_ranks": mesh.num_ranks,
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
        "idle": (spans.end - spans.start - spans.busy).tolist() if cell else [],
        "label": spans.label.tolist(),
        "category": spans.category.tolist(),
        "microbatch": spans.microbatch.tolist(),
        "count": spans.count.tolist() if cell else [],
        "critical": np.flatnonzero(spans.critical).tolist(),
    }


def _shown_rows(plan: Plan) -> Ints:
    """The rows to show: all, or as many of each stage as there is room for."""
    count = len(plan.ranks)
    if count <= MAX_ROWS:
        return np.arange(count)
    stage = plan.ranks // plan.mesh.stride("pp")
    place = np.arange(count) - np.searchsorted(stage, stage)  # within its stage; ranks of a stage are consecutive
    return np.flatnonzero(place < max(1, MAX_ROWS // plan.mesh.pp))[:MAX_ROWS]


def _spans(timeline: Timeline, rows: Ints) -> _Spans:
    """One span per task and row, without those that take no time."""
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


def _merged(spans: _Spans, limit: int) -> tuple[_Spans, int]:
    """At most about ``limit`` spans, and the cell in nanoseconds below which they were merged (0: none were).

    Spans shorter than a cell that start in the same cell of time and are of one lane, category and
    microbatch become one; the cell grows until few enough are left.
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
    first = np.flatnonzero(np.concatenate([[True], ~together]))
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
    """Which entries equal the one before."""
    return np.equal(column[1:], column[:-1])
