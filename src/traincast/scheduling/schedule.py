"""Schedule a job log in one call: read, check, forecast where needed, simulate, measure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from traceback import extract_tb
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, get_args

import numpy as np

from traincast.ask import verb
from traincast.brief import Brief, BriefTable
from traincast.errors import RequestError, SimulationError, TraincastError, UnknownNameError, expect
from traincast.scheduling.ask import ScheduleAsk
from traincast.scheduling.check import Oversize, check_fit
from traincast.scheduling.estimates.beliefs import Beliefs, load_beliefs
from traincast.scheduling.joblogs.job import Job
from traincast.scheduling.joblogs.read import NUMBERS, TEXTS, JobLog, load_jobs
from traincast.scheduling.policies import load_policy
from traincast.scheduling.policy import Policy
from traincast.scheduling.queue.costs import Costs
from traincast.scheduling.queue.engine import simulate
from traincast.scheduling.queue.failures import Failures
from traincast.scheduling.queue.metrics import Metrics, measure, measure_by_vc
from traincast.scheduling.queue.outcome import COLUMNS, JobOutcome, Outcome
from traincast.scheduling.queue.speeds import Speeds
from traincast.scheduling.space.cluster import SharedCluster
from traincast.scheduling.space.nodes import MAX_GPUS_PER_NODE, MAX_NODES, load_nodes, read_nodes
from traincast.scheduling.space.placement import Placement, load_placement
from traincast.tables import to_frame
from traincast.units import format_seconds

if TYPE_CHECKING:
    import pandas as pd

    from traincast.scheduling.sharing.contention import Contention
    from traincast.scheduling.sharing.step_times import StepTimes

MAX_LOAD: Final = 1e6
_WITHOUT_FORECASTS: Final = ("exact", "user", "noisy")


@dataclass(frozen=True, kw_only=True, eq=False)
class Queue:
    """Jobs and the cluster that they share, checked and ready to run under any policy."""

    log: JobLog
    cluster: SharedCluster
    estimates: str = "exact"
    load: float = 1.0
    costs: Costs = field(default_factory=Costs)
    failures: Failures | None = None
    speeds: Speeds | None = None
    beliefs: Mapping[str, Beliefs] = field(default_factory=dict)
    steps: StepTimes | None = None
    contention: Contention | None = None
    hardware: Mapping[str, str] = field(default_factory=dict)
    allow_code: bool = False
    notes: tuple[str, ...] = ()

    def believing(self, estimates: str, *, progress: Callable[[int, int], None] | None = None) -> Queue:
        """Return the queue with other estimates. Forecasts are made here, once."""
        if estimates.partition(":")[0] in _WITHOUT_FORECASTS:
            load_beliefs(estimates)  # refuses text that is not a number
            return replace(self, estimates=estimates)
        from traincast.scheduling.estimates.sources import load_estimates
        from traincast.scheduling.sharing.step_times import StepTimes

        steps = self.steps or StepTimes(self.cluster, hardware=self.hardware, allow_code=self.allow_code)
        found = load_estimates(estimates, self.log, self.cluster, steps=steps, progress=progress)
        notes = tuple(note for note in getattr(found, "notes", ()) if note not in self.notes)
        beliefs = {**self.beliefs, estimates: found}
        return replace(self, estimates=estimates, beliefs=beliefs, steps=steps, notes=(*self.notes, *notes))

    def sharing(self) -> Queue:
        """Return the queue with jobs that slow one another down where they meet; refuses jobs that nobody describes."""
        from traincast.scheduling.sharing.contention import contention_of
        from traincast.scheduling.sharing.step_times import StepTimes

        steps = self.steps or StepTimes(self.cluster, hardware=self.hardware, allow_code=self.allow_code)
        found, notes = contention_of(self.log, steps)
        return replace(self, steps=steps, contention=found, notes=(*self.notes, *notes))

    def run(self, policy: str | Policy = "fifo", *, placement: str | Placement = "pooled", seed: int = 0) -> Schedule:
        """Simulate the queue once."""
        with blaming(policy, placement, failures=self.failures is not None):
            outcome = simulate(
                self.log.jobs,
                self.cluster,
                policy=policy,
                placement=placement,
                beliefs=self.beliefs.get(self.estimates) or load_beliefs(self.estimates, seed=seed),
                speeds=self.speeds,
                costs=self.costs,
                failures=self.failures,
                contention=self.contention,
                seed=seed,
            )
        return Schedule(queue=self, outcome=outcome, seed=seed)


@contextmanager
def blaming(*parts: str | Policy | Placement, failures: bool) -> Iterator[None]:
    """Turn an exception in the user's own policy or placement into one line that names it."""
    own = [str(part) for part in parts if not isinstance(part, str) or ":" in part]
    try:
        yield
    except SimulationError as error:
        if own or failures:
            raise RequestError(str(error)) from error
        raise
    except TraincastError:
        raise
    except Exception as error:
        if not own:
            raise
        last = extract_tb(error.__traceback__)[-1]
        raise RequestError(
            f"{' or '.join(own)} failed with {type(error).__name__}: {error} "
            f"({Path(last.filename).name}, line {last.lineno}); correct it, and run check_policy on it"
        ) from error


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Schedule(Brief):
    """The result of one policy: the outcome of each job, the cluster over time, and the figures."""

    queue: Queue
    outcome: Outcome
    seed: int = 0

    @cached_property
    def metrics(self) -> Metrics:
        """Return the figures of all jobs."""
        return measure(self.outcome)

    @cached_property
    def by_vc(self) -> Mapping[str, Metrics]:
        """Return the figures of the jobs of each virtual cluster."""
        return measure_by_vc(self.outcome)

    def brief(self) -> BriefTable:
        """Return the figures of all jobs."""
        found = self.metrics
        rows = (
            ("mean completion time", format_seconds(found.mean_jct_s)),
            ("mean queueing time", format_seconds(found.mean_queue_s)),
            ("makespan", format_seconds(found.makespan_s)),
            ("utilization", f"{found.utilization:.1%}"),
            ("goodput", f"{found.goodput:.1%}"),
            *(("note", note[:100]) for note in self.notes[:3]),
        )
        return BriefTable(f"{found.num_jobs:,} jobs on {self.queue.cluster.num_gpus:g} GPUs under {self.policy}", rows)

    @property
    def policy(self) -> str:
        """Return the name of the policy."""
        return self.outcome.policy

    @property
    def jobs(self) -> Sequence[Job]:
        """The jobs, in order of submission."""
        return self.outcome.jobs

    @property
    def fates(self) -> Sequence[JobOutcome]:
        """The outcome of each job, in order of submission."""
        return self.outcome.fates

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes from the checks before the run, one sentence each."""
        return self.queue.notes

    def figures(self) -> dict[str, Any]:
        """The policy, its metrics, and those of each virtual cluster."""
        return {
            "policy": self.policy,
            **self.metrics.to_dict(),
            "virtual_clusters": {vc: metrics.to_dict() for vc, metrics in self.by_vc.items()},
        }

    def to_dict(self) -> dict[str, Any]:
        """Return all figures and what was simulated, as ``traincast schedule --json`` prints them."""
        queue = self.queue
        return {
            "trace": str(queue.log.path),
            "format": queue.log.format,
            "num_nodes": len(queue.cluster.nodes),
            "num_gpus": queue.cluster.num_gpus,
            "gpu_types": gpus_by_type(queue.cluster),
            "placement": self.outcome.placement,
            "estimates": queue.estimates,
            "load": queue.load,
            "seed": self.seed,
            "notes": list(queue.notes),
            **self.figures(),
        }

    def to_pandas(self) -> pd.DataFrame:
        """Return the outcome of each job, in order of submission, as a pandas table."""
        return to_frame({name: getattr(fate, name) for name in COLUMNS} for fate in self.outcome.fates)

    def write_jobs(self, path: Path | str) -> None:
        """Write the outcome of each job as CSV."""
        from traincast.scheduling.queue.outcome import write_jobs

        write_jobs(self.outcome, Path(path))

    def write_page(self, path: Path | str) -> None:
        """Write the schedule as one self-contained HTML file."""
        from traincast.scheduling.page import write_page

        write_page([self], Path(path))


@verb(ScheduleAsk)
def schedule(ask: ScheduleAsk) -> Schedule:
    """Simulate a job log on a cluster and measure the outcome. Equal asks give equal results.

    Besides words, arguments take objects of Python: ``jobs`` a ``JobLog`` or a list of ``Job``, ``nodes`` a
    ``SharedCluster`` or the path of a node list, ``policy`` a ``Policy``, ``placement`` a ``Placement``, ``quota`` and
    ``hardware`` dictionaries, ``load`` a number, ``uplink`` bytes/s, ``costs`` a ``Costs``, ``failures`` a
    ``Failures``. An ask that compares several policies, estimates, loads, seeds or ways to share nodes is refused:
    ``traincast schedule`` answers it.
    """
    policies, shares = ask.policies(), ask.shares()
    several = {"policies": policies, "shares": shares, "estimates": ask.beliefs(), "loads": ask.loads()}
    for name, found in {**several, "seeds": ask.every_seed()}.items():
        if len(found) > 1:
            raise RequestError(
                f"the ask compares {len(found)} {name}: schedule() runs one; `traincast schedule` several"
            )
    check_names(ask)
    return prepared(ask).run(policies[0], placement=next(iter(shares.values()), ask.placement), seed=ask.seed)


def check_names(ask: ScheduleAsk) -> None:
    """Refuse an unknown policy or placement before anything runs."""
    policies = ask.policies()
    with blaming(*policies, ask.placement, failures=False):
        for policy in policies:
            if isinstance(policy, str):
                load_policy(policy)
        if isinstance(ask.placement, str):
            load_placement(ask.placement)


def prepared(ask: ScheduleAsk, *, progress: Callable[[int, int], None] | None = None) -> Queue:
    """Return the queue that ``ask`` describes, with the first of its estimates and loads."""
    costs, failures = ask.all_costs(), ask.all_failures()  # before a long log is read
    expect("costs", costs, Costs, "a Costs or a CostSettings")
    expect("failures", failures, (Failures, NoneType), "a Failures or a FailureSettings")
    if ask.oversize not in get_args(Oversize):
        raise UnknownNameError("value of oversize", ask.oversize, get_args(Oversize))
    cluster, notes = load_shared_cluster(
        ask.nodes_or_file(),
        gpus_per_node=ask.gpus_per_node,
        gpu_type=ask.gpu_type,
        nodes_per_rack=ask.nodes_per_rack or 0,
        quotas=ask.quotas(),
        uplink=ask.uplink_rate(),
    )
    queue = prepare(
        read_log(ask.jobs, format=ask.format, drop_invalid=ask.drop_invalid),
        cluster,
        estimates=ask.beliefs()[0],
        costs=costs,
        failures=failures,
        load=ask.loads()[0],
        oversize=ask.oversize,  # type: ignore[arg-type]  # checked above
        any_gpu=ask.any_gpu,
        hardware=ask.hardware_by_type(),
        allow_code=ask.allow_code,
        notes=notes,
        progress=progress,
    )
    return queue.sharing() if ask.share is not None else queue


def prepare(
    log: JobLog,
    cluster: SharedCluster,
    *,
    estimates: str = "exact",
    costs: Costs | None = None,
    failures: Failures | None = None,
    load: float = 1.0,
    oversize: Oversize = "refuse",
    any_gpu: bool = False,
    hardware: Mapping[str, str] | None = None,
    allow_code: bool = False,
    notes: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Queue:
    """Check the jobs against the cluster, and forecast those that have a model but no duration."""
    log = check_fit(scaled(log, load), cluster, oversize=oversize, any_gpu=any_gpu)
    steps: StepTimes | None = None
    speeds: Speeds | None = None
    if np.any(log.to_forecast):
        from traincast.scheduling.estimates.forecasts import ForecastSpeeds, forecast_durations
        from traincast.scheduling.sharing.step_times import StepTimes

        steps = StepTimes(cluster, hardware=hardware, allow_code=allow_code)
        log = forecast_durations(log, cluster, steps=steps, progress=progress)
        forecast = ForecastSpeeds(steps)
        forecast.refuse_impossible(log.jobs)
        speeds = forecast
    queue = Queue(
        log=log,
        cluster=cluster,
        load=load,
        costs=costs or Costs(),
        failures=failures,
        speeds=speeds,
        steps=steps,
        hardware=dict(hardware or {}),
        allow_code=allow_code,
        notes=(*notes, *log.notes),
    )
    return queue.believing(estimates, progress=progress)


def load_shared_cluster(
    nodes: int | str | Path | SharedCluster,
    *,
    gpus_per_node: int | None = None,
    gpu_type: str = "",
    nodes_per_rack: int = 0,
    uplink: float = 0.0,
    quotas: Mapping[str, float] | None = None,
) -> tuple[SharedCluster, tuple[str, ...]]:
    """Return the requested cluster, and notes on its node list.

    ``gpu_type`` is the GPU type of nodes that state none; ``nodes_per_rack`` puts nodes without a rack into racks.
    """
    if isinstance(nodes, SharedCluster):
        if gpus_per_node is not None:
            raise RequestError(f"gpus_per_node={gpus_per_node}, but the nodes have theirs: leave it out")
        return replace(nodes, quotas={**nodes.quotas, **(quotas or {})}, uplink=uplink or nodes.uplink), ()
    text = str(nodes).strip()
    if isinstance(nodes, Path):
        if gpus_per_node is not None:
            raise RequestError(f"{nodes} states the GPUs of its nodes: leave out the GPUs per node")
    elif text.lstrip("-").isdigit():
        if gpus_per_node is None:
            raise RequestError(f"{text} nodes without a number of GPUs: give the GPUs per node, or write {text}x8")
        if not (1 <= int(text) <= MAX_NODES and 1 <= gpus_per_node <= MAX_GPUS_PER_NODE):
            raise RequestError(
                f"{text} nodes of {gpus_per_node} GPUs: expected 1 to {MAX_NODES} nodes of 1 to {MAX_GPUS_PER_NODE}"
            )
        text = f"{int(text)}x{gpus_per_node}"
    elif gpus_per_node is not None:
        raise RequestError(f"nodes {text!r} state their GPUs: leave out the GPUs per node")
    found = read_nodes(nodes) if isinstance(nodes, Path) else load_nodes(text)
    if nodes_per_rack < 0:
        raise RequestError(f"{nodes_per_rack} nodes per rack: expected a whole number, or 0 for no racks")
    placed = []
    for number, node in enumerate(found.nodes):
        rack = str(number // nodes_per_rack) if nodes_per_rack and not node.rack else node.rack
        switch = node.switch or (rack if nodes_per_rack else "")
        placed.append(replace(node, rack=rack, switch=switch, gpu_type=node.gpu_type or gpu_type))
    return SharedCluster(nodes=tuple(placed), quotas=dict(quotas or {}), uplink=uplink), found.notes


def gpus_by_type(cluster: SharedCluster) -> dict[str, int]:
    """Return the number of GPUs of each type; "" is the type of nodes that state none."""
    found: dict[str, int] = {}
    for node in cluster.nodes:
        found[node.gpu_type] = found.get(node.gpu_type, 0) + node.num_gpus
    return found


def read_log(
    jobs: str | Path | JobLog | Sequence[Job],
    *,
    format: str | None = None,  # noqa: A002
    drop_invalid: bool = False,
) -> JobLog:
    """Return a log from a file or from jobs. A log is returned as it is."""
    if isinstance(jobs, JobLog):
        return jobs
    if isinstance(jobs, str | Path):
        return load_jobs(jobs, format=format, drop_invalid=drop_invalid)
    return _log_of(jobs)


def _log_of(jobs: Sequence[Job]) -> JobLog:
    """Return the log of some jobs, in order of submission."""
    if not jobs:
        raise RequestError("no jobs: give at least one")
    ordered = sorted(jobs, key=lambda job: job.submit_s)
    names = {job.job_id for job in ordered}
    if len(names) < len(ordered):
        raise RequestError(f"{len(ordered)} jobs with {len(names)} names: every job needs its own job_id")

    def column(name: str) -> list[float]:
        return [math.nan if (value := getattr(job, name)) is None else float(value) for job in ordered]

    return JobLog(
        path=Path("jobs"),
        format="jobs",
        numbers={name: np.array(column(name)) for name in NUMBERS},
        texts={name: np.array([getattr(job, name, "") for job in ordered], dtype=object) for name in TEXTS},
        lines=np.arange(1, len(ordered) + 1),
        place="number",
    )


def scaled(log: JobLog, load: float) -> JobLog:
    """Return the jobs with the times between submissions divided by ``load``; deadlines keep their distance."""
    if not (math.isfinite(load) and 0 < load <= MAX_LOAD):
        raise RequestError(
            f"load {load:g}: expected a number above 0 to {MAX_LOAD:g}; 2 is twice as many jobs per hour"
        )
    if load == 1.0:
        return log
    before = log.numbers["submit_s"]
    after = before[0] + (before - before[0]) / load
    return log.with_columns(numbers={"submit_s": after, "deadline_s": log.numbers["deadline_s"] + (after - before)})
