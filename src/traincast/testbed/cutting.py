"""Measured spans as a forecast would draw them: waiting is neither compute nor communication.

A run with real compute records a whole pass as one span, with everything that the pass waited for inside. A collective
is recorded from its call, although it moves nothing until the last rank has called it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from traincast.simulate import Timeline
from traincast.strategy.plan import NUM_STREAMS, Category
from traincast.testbed.activity import (
    COLUMNS,
    COMPUTE_CLASSES,
    SERVER_CLASSES,
    ActivitySpans,
    busy_seconds,
    class_of,
    places_of,
)

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def groups_of(timeline: Timeline) -> dict[tuple[str, int], tuple[int, ...]]:
    """Return the ranks that take part in a collective, by its class and one of its ranks."""
    plan, found = timeline.plan, {}
    for task in np.flatnonzero(plan.category == Category.COMMUNICATION).tolist():
        rows = np.unique(plan.lanes[plan.lane_start[task] : plan.lane_start[task + 1]] // NUM_STREAMS)
        name = class_of(plan.labels[plan.label[task]])
        if len(rows) > 1 and name not in SERVER_CLASSES:
            ranks = tuple(int(rank) for rank in plan.ranks[rows])
            found.update({(name, rank): ranks for rank in ranks})
    return found


def aligned(spans: ActivitySpans, groups: Mapping[tuple[str, int], tuple[int, ...]]) -> ActivitySpans:
    """Return measured spans in which a collective begins when the last of its ranks has called it.

    Before that, a rank that called it earlier only waits. The n-th spans of a class on the ranks of a group are one
    collective; where their numbers differ, the spans stay as they are.
    """
    start = spans.start.copy()
    where = places_of(spans)
    for (name, rank), ranks in groups.items():
        if rank != ranks[0] or name not in spans.classes:
            continue
        kind = spans.classes.index(name)
        for step in np.unique(spans.step).tolist():
            found = [where.get((member, kind, step)) for member in ranks]
            members = [places for places in found if places is not None]
            if len(members) < len(ranks) or len({len(places) for places in members}) > 1:
                continue
            rows = np.stack(members)
            start[rows] = np.minimum(spans.start[rows].max(axis=0), spans.end[rows])
    return replace(spans, start=start)


def blocking_classes(predicted: ActivitySpans) -> set[str]:
    """Return the classes of communication that never run beside compute in a forecast."""
    where = places_of(predicted)
    compute = {kind for kind, name in enumerate(predicted.classes) if name in COMPUTE_CLASSES}
    beside: set[int] = set()
    for rank in np.unique(predicted.rank).tolist():
        own = [places for (of, kind, _), places in where.items() if of == rank and kind in compute]
        if not own:
            continue
        computing = np.concatenate(own)
        alone = _busy(predicted, computing)
        for (of, kind, _), places in where.items():
            if of == rank and kind not in compute:
                both = _busy(predicted, np.concatenate([computing, places]))
                if both < (alone + _busy(predicted, places)) * (1.0 - 1e-9):
                    beside.add(kind)
    return {name for kind, name in enumerate(predicted.classes) if kind not in compute | beside}


def _busy(spans: ActivitySpans, places: Ints) -> float:
    order = places[np.argsort(spans.start[places], kind="stable")]
    return busy_seconds(spans.start[order], spans.end[order])


def without_waiting(spans: ActivitySpans, waits: ActivitySpans, blocking: Collection[str]) -> ActivitySpans:
    """Return measured spans in which compute has gaps for ``waits``, and for communication of ``blocking`` classes.

    Communication is cut out of a span of compute that it begins in and that is longer: a pass recorded as one span. The
    end of a message may lie in a short span after it, which stays whole.
    """
    chosen = np.isin(spans.kind, [kind for kind, name in enumerate(spans.classes) if name in blocking])
    compute = np.isin(spans.kind, [kind for kind, name in enumerate(spans.classes) if name in COMPUTE_CLASSES])
    rank, step = (np.concatenate([getattr(waits, key), getattr(spans, key)[chosen]]) for key in ("rank", "step"))
    start, end = (np.concatenate([getattr(waits, key), getattr(spans, key)[chosen]]) for key in ("start", "end"))
    always = np.arange(len(rank)) < len(waits)
    pieces: list[tuple[int, float, float]] = []
    gone = np.zeros(len(spans), dtype=bool)
    for of, at in {*zip(rank.tolist(), step.tolist(), strict=True)}:
        own = np.flatnonzero((rank == of) & (step == at))
        begins, ends, waited = start[own], end[own], always[own]
        for place in np.flatnonzero(compute & (spans.rank == of) & (spans.step == at)).tolist():
            left, right = float(spans.start[place]), float(spans.end[place])
            inside = (ends > left) & (begins < right)
            inside &= waited | ((begins >= left) & (ends - begins < right - left))
            if inside.any():
                gone[place] = True
                holes = _union(begins[inside], ends[inside])
                pieces += [(place, a, b) for a, b in _between(left, right, holes) if b > a]
    if not gone.any():
        return spans
    rows = np.array([place for place, _, _ in pieces], dtype=np.int64)
    kept, cut = spans.taken(~gone), spans.taken(rows)
    cut = replace(cut, start=np.array([a for _, a, _ in pieces]), end=np.array([b for _, _, b in pieces]))
    joined: dict[str, Any] = {n: np.concatenate([getattr(kept, n), getattr(cut, n)]) for n in COLUMNS}
    return replace(kept, **joined)


def _union(start: Floats, end: Floats) -> Floats:
    """Return the union of intervals as [intervals, 2], in order."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    first = np.flatnonzero(np.concatenate([[True], start[1:] > end[:-1]]))
    return np.stack([start[first], end[np.append(first[1:], len(end)) - 1]], axis=1)


def _between(left: float, right: float, holes: Floats) -> list[tuple[float, float]]:
    """Return the parts of [left, right] outside ``holes``, which are disjoint and in order."""
    edges = [left, *holes.ravel().tolist(), right]
    return [(max(left, a), min(right, b)) for a, b in zip(edges[0::2], edges[1::2], strict=True)]
