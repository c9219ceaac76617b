"""Figures of a step with parameter servers: its time, the parts of its time, waits, and the critical path."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

import numpy as np

from traincast.estimate import Estimates
from traincast.report.breakdown import Breakdown, mean_breakdown
from traincast.report.critical_path import PathEntry, critical_tasks, summarize
from traincast.report.figures import (
    SHOWN_ENTRIES,
    Pace,
    StepFigures,
    demand_per_device,
    pace_of,
    peak_flops,
    rows_to_report,
    sources,
    uses_of,
)
from traincast.report.report import RankReport, RankWaits
from traincast.report.split import split_of
from traincast.simulate import Timeline
from traincast.simulate.server_timeline import ServerJob
from traincast.simulate.server_waits import WorkerTimes, worker_times
from traincast.simulate.servers import ServerRun, measure
from traincast.strategy import Lowered, Request

_EXCHANGED: Final = re.compile(r"^(push|pull|update) ")


def figures_of_servers(
    request: Request, lowered: Lowered, estimates: Estimates, *, alone: Timeline, job: ServerJob, timeline: Timeline
) -> StepFigures:
    """Return the figures of a step whose workers exchange gradients and weights through parameter servers.

    ``lowered`` is the step of the workers without any exchange, and ``alone`` its timeline. ``timeline`` is the
    timeline of ``job`` that has the critical path. The parts of the step are means over the workers: computation,
    overhead of the host, exposed communication (waiting for pushes and pulls to arrive), and bubble (waiting for a
    server's update, or for another worker to compute). They add up to the step.
    """
    run, times = measure(job.setup, job.run), worker_times(job.setup, job.pieces, job.run)
    parts = _breakdowns(times, run.step_s)
    mean = mean_breakdown(parts)
    (memory,) = lowered.memory
    demand = demand_per_device(lowered.plan)
    return StepFigures(
        pace=_pace(request, lowered, pace_of(lowered, estimates, alone).slowed(run.step_s), run),
        breakdown=mean,
        calibrated_s=0.0,  # the works are calibrated; the step is taken as simulated
        split=split_of(lowered.plan, estimates.seconds, lowered.request.cluster, breakdown=mean),
        demand=replace(demand, communication_bytes=2.0 * sum(piece.nbytes for piece in job.pieces)),
        estimated_by=sources(lowered.plan, estimates),
        ranks=tuple(
            RankReport(rank=worker, stage=0, breakdown=parts[worker], memory=memory)
            for worker in rows_to_report(job.setup.workers, 1)
        ),
        waits=() if job.setup.alike else _waits(times, run.step_s),
        on_path=uses_of(lowered.plan, critical_tasks(alone)),
        critical_path=_critical_path(job, timeline),
        servers=run,
    )


def _pace(request: Request, lowered: Lowered, pace: Pace, run: ServerRun) -> Pace:
    """Return the pace on the whole cluster: MFU counts nodes with only servers, and the interval starts at the floor.

    Asynchronous workers may be faster than the floor of their own step; then the interval starts at the step. Each
    worker counts with its own rate and its own share of the batch.
    """
    dtype = request.precision.linear.value
    own = peak_flops(lowered.request.cluster, dtype) / peak_flops(request.cluster, dtype)
    low_s = max(pace.low_s, min(pace.floor_s, pace.step_s))
    if not request.strategy.shares:
        return replace(pace, low_s=low_s, mfu=pace.mfu * own)
    samples = request.strategy.samples(request.global_batch)
    rate = sum(count * steps for count, steps in zip(samples, run.steps_per_s_by_worker, strict=True))
    more = rate / pace.samples_per_s
    return replace(
        pace, low_s=low_s, samples_per_s=rate, tokens_per_s=pace.tokens_per_s * more, mfu=pace.mfu * own * more
    )


def _breakdowns(times: WorkerTimes, step_s: float) -> list[Breakdown]:
    """Return the parts of an average step, for each worker."""
    scale = step_s / times.window_s
    columns = (times.computing_s, times.launching_s, times.bytes_s, times.others_s)
    return [
        Breakdown(
            compute_s=compute, overhead_s=launch, exposed_communication_s=moving, bubble_s=others, optimizer_s=0.0
        )
        for compute, launch, moving, others in zip(*((column * scale).tolist() for column in columns), strict=True)
    ]


def _waits(times: WorkerTimes, step_s: float) -> tuple[RankWaits, ...]:
    """Return how long each worker waits in an average step, in ascending order."""
    scale = step_s / times.window_s
    busy = (times.computing_s + times.launching_s) * scale
    order = np.argsort(-busy, kind="stable").tolist()
    return tuple(
        RankWaits(
            rank=worker,
            busy_s=float(busy[worker]),
            waiting_s=max(0.0, step_s - float(busy[worker])),
            for_rank=int(times.for_worker[worker]),
            for_rank_s=float(times.for_worker_s[worker] * scale),
        )
        for worker in order
    )


def _critical_path(job: ServerJob, timeline: Timeline) -> tuple[PathEntry, ...]:
    """Return the time on the critical path by label; pushes, pulls and updates of all layers are one entry each."""
    seconds = np.zeros(len(timeline.plan.works))
    seconds[: len(job.works)] = job.seconds[job.setup.kind(job.slowest)]
    merged: dict[str, PathEntry] = {}
    for entry in summarize(timeline, critical_tasks(timeline), seconds):
        label = re.sub(r"\d+", "*", entry.label) if _EXCHANGED.match(entry.label) else entry.label
        known = merged.get(label, PathEntry(label=label, seconds=0.0, share=0.0, count=0))
        merged[label] = PathEntry(
            label=label,
            seconds=known.seconds + entry.seconds,
            share=known.share + entry.share,
            count=known.count + entry.count,
        )
    return tuple(sorted(merged.values(), key=lambda entry: -entry.seconds)[:SHOWN_ENTRIES])
