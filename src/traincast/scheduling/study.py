"""Studies of a queue: every policy with every placement, estimate, seed and load, on all workers of an engine.

::

    rows = run_study(jobs, cluster, policies=["sjf", "easy"], estimates=["exact", "noisy:0.3"], seeds=range(5))
    regrets(rows)                                  # what not knowing the truth costs each policy
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from statistics import fmean
from typing import Any, NamedTuple

from traincast.engines import Engine
from traincast.errors import RequestError
from traincast.scheduling.estimates.beliefs import Beliefs, load_beliefs
from traincast.scheduling.estimates.forecasts import ForecastSpeeds
from traincast.scheduling.joblogs.job import Job
from traincast.scheduling.policies import load_policy
from traincast.scheduling.queue.costs import Costs
from traincast.scheduling.queue.engine import simulate
from traincast.scheduling.queue.failures import Failures
from traincast.scheduling.queue.metrics import Metrics, measure
from traincast.scheduling.queue.speeds import Speeds
from traincast.scheduling.sharing.contention import Contention
from traincast.scheduling.space.cluster import SharedCluster
from traincast.scheduling.space.placement import load_placement

SETUP = "traincast.scheduling.study:worker"
"""The function that sets up the workers of an engine."""


class StudyCase(NamedTuple):
    """One run of a study."""

    policy: str
    placement: str
    estimates: str
    load: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRow:
    """A run and its figures."""

    case: StudyCase
    metrics: Metrics

    def to_dict(self) -> dict[str, Any]:
        """Return one flat row of a table."""
        return {**self.case._asdict(), **self.metrics.to_dict()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Inputs that all runs of a study share; they are sent to every worker."""

    jobs: tuple[Job, ...]
    cluster: SharedCluster
    beliefs: Mapping[str, Beliefs] = field(default_factory=dict)
    speeds: Speeds | None = None
    believed_speeds: Speeds | None = None
    costs: Costs | None = None
    failures: Failures | None = None
    contention: Contention | None = None

    def run(self, case: StudyCase) -> Metrics:
        """Simulate one case."""
        given = self.beliefs.get(case.estimates)
        outcome = simulate(
            _at_load(self.jobs, case.load),
            self.cluster,
            policy=case.policy,
            placement=case.placement,
            beliefs=load_beliefs(case.estimates, seed=case.seed) if given is None else given,
            speeds=self.speeds,
            believed_speeds=self.believed_speeds,
            costs=self.costs,
            failures=self.failures,
            contention=self.contention,
            seed=case.seed,
        )
        return measure(outcome)


def worker(setting: Setting) -> Callable[[StudyCase], Metrics]:
    """Set up a worker of an engine: return the function that runs a case and returns its figures."""
    return setting.run


