"""Forecast job times: how long a described job takes, and how fast it runs on its GPUs.

::

    steps = StepTimes(cluster)                          # forecasts, each distinct case once
    log = forecast_durations(log, cluster, steps=steps)
    simulate(log.jobs, cluster, speeds=ForecastSpeeds(steps), placement="consolidated")
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from traincast.errors import RequestError
from traincast.scheduling.joblogs.job import Job
from traincast.scheduling.joblogs.read import JobLog
from traincast.scheduling.joblogs.table import Floats, Ints, jobs
from traincast.scheduling.joblogs.values import SHOWN
from traincast.scheduling.queue.speeds import PLAIN, PlacedGpus, Speeds
from traincast.scheduling.sharing.step_times import NOWHERE, JobFacts, Reference, StepTimes, What, Where
from traincast.scheduling.space.cluster import SharedCluster

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the number of forecasts done and the number of all."""


@dataclass(frozen=True, slots=True)
class ForecastSpeeds:
    """Speed of a job: its forecast step time on the reference placement over that on its GPUs.

    On a share of a GPU, a job has that share of its speed. ``others`` gives the speed of jobs without a model and a
    batch. Where a job cannot run, its speed is 0, which a simulation refuses: see `refuse_impossible`.
    """

    steps: StepTimes
    others: Speeds = PLAIN

    def speed(self, job: Job, placed: PlacedGpus) -> float:
        """Return the seconds of ``duration_s`` that the job completes in one second."""
        if not is_described(job) or not placed.nodes:
            return self.others.speed(job, placed)
        ask = facts_of(job)
        there = self.steps.step_s(ask.what, self.steps.where(placed)) / min(1.0, job.num_gpus)
        return 0.0 if there == NOWHERE else self.steps.reference(ask).step_s / there

    def refuse_impossible(self, queue: Iterable[Job]) -> None:
        """Refuse jobs that could be given GPUs on which they cannot run, before the simulation starts."""
        asks: dict[JobFacts, str] = {}
        for job in queue:
            if is_described(job):
                asks.setdefault(facts_of(job), job.job_id)
        for ask, name in asks.items():
            try:
                found = self.steps.reference(ask)
            except RequestError as error:
                raise RequestError(f"job {name}: {error}") from error
            if found.excluded:
                raise RequestError(
                    f"job {name} ({ask.what.model} with batch {ask.what.batch}) may be given {found.excluded[0]}, on "
                    f"which it cannot run: set its gpu_type to {found.where.gpu_type}"
                )

    def prepare(self, queue: Iterable[Job], *, progress: Progress | None = None) -> None:
        """Forecast in advance all step times that these jobs may need, on every GPU type and spread."""
        asks = dict.fromkeys(facts_of(job) for job in queue if is_described(job))
        cases = [(ask.what, where) for ask in asks for where in self.steps.placements(ask)]
        for done, (what, where) in enumerate(cases, 1):
            self.steps.step_s(what, where)
            if progress is not None:
                progress(done, len(cases))


def is_described(job: Job) -> bool:
    """Whether a job states model and batch, so that its step can be forecast."""
    return bool(job.model) and job.batch > 0


def facts_of(job: Job) -> JobFacts:
    """Return the facts that determine a job's reference placement."""
    return JobFacts(What(job.model, job.batch, job.strategy, job.is_elastic), job.num_gpus, job.vc, job.gpu_type)


