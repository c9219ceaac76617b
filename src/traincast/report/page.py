"""Writes the page of a forecast: its report and timeline in one HTML file that loads nothing.

This module makes the data of the page, with the timeline in columns. The views in :mod:`traincast.pages` draw them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traincast.files import write_text
from traincast.pages import page_text
from traincast.report.critical_path import critical_tasks
from traincast.report.drawn_spans import MAX_SPANS, DrawnSpans, columns_of
from traincast.report.report import Report
from traincast.report.trace import STREAM_NAMES, lanes_by_row
from traincast.simulate import Timeline
from traincast.strategy.plan import NUM_STREAMS, Category, Plan, Stream

Ints = npt.NDArray[np.int64]

MAX_ROWS: Final = 64
"""Most rows (ranks) that a page shows."""


def write_page(report: Report, timeline: Timeline, path: Path, *, resources: Mapping[str, Any] | None = None) -> None:
    """Write ``report`` and ``timeline`` as one self-contained HTML file; ``resources`` adds curves of their use."""
    write_text(path, page_text("forecast", {**_page_data(report, timeline), "resources": resources}))


def _page_data(report: Report, timeline: Timeline) -> dict[str, Any]:
    data = report.to_dict()
    for entry, rank in zip(data["ranks"], report.ranks, strict=True):
        entry["memory"] = rank.memory.to_dict()
    slow = [rank for rank, _ in report.conditions.slow] if report.conditions else []
    return {"report": data, "timeline": _timeline_data(timeline, slow)}


def _timeline_data(timeline: Timeline, slow: Sequence[int]) -> dict[str, Any]:
    plan = timeline.plan
    rows = _shown_rows(plan, slow)
    lanes, columns = columns_of(_spans(timeline, rows), MAX_SPANS)
    mesh = plan.mesh
    number = {int(row): n for n, row in enumerate(rows)}
    return {
        "step_ns": round(timeline.step_s * 1e9),
        "rows": [_row_data(plan, int(plan.ranks[row])) for row in rows],
        "num_ranks": mesh.num_ranks,
        "num_servers": int((plan.ranks >= mesh.num_ranks).sum()),
        "num_rows": len(plan.ranks),
        "labels": list(plan.labels),
        "categories": [c.name.lower() for c in Category],
        "lanes": [
            {"row": number[int(lane) // NUM_STREAMS], "stream": STREAM_NAMES[Stream(int(lane) % NUM_STREAMS)]}
            for lane in lanes
        ],
        **columns,
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


def _spans(timeline: Timeline, rows: Ints) -> DrawnSpans:
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
    return DrawnSpans(
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
