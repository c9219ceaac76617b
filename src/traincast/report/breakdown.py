"""Where a step's time went, per rank and on average.

Every instant of a rank falls to one part, so the parts add up to the step: compute (forward and
backward works), optimizer, exposed communication (compute waits for bytes), overhead (compute waits
for its own host), and bubble (compute waits for another rank).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traincast.simulate import Spans, Timeline
from traincast.strategy.plan import Category, Stream

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Seconds of a step by what they were spent on; they add up to the step."""

    compute_s: float
    exposed_communication_s: float
    bubble_s: float
    optimizer_s: float
    overhead_s: float

    @property
    def total_s(self) -> float:
        """All of them."""
        return self.compute_s + self.exposed_communication_s + self.bubble_s + self.optimizer_s + self.overhead_s


def breakdown_of_row(timeline: Timeline, spans: Spans, row: int, communication: Floats) -> Breakdown:
    """Breakdown of one row; ``communication`` are the seconds of communication within every cost."""
    plan = timeline.plan
    lane = spans.on(row, Stream.COMPUTE)
    duration = lane.end - lane.start
    inside = np.minimum(communication[plan.cost[lane.task]], duration)
    category = plan.category[lane.task]
    optimizing = category == Category.OPTIMIZER
    communicating = category == Category.COMMUNICATION
    inside = np.where(communicating, duration, inside)
    own = duration - inside
    gaps = _gaps(lane.start, lane.end, timeline.step_s)
    streams = [spans.on(row, s) for s in (Stream.COMMUNICATION, Stream.DATA, Stream.SEND_FORWARD, Stream.SEND_BACKWARD)]
    busy = _union(np.concatenate([s.start for s in streams]), np.concatenate([s.end for s in streams]))
    host = spans.on(row, Stream.HOST)
    either = _union(np.concatenate([busy[0], host.start]), np.concatenate([busy[1], host.end]))
    waiting = float((gaps[1] - gaps[0]).sum())
    for_bytes = _overlap(gaps, busy)
    for_host = _overlap(gaps, either) - for_bytes
    return Breakdown(
        compute_s=float(own[~optimizing].sum()),
        optimizer_s=float(own[optimizing].sum()),
        exposed_communication_s=float(inside.sum()) + for_bytes,
        overhead_s=for_host,
        bubble_s=max(0.0, waiting - for_bytes - for_host),
    )


def mean_breakdown(parts: list[Breakdown]) -> Breakdown:
    """The average over ranks."""
    count = len(parts)
    return Breakdown(
        compute_s=sum(p.compute_s for p in parts) / count,
        exposed_communication_s=sum(p.exposed_communication_s for p in parts) / count,
        bubble_s=sum(p.bubble_s for p in parts) / count,
        optimizer_s=sum(p.optimizer_s for p in parts) / count,
        overhead_s=sum(p.overhead_s for p in parts) / count,
    )


def _gaps(start: Floats, end: Floats, total: float) -> tuple[Floats, Floats]:
    """The idle intervals of a lane whose spans do not overlap."""
    left = np.concatenate([[0.0], end])
    right = np.concatenate([start, [total]])
    keep = right > left
    return left[keep], right[keep]


def _union(start: Floats, end: Floats) -> tuple[Floats, Floats]:
    """Disjoint intervals that cover the same time, in order."""
    if not len(start):
        return start, end
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    opens = np.concatenate([[True], start[1:] > end[:-1]])
    closes = np.concatenate([opens[1:], [True]])
    return start[opens], end[closes]


def _overlap(a: tuple[Floats, Floats], b: tuple[Floats, Floats]) -> float:
    """Length of the intersection of two sets of disjoint intervals."""
    if not len(a[0]) or not len(b[0]):
        return 0.0
    points = np.stack([b[0], b[1]], axis=1).ravel()
    covered = np.concatenate([[0.0], np.cumsum(b[1] - b[0])])
    level = np.stack([covered[:-1], covered[1:]], axis=1).ravel()
    return float((np.interp(a[1], points, level) - np.interp(a[0], points, level)).sum())
