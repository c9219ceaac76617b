"""Activity error: how far the forecast of each device's activities is from what was measured.

The spans of a device are sorted into classes: forward, backward, optimizer, and one class for each kind of
communication. Three figures describe a class within a step: its *start* (when its first span begins), its *end* (when
its last span ends) and its *busy* time (the length of the union of its spans). Measured figures are means over the
counted steps. The error of a figure is |forecast − measured| divided by the measured step. The error of a class is the
mean over its figures, that of a device the mean over its classes, and that of a run the mean over its devices. DistSim
(Lu et al., 2023) reports such errors of single devices beside the error of the step.

Measured spans are first cut as a forecast would draw them: waiting is neither compute nor communication.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from traincast.report.trace import lanes_by_row
from traincast.simulate import Timeline
from traincast.strategy.plan import NUM_STREAMS, Category, Plan, Stream
from traincast.testbed.outcome import ClassActivity, ClassFigures, DeviceActivity


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


Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Figure = Literal["start", "end", "busy"]

COLUMNS: Final = ("rank", "step", "kind", "label", "microbatch", "start", "end")
"""The columns of :class:`ActivitySpans`."""
COMPUTE_CLASSES: Final = ("forward", "backward", "optimizer")
SERVER_CLASSES: Final = ("push", "pull")
_STREAMS: Final = {
    **dict.fromkeys(COMPUTE_CLASSES, Stream.COMPUTE),
    "pp send activations": Stream.SEND_FORWARD,
    "pp send gradients": Stream.SEND_BACKWARD,
    "push": Stream.PUSH,
    "pull": Stream.PULL,
}
_CLASS: Final = re.compile(
    r"pp send activations|pp send gradients|push\b|pull\b|[a-z]+ [a-z_]+?(?=(?:_into)?_tensor\b|[^a-z_]|$)"
)
_ALL: Final[tuple[Figure, ...]] = ("start", "end", "busy")
_COMPUTE_OF: Final = {Category.FORWARD: "forward", Category.BACKWARD: "backward", Category.OPTIMIZER: "optimizer"}


def class_of(label: str) -> str:
    """Return the class of a communication from its label: ``tp all_reduce layers.*.mlp`` is ``tp all_reduce``."""
    found = _CLASS.match(label)
    return found[0] if found else label


def stream_of(name: str) -> Stream:
    """Return the lane of a worker on which a class of spans is drawn."""
    return _STREAMS.get(name, Stream.DATA if name.startswith("dp ") else Stream.COMMUNICATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivitySpans:
    """Spans as columns, of one step or of many.

    ``classes[kind[i]]`` is the class of span i, and ``labels[label[i]]`` its name. Times are in
    seconds from the start of the step. ``microbatch`` is −1 for spans of no microbatch.
    """

    classes: tuple[str, ...]
    labels: tuple[str, ...]
    rank: Ints
    step: Ints
    kind: Ints
    label: Ints
    microbatch: Ints
    start: Floats
    end: Floats

    def __len__(self) -> int:
        return len(self.rank)

    def taken(self, chosen: npt.NDArray[np.bool_] | Ints) -> ActivitySpans:
        """Return the chosen spans."""
        return replace(self, **{name: getattr(self, name)[chosen] for name in COLUMNS})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Class:
    """One class on one device: its figures in every step, and its spans in every step."""

    start: Floats
    end: Floats
    busy: Floats
    spans: tuple[Floats, ...]
    """For each step, [spans, 2]: start and end; spans of one pass of a microbatch are one."""

    @property
    def figures(self) -> ClassFigures:
        """The means over the steps."""
        return ClassFigures(
            start_s=float(self.start.mean()),
            end_s=float(self.end.mean()),
            busy_s=float(self.busy.mean()),
            spans=float(np.mean([len(spans) for spans in self.spans])),
        )


def predicted_spans(timeline: Timeline) -> ActivitySpans:
    """Return the spans of a forecast; launches of the host, waits, and tasks that take no time have none.

    A message belongs to the rank that sends it; a push or a pull belongs to the worker, not to the server.
    """
    plan = timeline.plan
    task, _, row_start = lanes_by_row(plan)
    rank = plan.ranks[np.repeat(np.arange(len(plan.ranks)), np.diff(row_start))]
    category = plan.category[task]
    keep = (category != Category.HOST) & (category != Category.WAIT) & (timeline.end > timeline.start)[task]
    keep &= (category != Category.COMMUNICATION) | (rank < plan.mesh.num_ranks)
    task, rank = task[keep], rank[keep]
    names = _class_names(plan, task)
    classes, kind = np.unique(names, return_inverse=True)
    return ActivitySpans(
        classes=tuple(str(name) for name in classes),
        rank=rank.astype(np.int64),
        step=np.zeros(len(task), dtype=np.int64),
        kind=kind.astype(np.int64),
        labels=plan.labels,
        label=plan.label[task].astype(np.int64),
        microbatch=plan.microbatch[task].astype(np.int64),
        start=timeline.start[task],
        end=timeline.end[task],
    )


def _class_names(plan: Plan, task: Ints) -> npt.NDArray[np.str_]:
    by_label = [class_of(label) for label in plan.labels]
    names = [
        by_label[label] if category == Category.COMMUNICATION else _COMPUTE_OF[Category(category)]
        for category, label in zip(plan.category[task].tolist(), plan.label[task].tolist(), strict=True)
    ]
    return np.array(names, dtype=np.str_)


def places_of(spans: ActivitySpans) -> dict[tuple[int, int, int], Ints]:
    """Return the spans of every rank, class and step, in order of their start."""
    order = np.lexsort((spans.end, spans.start, spans.step, spans.kind, spans.rank))
    keys = np.stack([spans.rank[order], spans.kind[order], spans.step[order]])
    opens = np.flatnonzero(np.any(np.diff(keys, axis=1, prepend=-2), axis=0))
    parts = np.split(order, opens[1:]) if len(order) else []
    return {(int(r), int(k), int(s)): part for (r, k, s), part in zip(keys[:, opens].T, parts, strict=True)}


def busy_seconds(start: Floats, end: Floats) -> float:
    """Return the length of the union of intervals, which must be sorted by start."""
    if not len(start):
        return 0.0
    reached = np.maximum.accumulate(end)
    begins = start.copy()
    begins[1:] = np.maximum(start[1:], reached[:-1])
    return float(np.maximum(end - begins, 0.0).sum())


def _by_class(spans: ActivitySpans) -> dict[tuple[int, str], _Class]:
    steps: dict[tuple[int, str], list[Ints]] = {}
    for (rank, kind, _), places in places_of(spans).items():
        steps.setdefault((rank, spans.classes[kind]), []).append(places)
    found = {}
    for (rank, name), parts in steps.items():
        found[rank, name] = _Class(
            start=np.array([spans.start[part].min() for part in parts]),
            end=np.array([spans.end[part].max() for part in parts]),
            busy=np.array([busy_seconds(spans.start[part], spans.end[part]) for part in parts]),
            spans=tuple(_passes(spans, part, name) for part in parts),
        )
    return found


def _passes(spans: ActivitySpans, places: Ints, name: str) -> Floats:
    """Return start and end of each span; for compute, of each run of spans of the same microbatch."""
    first = np.arange(len(places))
    if name in COMPUTE_CLASSES:
        first = np.flatnonzero(np.diff(spans.microbatch[places], prepend=-2))
    return np.stack([spans.start[places][first], np.maximum.reduceat(spans.end[places], first)], axis=1)


def compared_figures(name: str, *, servers: bool, synchronous: bool = True) -> tuple[Figure, ...]:
    """Return the figures of a class that are compared.

    With parameter servers, pushes, pulls and updates may straddle the border of two steps, so only their busy time is
    compared. Asynchronous workers have no common start, so only busy times are compared.
    """
    if servers and (not synchronous or name in (*SERVER_CLASSES, "optimizer")):
        return ("busy",)
    return _ALL


def activities(
    measured: ActivitySpans,
    predicted: ActivitySpans,
    *,
    step_s: float,
    servers: bool = False,
    synchronous: bool = True,
    scale: Mapping[int, float] | None = None,
    predicted_s: float | None = None,
) -> tuple[DeviceActivity, ...]:
    """Return the activity error of every device; ``step_s`` is the measured step, ``predicted_s`` the forecast one.

    A class that only one side has counts with its busy time as a share of the step. ``scale`` has a factor on the
    predicted busy times of a rank.
    """
    real, forecast = _by_class(measured), _by_class(predicted)
    for (rank, name), found in forecast.items():
        forecast[rank, name] = replace(found, busy=found.busy * (scale or {}).get(rank, 1.0))
    devices = []
    for rank in sorted({rank for rank, _ in (*real, *forecast)}):
        names = {name for of, name in (*real, *forecast) if of == rank}
        classes = tuple(
            _compare(
                name, real.get((rank, name)), forecast.get((rank, name)), step_s,
                compared_figures(name, servers=servers, synchronous=synchronous),
            )
            for name in sorted(names, key=_order)
        )  # fmt: skip
        devices.append(
            DeviceActivity(
                rank=rank,
                classes=classes,
                measured_idle_s=_idle(measured, rank, step_s) if synchronous else None,
                predicted_idle_s=_idle(predicted, rank, predicted_s) if synchronous and predicted_s else None,
            )
        )
    return tuple(devices)


def _idle(spans: ActivitySpans, rank: int, step_s: float) -> float:
    """Return the seconds of a step in which a device has no span; the mean over steps."""
    own = np.flatnonzero(spans.rank == rank)
    own = own[np.lexsort((spans.start[own], spans.step[own]))]
    steps = np.split(own, np.flatnonzero(np.diff(spans.step[own])) + 1)
    return max(0.0, step_s - float(np.mean([busy_seconds(spans.start[part], spans.end[part]) for part in steps])))


def _order(name: str) -> tuple[int, str]:
    return (COMPUTE_CLASSES.index(name) if name in COMPUTE_CLASSES else len(COMPUTE_CLASSES), name)


def _compare(
    name: str, real: _Class | None, forecast: _Class | None, step_s: float, figures: Sequence[Figure]
) -> ClassActivity:
    measured = real.figures if real else None
    predicted = forecast.figures if forecast else None
    return ClassActivity(
        name=name,
        measured=measured,
        predicted=predicted,
        step_s=step_s,
        compared=tuple(figures),
        noise=_noise(real, step_s, figures) if real else 0.0,
        span_shift=_shift(real, forecast, step_s) if real and forecast and len(figures) > 1 else None,
    )


def _noise(real: _Class, step_s: float, figures: Sequence[Figure]) -> float:
    """Return the error that one measured step has against the mean of all: the mean over steps and figures."""
    columns = [getattr(real, figure) for figure in figures]
    return float(np.mean([np.abs(column - column.mean()).mean() for column in columns])) / step_s


def _shift(real: _Class, forecast: _Class, step_s: float) -> float | None:
    """Return the mean shift of the start and end of each span, matched by order; ``None`` if the numbers differ."""
    (expected,) = forecast.spans
    same = [spans for spans in real.spans if len(spans) == len(expected)]
    if len(same) < len(real.spans):
        return None
    return float(np.abs(np.mean(same, axis=0) - expected).mean()) / step_s
