"""What parameter servers make of a step: its time, its parts, who waits for whom, what decides it."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from typing import Final

import numpy as np

from traincast.report.breakdown import Breakdown, mean_breakdown
from traincast.report.critical_path import PathEntry, critical_tasks, summarize
from traincast.report.report import SHOWN_ENTRIES, RankReport, RankWaits, Report, rows_to_report
from traincast.simulate import Timeline
from traincast.simulate.server_timeline import ServerJob
from traincast.simulate.server_waits import WorkerTimes, worker_times
from traincast.simulate.servers import measure

_EXCHANGED: Final = re.compile(r"^(push|pull|update) ")


def with_servers(report: Report, job: ServerJob, timeline: Timeline) -> Report:
    """``report`` of a step without any exchange, as one whose workers exchange through parameter servers.

    ``timeline`` is the one of ``job`` that shows the critical path. Parts of the step are those of its workers, on
    average: computation, overhead of the host, exposed communication (waiting for pushes and pulls to arrive), and
    bubble (waiting for a server's update, or for another worker to compute). They add up to the step.
    """
    run, times = measure(job.setup, job.run), worker_times(job.setup, job.pieces, job.run)
    parts = _breakdowns(times, run.step_s)
    memory = report.ranks[0].memory
    ratio = run.step_s / report.step_s
    return replace(
        report,
        step_s=run.step_s,
        low_s=report.low_s * ratio,
        high_s=report.high_s * ratio,
        samples_per_s=report.samples_per_s / ratio,
        tokens_per_s=report.tokens_per_s / ratio,
        mfu=report.mfu / ratio,
        **asdict(mean_breakdown(parts)),
        calibrated_s=0.0,  # the works of a run with servers are calibrated, the step is taken as simulated
        demand=replace(report.demand, communication_bytes=2.0 * sum(piece.nbytes for piece in job.pieces)),
        ranks=tuple(
            RankReport(rank=worker, stage=0, breakdown=parts[worker], memory=memory)
            for worker in rows_to_report(job.setup.workers, 1)
        ),
        waits=() if job.setup.alike else _waits(times, run.step_s),
        critical_path=_critical_path(job, timeline),
        servers=run,
    )


def _breakdowns(times: WorkerTimes, step_s: float) -> list[Breakdown]:
    """The parts of an average step, for every worker."""
    scale = step_s / times.window_s
    columns = (times.computing_s, times.launching_s, times.bytes_s, times.others_s)
    return [
        Breakdown(
            compute_s=compute, overhead_s=launch, exposed_communication_s=moving, bubble_s=others, optimizer_s=0.0
        )
        for compute, launch, moving, others in zip(*((column * scale).tolist() for column in columns), strict=True)
    ]


def _waits(times: WorkerTimes, step_s: float) -> tuple[RankWaits, ...]:
    """Workers by how long they wait in an average step, those that wait least first."""
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
    """Time on the critical path per label; what the same exchange of several layers takes counts together."""
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
