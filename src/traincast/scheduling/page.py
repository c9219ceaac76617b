"""Writes the page of a schedule: one queue under one or several policies in one HTML file that loads nothing.

This module makes the data of the page. The views in :mod:`traincast.pages` draw them.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from traincast.errors import RequestError
from traincast.files import write_text
from traincast.pages import page_text
from traincast.scheduling.joblogs.read import JobLog
from traincast.scheduling.queue.failures import Failures
from traincast.scheduling.queue.metrics import Metrics
from traincast.scheduling.queue.outcome import History, JobOutcome, Outcome
from traincast.scheduling.space.cluster import NodeIndex, SharedCluster
from traincast.scheduling.space.free import UNIT, bits_of

Floats = npt.NDArray[np.float64]

BINS: Final = 600
"""Number of equal time steps of the curves, and of the occupancy of large clusters."""
MAX_GPU_ROWS: Final = 256
"""Up to this many GPUs, each GPU has its own row."""
MAX_SPANS: Final = 20_000
"""Most stretches of jobs on GPUs that a page holds; if there are more, it shows occupancy in time steps."""
MAX_NODE_ROWS: Final = 96
"""Most rows of nodes; if there are more nodes, neighbours share a row."""
QUANTILES: Final = 201


class ShownQueue(Protocol):
    """What the page reads of a queue; see :class:`traincast.scheduling.schedule.Queue`."""

    @property
    def log(self) -> JobLog:
        """The jobs."""

    @property
    def failures(self) -> Failures | None:
        """The failures of nodes; ``None`` without any."""


class ShownSchedule(Protocol):
    """What the page reads of a schedule; see :class:`traincast.scheduling.schedule.Schedule`."""

    @property
    def queue(self) -> ShownQueue:
        """What was simulated."""

    @property
    def outcome(self) -> Outcome:
        """The outcome of each job, and the cluster over time."""

    @property
    def seed(self) -> int:
        """The seed of the random numbers."""

    @property
    def metrics(self) -> Metrics:
        """The figures of all jobs."""

    @property
    def fates(self) -> Sequence[JobOutcome]:
        """The outcome of each job, in order of submission."""

    def figures(self) -> dict[str, Any]:
        """Return the figures as JSON shows them."""

    def to_dict(self) -> dict[str, Any]:
        """Return all figures and what was simulated."""


def write_page(runs: Sequence[ShownSchedule], path: Path) -> None:
    """Write the schedules of one queue, one for each policy, as one self-contained HTML file."""
    write_text(path, page_text("schedule", page_data(runs)))


def page_data(runs: Sequence[ShownSchedule]) -> dict[str, Any]:
    """Return the data that the page shows; times count from the first submission."""
    if not runs:
        raise RequestError("no schedules: a page shows at least one")
    first = runs[0]
    begin = min(fate.submit_s for fate in first.fates)
    span = max(run.outcome.makespan_s for run in runs)
    exact = _is_exact(runs)
    about = first.to_dict()
    for name in (*first.figures(), "trace"):
        about.pop(name, None)
    return {
        "about": {**about, "trace": first.queue.log.path.name},
        "span_s": span,
        "exact": exact,
        "rows": _gpu_rows(first.outcome.cluster) if exact else _node_rows(first.outcome.cluster),
        "jobs": _jobs(first.outcome, begin) if exact else None,
        "policies": [_policy(run, begin, span, exact=exact) for run in runs],
    }


def _is_exact(runs: Sequence[ShownSchedule]) -> bool:
    """Whether the page can show every stretch of every job on every GPU."""
    spans = sum(len(segment.allocation.gpus) for run in runs for segment in run.outcome.segments)
    return runs[0].outcome.cluster.num_gpus <= MAX_GPU_ROWS and spans <= MAX_SPANS


def _policy(run: ShownSchedule, begin: float, span: float, *, exact: bool) -> dict[str, Any]:
    outcome = run.outcome
    quantiles = np.linspace(0, 1, QUANTILES)
    jct, queue = (np.array([getattr(fate, name) for fate in outcome.fates]) for name in ("jct_s", "queue_s"))
    return {
        **run.figures(),
        "gpu_time": _gpu_time(run),
        "curves": _curves(outcome, begin, span),
        "jct": _rounded(np.quantile(jct, quantiles)),
        "queue": _rounded(np.quantile(queue, quantiles)),
        "spans": _spans(outcome, begin) if exact else None,
        "down": _down(run, begin, span) if exact else None,
        "heat": None if exact else _heat(outcome, begin, span),
        "fates": {
            "start": [round(fate.start_s - begin, 3) for fate in outcome.fates],
            "end": [round(fate.end_s - begin, 3) for fate in outcome.fates],
            "stops": [fate.preemptions + fate.restarts for fate in outcome.fates],
        }
        if exact
        else None,
    }


def _rounded(values: Floats, digits: int = 3) -> list[float]:
    found: list[float] = np.round(values, digits).tolist()
    return found


def _gpu_time(run: ShownSchedule) -> dict[str, float]:
    """Split the GPU time from the first submission to the last end by use, in GPU seconds; the parts add up to it."""
    found, outcome = run.metrics, run.outcome
    total = outcome.cluster.num_gpus * outcome.makespan_s
    held = sum(fate.served_gpu_s for fate in outcome.fates)
    down = float((outcome.history.down_gpus[:-1] * np.diff(outcome.history.time_s)).sum())
    waited = found.idle_while_waiting * total
    return {
        "work": held - found.lost_gpu_s - found.overhead_gpu_s,
        "overhead": found.overhead_gpu_s,
        "lost": found.lost_gpu_s,
        "down": down,
        "waited": waited,
        "idle": max(0.0, total - held - down - waited),
    }


def _curves(outcome: Outcome, begin: float, span: float) -> dict[str, list[float]]:
    """Return the mean of each curve in every time step."""
    history = outcome.history
    edges = begin + np.linspace(0, span, BINS + 1)
    total = outcome.cluster.num_gpus
    return {
        "waiting": _rounded(_mean(history, history.waiting, edges)),
        "running": _rounded(_mean(history, history.running, edges)),
        "used": _rounded(_mean(history, history.used_gpus / total, edges), 4),
        "down": _rounded(_mean(history, history.down_gpus / total, edges), 4),
    }


def _mean(history: History, values: Floats, edges: Floats) -> Floats:
    """Average a step function between ``edges``: each value holds until the next time; it is 0 outside."""
    summed = np.concatenate([[0.0], np.cumsum(values[:-1] * np.diff(history.time_s))])
    found: Floats = np.diff(np.interp(edges, history.time_s, summed)) / np.diff(edges)
    return found


def _gpu_rows(cluster: SharedCluster) -> list[dict[str, Any]]:
    return [{"name": node.name, "gpus": node.num_gpus, "type": node.gpu_type} for node in cluster.nodes]


def _node_rows(cluster: SharedCluster) -> list[dict[str, Any]]:
    """Return one row per node, or per group of neighbouring nodes if there are too many."""
    nodes, size = cluster.nodes, _nodes_per_row(cluster)
    return [
        {
            "name": nodes[at].name,
            "last": nodes[min(at + size, len(nodes)) - 1].name,
            "gpus": sum(node.num_gpus for node in nodes[at : at + size]),
            "type": nodes[at].gpu_type,
        }
        for at in range(0, len(nodes), size)
    ]


def _nodes_per_row(cluster: SharedCluster) -> int:
    return -(-len(cluster.nodes) // MAX_NODE_ROWS)


def _jobs(outcome: Outcome, begin: float) -> dict[str, list[Any]]:
    return {
        "job_id": [job.job_id for job in outcome.jobs],
        "vc": [job.vc for job in outcome.jobs],
        "gpus": [job.num_gpus for job in outcome.jobs],
        "submit": [round(job.submit_s - begin, 3) for job in outcome.jobs],
    }


def _spans(outcome: Outcome, begin: float) -> dict[str, list[float]]:
    """Return the stretches of jobs on neighbouring GPUs as columns.

    ``row`` and ``rows`` are the first row and their number. A job that shares a GPU takes ``share`` of its row, from
    ``offset`` on.
    """
    first = np.concatenate([[0], np.cumsum([node.num_gpus for node in outcome.cluster.nodes])]).tolist()
    names = ("job", "start", "end", "row", "rows", "offset", "share")
    columns: dict[str, list[float]] = {name: [] for name in names}
    shared: dict[tuple[int, int], list[tuple[float, int, int]]] = {}
    for segment in sorted(outcome.segments, key=lambda s: (s.start_s, s.order)):
        held = segment.allocation
        start, end = round(segment.start_s - begin, 3), round(segment.end_s - begin, 3)
        for node, mask in held.gpus:
            for gpu, count in _runs_of(mask):
                offset = 0
                if held.units < UNIT:
                    others = shared.setdefault((node, gpu), [])
                    others[:] = [other for other in others if other[0] > segment.start_s]
                    offset = _lowest_gap(others, held.units)
                    others.append((segment.end_s, offset, held.units))
                row = (segment.order, start, end, first[node] + gpu, count, offset / UNIT, held.units / UNIT)
                for name, value in zip(names, row, strict=True):
                    columns[name].append(value)
    return columns


def _runs_of(mask: int) -> list[tuple[int, int]]:
    """Return the runs of neighbouring bits of a number, as (first bit, count)."""
    found: list[tuple[int, int]] = []
    for bit in bits_of(mask):
        if found and sum(found[-1]) == bit:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((bit, 1))
    return found


def _lowest_gap(taken: Sequence[tuple[float, int, int]], units: int) -> int:
    """Return the offset at which a share of a GPU is drawn: the lowest gap, or the top if no gap is large enough."""
    at = 0
    for _, offset, size in sorted(taken, key=lambda other: other[1]):
        if offset - at >= units:
            return at
        at = max(at, offset + size)
    return min(at, UNIT - units)


def _down(run: ShownSchedule, begin: float, span: float) -> list[tuple[int, int, float, float]]:
    """Return the outages as (first row, rows, from, to). The seed draws the same failures again."""
    if run.queue.failures is None:
        return []
    layout = NodeIndex(run.outcome.cluster)
    first = np.concatenate([[0], np.cumsum(layout.sizes)]).tolist()
    process = run.queue.failures.process(layout, seed=run.seed)
    since: dict[tuple[int, int], list[float]] = {}
    found: list[tuple[int, int, float, float]] = []

    def note(node: int, mask: int, start: float, end: float) -> None:
        for gpu, count in _runs_of(mask):
            if end > begin:
                found.append((first[node] + gpu, count, round(max(0.0, start - begin), 3), round(end - begin, 3)))

    while (now := process.next_s) < begin + span and len(found) < MAX_SPANS:
        gpus, is_repair = process.pop()
        for key in gpus:
            if is_repair:
                note(*key, since[key].pop(), now)
            else:
                since.setdefault(key, []).append(now)
    for key, starts in since.items():
        for start in starts:
            note(*key, start, begin + span)
    return found


def _heat(outcome: Outcome, begin: float, span: float) -> str:
    """Return the share of each row's GPUs in use in each time step, as bytes from 0 to 255 in base64.

    With W(t) = Σ gpus · (max(0, t − start) − max(0, t − end)) over all stretches, the use in a step is the growth of W.
    """
    size = _nodes_per_row(outcome.cluster)
    rows = -(-len(outcome.cluster.nodes) // size)
    pieces = [
        (node // size, s.start_s - begin, s.end_s - begin, mask.bit_count() * s.allocation.units / UNIT)
        for s in outcome.segments
        for node, mask in s.allocation.gpus
    ]
    row, start, end, gpus = (np.array(column) for column in zip(*pieces, strict=True))
    width = span / BINS
    edges = np.linspace(0, span, BINS + 1)
    grown = np.zeros((rows, BINS + 1))
    for times, weight in ((start, gpus), (end, -gpus)):
        at = np.minimum(np.ceil(times / width).astype(np.int64), BINS)
        held, moment = np.zeros_like(grown), np.zeros_like(grown)
        np.add.at(held, (row, at), weight)
        np.add.at(moment, (row, at), weight * times)
        grown += np.cumsum(held, axis=1) * edges - np.cumsum(moment, axis=1)
    capacity = np.zeros(rows)
    np.add.at(capacity, np.arange(len(outcome.cluster.nodes)) // size, [n.num_gpus for n in outcome.cluster.nodes])
    share = np.diff(grown, axis=1) / width / np.maximum(capacity, 1)[:, None]
    return base64.b64encode(np.rint(255 * np.clip(share, 0, 1)).astype(np.uint8).tobytes()).decode()