def forecast_durations(
    log: JobLog, cluster: SharedCluster, *, steps: StepTimes | None = None, progress: Progress | None = None
) -> JobLog:
    """Return the log with a forecast ``duration_s`` for jobs that have none.

    It is the job's number of steps times its step time on the reference placement: packed on the fewest nodes of its
    GPU type. If a job may use several types and lacks memory on some, it must run on the type it is forecast on. Jobs
    that can run nowhere are refused, all in one line.
    """
    rows = np.flatnonzero(log.to_forecast)
    if not len(rows):
        return log
    steps = steps or StepTimes(cluster)
    asks, numbers, found = _references(log, rows, steps, progress)
    duration = log.numbers["duration_s"].copy()
    step_s = np.array([reference.step_s for reference in found], dtype=np.float64)
    duration[rows] = log.numbers["steps"][rows] * step_s[numbers]
    types = log.texts["gpu_type"].copy()
    bound = [row for row, number in zip(rows.tolist(), numbers.tolist(), strict=True) if found[number].excluded]
    for row, number in zip(rows.tolist(), numbers.tolist(), strict=True):
        if found[number].excluded:
            types[row] = found[number].where.gpu_type
    notes = [f"{log.path}: {jobs(len(rows))} without duration_s forecast, from {len(asks)} distinct descriptions"]
    if bound:
        notes.append(
            f"{log.path}: {jobs(len(bound))} bound to the GPU type on which they can run, {log.where(bound[0])} to "
            f"{types[bound[0]]}"
        )
    return log.with_columns(numbers={"duration_s": duration}, texts={"gpu_type": types}).with_notes(*notes)


def forecast_seconds(log: JobLog, steps: StepTimes, *, progress: Progress | None = None) -> Floats:
    """Forecast how long every job takes on its reference placement, ignoring its ``duration_s``."""
    rows = np.arange(len(log))
    missing = np.flatnonzero((log.texts["model"] == "") | (log.numbers["batch"] < 1) | (log.numbers["steps"] <= 0))
    if len(missing):
        raise RequestError(
            f"{log.path}: {jobs(len(missing))} of {len(log):,} cannot be forecast, {log.where(int(missing[0]))} "
            "first: a job needs model, batch and steps; give them, or choose other estimates"
        )
    _, numbers, found = _references(log, rows, steps, progress)
    step_s = np.array([reference.step_s for reference in found], dtype=np.float64)
    seconds: Floats = log.numbers["steps"] * step_s[numbers]
    return seconds


def _references(
    log: JobLog, rows: Ints, steps: StepTimes, progress: Progress | None
) -> tuple[list[JobFacts], Ints, list[Reference]]:
    """Return the distinct descriptions of some jobs, the number of each job's, and the reference of each."""
    steps.check_types()
    order: dict[JobFacts, int] = {}
    numbers = np.array([order.setdefault(_facts(log, row), len(order)) for row in rows.tolist()], dtype=np.int64)
    asks, found = list(order), list[Reference]()
    refused: list[tuple[int, str]] = []
    for number, ask in enumerate(asks):
        row = int(rows[int(np.argmax(numbers == number))])
        try:
            if ask.what.batch < 1:
                raise RequestError(f"{ask.what.model} has no batch: give one")
            found.append(steps.reference(ask))
        except RequestError as error:
            refused.append((row, str(error)))
            found.append(_NONE)
        if progress is not None:
            progress(number + 1, len(asks))
    if refused:
        bad = [number for number, reference in enumerate(found) if reference is _NONE]
        count = int(np.isin(numbers, bad).sum())
        named = "; ".join(f"{log.where(row)}: {reason}" for row, reason in refused[:SHOWN])
        more = f"; and {len(refused) - SHOWN:,} more descriptions" if len(refused) > SHOWN else ""
        raise RequestError(f"{log.path}: {count:,} of {jobs(len(log))} cannot be forecast: {named}{more}")
    return asks, numbers, found


_NONE: Final = Reference(Where("", 0, 0, 0), math.nan)


def _facts(log: JobLog, row: int) -> JobFacts:
    numbers, texts = log.numbers, log.texts
    least, most = numbers["min_gpus"][row], numbers["max_gpus"][row]
    what = What(texts["model"][row], int(numbers["batch"][row]), texts["strategy"][row], bool(most > least))
    return JobFacts(what, float(numbers["num_gpus"][row]), texts["vc"][row], texts["gpu_type"][row])


__all__ = [
    "ForecastSpeeds", "Progress", "StepTimes", "forecast_durations", "forecast_seconds", "is_described",
]  # fmt: skip