def run_study(
    jobs: Iterable[Job],
    cluster: SharedCluster,
    *,
    policies: Sequence[str],
    placements: Sequence[str] = ("pooled",),
    estimates: Sequence[str] = ("exact",),
    seeds: Iterable[int] = (0,),
    loads: Sequence[float] = (1.0,),
    beliefs: Mapping[str, Beliefs] | None = None,
    speeds: Speeds | None = None,
    believed_speeds: Speeds | None = None,
    costs: Costs | None = None,
    failures: Failures | None = None,
    contention: Contention | None = None,
    engine: Engine | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[StudyRow]:
    """Run all combinations and return one row for each, in the order of the arguments, on any engine.

    ``estimates`` are names in ``beliefs`` (such as ``predicted``, made by `load_estimates`), or ``exact``, ``user`` and
    ``noisy:SIGMA``. A seed draws noise, random placement and failures; a combination without any of them has one run
    for all seeds. ``loads`` divide the times between submissions. Without ``engine``, all runs are in this process.
    """
    setting = Setting(
        jobs=tuple(jobs),
        cluster=cluster,
        beliefs=dict(beliefs or {}),
        speeds=speeds,
        believed_speeds=believed_speeds,
        costs=costs,
        failures=failures,
        contention=contention,
    )
    cases = [
        StudyCase(*values)
        for values in itertools.product(policies, placements, estimates, map(_checked_load, loads), seeds)
    ]
    _check(setting, cases)
    for each in (speeds, believed_speeds):
        if isinstance(each, ForecastSpeeds):  # once here, not in every worker
            each.refuse_impossible(setting.jobs)
            each.prepare(setting.jobs)
    distinct = {case: _drawn(case, setting) for case in cases}
    tasks = list(dict.fromkeys(distinct.values()))
    found: dict[StudyCase, Metrics] = {}

    def done(index: int, metrics: Metrics) -> None:
        found[tasks[index]] = metrics
        if progress is not None:
            progress(len(found), len(tasks))

    if engine is None:
        for index, task in enumerate(tasks):
            done(index, setting.run(task))
    else:
        engine.run(SETUP, setting, tasks, done=done)
    return [StudyRow(case=case, metrics=found[distinct[case]]) for case in cases]


def _check(setting: Setting, cases: Sequence[StudyCase]) -> None:
    """Refuse unknown names before anything runs."""
    if not setting.jobs or not cases:
        raise RequestError(
            f"a study of {len(setting.jobs)} jobs and {len(cases)} cases: give jobs, and at least one policy, "
            "placement, estimate, seed and load"
        )
    for name in dict.fromkeys(case.policy for case in cases):
        load_policy(name)
    for name in dict.fromkeys(case.placement for case in cases):
        load_placement(name)
    for name in dict.fromkeys(case.estimates for case in cases):
        if name not in setting.beliefs:
            if name.partition(":")[0] == "predicted":
                raise RequestError(f"estimates {name!r} are forecasts: give them in beliefs, from load_estimates")
            load_beliefs(name)


def _checked_load(load: float) -> float:
    if not (math.isfinite(load) and load > 0):
        raise RequestError(f"load {load}: expected a number above 0; 2 is twice as many jobs per hour")
    return float(load)


def _drawn(case: StudyCase, setting: Setting) -> StudyCase:
    """Return the case with the first seed where nothing is drawn, since all seeds give the same outcome."""
    draws = setting.failures is not None or case.placement == "random" or case.estimates.startswith("noisy:")
    return case if draws else case._replace(seed=0)


@lru_cache(maxsize=4)
def _at_load(jobs: tuple[Job, ...], load: float) -> tuple[Job, ...]:
    """Return the jobs with the times between submissions divided by ``load``; deadlines keep their distance."""
    if load == 1.0:
        return jobs
    first = min(job.submit_s for job in jobs)
    return tuple(map(partial(_moved, first=first, load=load), jobs))


def _moved(job: Job, *, first: float, load: float) -> Job:
    submit = first + (job.submit_s - first) / load
    deadline = None if job.deadline_s is None else job.deadline_s + submit - job.submit_s
    return replace(job, submit_s=submit, deadline_s=deadline)


@dataclass(frozen=True, slots=True, kw_only=True)
class Regret:
    """The loss of a policy by its estimates: mean completion time over that with the estimates ``against``, minus 1.

    Figures are means over seeds; ``low`` and ``high`` are the smallest and largest loss of single seeds.
    ``queue_loss`` is the same for the mean queueing time (NaN if nothing waits with ``against``). It says more where
    execution, which no estimate changes, is most of a completion time.
    """

    policy: str
    placement: str
    load: float
    estimates: str
    mean_jct_s: float
    best_jct_s: float
    loss: float
    low: float
    high: float
    mean_queue_s: float
    best_queue_s: float
    queue_loss: float


def regrets(rows: Sequence[StudyRow], *, against: str = "exact") -> list[Regret]:
    """Return the loss in mean completion time under each estimate, in the order of the rows."""
    runs: dict[tuple[str, str, float, str], dict[int, Metrics]] = {}
    for row in rows:
        case = row.case
        key = (case.policy, case.placement, case.load, case.estimates)
        runs.setdefault(key, {})[case.seed] = row.metrics
    found = []
    for (policy, placement, load, estimates), by_seed in runs.items():
        truth = runs.get((policy, placement, load, against))
        if truth is None:
            raise RequestError(f"the study has no run of {policy} with {against} estimates: add one to compare with")
        losses = [metrics.mean_jct_s / truth[seed].mean_jct_s - 1.0 for seed, metrics in by_seed.items()]
        jct, best_jct = (fmean(m.mean_jct_s for m in each.values()) for each in (by_seed, truth))
        queue, best_queue = (fmean(m.mean_queue_s for m in each.values()) for each in (by_seed, truth))
        found.append(
            Regret(
                policy=policy,
                placement=placement,
                load=load,
                estimates=estimates,
                mean_jct_s=jct,
                best_jct_s=best_jct,
                loss=jct / best_jct - 1.0,
                low=min(losses),
                high=max(losses),
                mean_queue_s=queue,
                best_queue_s=best_queue,
                queue_loss=queue / best_queue - 1.0 if best_queue > 0 else math.nan,
            )
        )
    return found
