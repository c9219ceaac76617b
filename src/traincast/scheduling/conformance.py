"""The laws that every policy must keep. Check your own with ``check_policy("my_module:MyPolicy")``.

The checks simulate small queues of several kinds and test the outcomes. They do not need pytest.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from traincast.errors import TraincastError
from traincast.scheduling.joblogs.job import Job
from traincast.scheduling.policy import Policy
from traincast.scheduling.queue.costs import Costs
from traincast.scheduling.queue.engine import simulate
from traincast.scheduling.queue.failures import FailureLaw, Failures
from traincast.scheduling.queue.outcome import Occupancy, Outcome
from traincast.scheduling.queue.speeds import Factors
from traincast.scheduling.space.cluster import Node, SharedCluster
from traincast.scheduling.space.free import UNIT
from traincast.scheduling.space.placement import Placement

_NEAR: Final = 1e-6


class LawBrokenError(TraincastError):
    """A simulated queue broke a law."""


def check_policy(policy: str | Policy, *, placement: str | Placement = "pooled", seeds: int = 2) -> None:
    """Run the policy on small queues of every kind, and raise `LawBrokenError` where it breaks a law.

    Every job ends; none starts before it is submitted; no GPU is used twice; all work is done, and no more; quotas and
    GPU types are kept; and the same queue gives the same outcome again.
    """
    for seed in range(seeds):
        for name, case in _cases(seed).items():
            first, again = (case.run(policy, placement, seed) for _ in range(2))
            where = f"{first.policy} with {first.placement} on {name!r}, seed {seed}"
            try:
                check_outcome(first, failures=case.failures is not None)
                if case.is_plain:
                    check_work(first)
            except LawBrokenError as error:
                raise LawBrokenError(f"{where}: {error}") from None
            if (again.fates, again.segments) != (first.fates, first.segments):
                raise LawBrokenError(
                    f"{where}: a second run differs from the first; forget earlier runs in begin() and draw by a seed"
                )


def check_outcome(outcome: Outcome, *, failures: bool = False) -> None:
    """Raise `LawBrokenError` where an outcome breaks the laws of a queue; jobs may restart only with ``failures``."""
    by_job: dict[int, list[Occupancy]] = {}
    for segment in outcome.segments:
        by_job.setdefault(segment.order, []).append(segment)
    for order, (job, fate) in enumerate(zip(outcome.jobs, outcome.fates, strict=True)):
        mine = sorted(by_job.get(order, ()), key=lambda segment: segment.start_s)
        if not mine:
            raise LawBrokenError(f"job {job.job_id} never ran")
        if mine[0].start_s < job.submit_s or fate.start_s != mine[0].start_s:
            raise LawBrokenError(f"job {job.job_id} starts at {mine[0].start_s}, but was submitted at {job.submit_s}")
        if fate.end_s != mine[-1].end_s:
            raise LawBrokenError(f"job {job.job_id} ends at {fate.end_s}, but held GPUs until {mine[-1].end_s}")
        for before, after in pairwise(mine):
            if after.start_s < before.end_s:
                raise LawBrokenError(f"job {job.job_id} runs twice at {after.start_s}")
        if len(mine) - 1 > fate.preemptions + fate.restarts:
            raise LawBrokenError(f"job {job.job_id} runs {len(mine)} times after {fate.preemptions} preemptions")
        if fate.restarts and not failures:
            raise LawBrokenError(f"job {job.job_id} restarts where nothing fails")
        _check_held(outcome, order, mine)
    _check_gpus(outcome)
    _check_quotas(outcome)


def _check_held(outcome: Outcome, order: int, mine: Sequence[Occupancy]) -> None:
    """Check that each occupancy holds the GPUs that the job asked for, on nodes that it may use."""
    job, fate = outcome.jobs[order], outcome.fates[order]
    owners = {node.vc for node in outcome.cluster.nodes if node.vc}
    for segment in mine:
        held = segment.allocation
        gpus = sum(mask.bit_count() for _, mask in held.gpus) * held.units / UNIT
        least, most = (job.min_gpus, job.max_gpus) if job.is_elastic else (job.num_gpus, job.num_gpus)
        if not least - _NEAR <= gpus <= most + _NEAR:
            raise LawBrokenError(f"job {job.job_id} holds {gpus:g} GPUs, but asked for {least:g} to {most:g}")
        nodes = [outcome.cluster.nodes[node] for node in held.nodes]
        if len({node.gpu_type for node in nodes}) > 1 or job.gpu_type not in ("", nodes[0].gpu_type):
            raise LawBrokenError(f"job {job.job_id} of GPU type {job.gpu_type!r} runs on {[n.gpu_type for n in nodes]}")
        if any(node.vc != (job.vc if job.vc in owners else "") for node in nodes):
            raise LawBrokenError(f"job {job.job_id} of {job.vc!r} runs on nodes of {sorted({n.vc for n in nodes})}")
    held_s = sum(segment.end_s - segment.start_s for segment in mine)
    waited = fate.jct_s - held_s
    if abs(waited - fate.queue_s) > _NEAR * max(1.0, fate.jct_s):
        raise LawBrokenError(f"job {job.job_id} queued for {fate.queue_s} s, but held no GPUs for {waited} s")


def check_work(outcome: Outcome) -> None:
    """Check that time on GPUs is work, overhead and lost work, where all jobs run at their reference speed."""
    held: dict[int, float] = {}
    for segment in outcome.segments:
        held[segment.order] = held.get(segment.order, 0.0) + segment.end_s - segment.start_s
    for order, (job, fate) in enumerate(zip(outcome.jobs, outcome.fates, strict=True)):
        wanted = job.duration_s + fate.overhead_s + fate.lost_s
        if abs(held[order] - wanted) > _NEAR * max(1.0, fate.end_s):
            raise LawBrokenError(
                f"job {job.job_id} held GPUs for {held[order]} s, and has {job.duration_s} s of work, "
                f"{fate.overhead_s} s of overhead and {fate.lost_s} s lost"
            )


def _check_gpus(outcome: Outcome) -> None:
    """Check that no GPU is held twice. At equal times, ends come before starts."""
    changes = sorted(
        (time, is_start, node, gpu, units)
        for s in outcome.segments
        for node, mask in s.allocation.gpus
        for gpu in range(mask.bit_length())
        if mask >> gpu & 1
        for time, is_start, units in ((s.start_s, 1, s.allocation.units), (s.end_s, 0, -s.allocation.units))
    )
    used: dict[tuple[int, int], int] = {}
    for time, _, node, gpu, units in changes:
        used[node, gpu] = used.get((node, gpu), 0) + units
        if used[node, gpu] > UNIT or gpu >= outcome.cluster.nodes[node].num_gpus:
            raise LawBrokenError(f"GPU {gpu} of node {node} is used twice at {time}")


def _check_quotas(outcome: Outcome) -> None:
    changes = sorted(
        (time, is_start, outcome.jobs[s.order].vc, units)
        for s in outcome.segments
        if outcome.jobs[s.order].vc in outcome.cluster.quotas
        for time, is_start, units in (
            (s.start_s, 1, s.allocation.num_gpus * s.allocation.units),
            (s.end_s, 0, -s.allocation.num_gpus * s.allocation.units),
        )
    )
    held: dict[str, int] = {}
    for time, _, vc, units in changes:
        held[vc] = held.get(vc, 0) + units
        if held[vc] > outcome.cluster.quotas[vc] * UNIT + 1:
            raise LawBrokenError(f"virtual cluster {vc} holds {held[vc] / UNIT:g} GPUs at {time}, above its quota")


class _Case:
    """A queue, a cluster, and the other settings of a run."""

    def __init__(
        self,
        jobs: Sequence[Job],
        cluster: SharedCluster,
        *,
        costs: Costs | None = None,
        failures: Failures | None = None,
        speeds: Factors | None = None,
    ) -> None:
        self.jobs = jobs
        self.cluster = cluster
        self.costs = costs
        self.failures = failures
        self.speeds = speeds

    def run(self, policy: str | Policy, placement: str | Placement, seed: int) -> Outcome:
        return simulate(
            self.jobs,
            self.cluster,
            policy=policy,
            placement=placement,
            costs=self.costs,
            failures=self.failures,
            speeds=self.speeds,
            seed=seed,
        )

    @property
    def is_plain(self) -> bool:
        """Whether every job runs at its reference speed."""
        return self.speeds is None


def _cases(seed: int) -> dict[str, _Case]:
    """Yield queues of several kinds, each of which tests another part of a policy."""
    draw = random.Random(seed)  # noqa: S311  (no secret)

    def jobs(number: int, sizes: Sequence[float], *, most_s: int = 4000, **more: Sequence[str]) -> list[Job]:
        made = []
        for at in range(number):
            submit = float(draw.randrange(0, 6000, 100))
            seconds = float(draw.randrange(10, most_s))
            made.append(
                Job(
                    job_id=f"j{at}",
                    submit_s=submit,
                    num_gpus=draw.choice(sizes),
                    duration_s=seconds,
                    priority=draw.randrange(3),
                    deadline_s=submit + 2 * seconds if at % 2 else None,
                    estimate_s=seconds * 1.5,
                    **{name: draw.choice(values) for name, values in more.items()},  # type: ignore[arg-type]
                )
            )
        return made

    elastic = [
        Job(job_id=f"e{at}", submit_s=100.0 * at, num_gpus=2, duration_s=500.0 * (at + 1), min_gpus=1, max_gpus=8)
        for at in range(8)
    ]
    mixed = SharedCluster(
        nodes=tuple(
            Node(name=f"{kind}{at}", num_gpus=4, gpu_type=kind, rack=str(at // 2), switch=str(at // 2))
            for kind in ("fast", "slow")
            for at in range(4)
        )
    )
    owned = SharedCluster(
        nodes=tuple(Node(name=f"n{at}", num_gpus=4, vc="own" if at == 0 else "") for at in range(3)),
        quotas={"small": 4.0},
    )
    together = [
        Job(job_id=f"t{at}", submit_s=100.0 * (at // 5), num_gpus=1 + at % 3, duration_s=100.0) for at in range(20)
    ]
    racks = SharedCluster.uniform(4, 4, nodes_per_rack=2)
    costs = Costs(
        checkpoint_s=5, checkpoint_s_per_gpu=1, restore_s=10, restore_s_per_gpu=2, restart_s=30, interval_s=300
    )
    failures = Failures(
        laws=(
            FailureLaw(kind="device", mtbf_s=100_000, repair_s=500),
            FailureLaw(kind="node", mtbf_s=50_000, repair_s=1000, shape=0.7),
            FailureLaw(kind="switch", mtbf_s=80_000, repair_s=600, repair_is_fixed=True),
        )
    )
    return {
        "whole GPUs": _Case(jobs(30, (1, 1, 2, 4, 8, 16)), racks),
        "many at once": _Case(together, SharedCluster.uniform(2, 4)),
        "costly preemption": _Case(jobs(30, (1, 2, 4, 8)), racks, costs=costs),
        "failures": _Case(jobs(25, (1, 2, 4, 8)), racks, costs=costs, failures=failures),
        "shares of GPUs": _Case(jobs(30, (0.25, 0.5, 1 / 3, 1, 2)), SharedCluster.uniform(2, 2)),
        "GPU types": _Case(
            jobs(25, (1, 2, 4, 6), gpu_type=("", "", "fast", "slow")),
            mixed,
            speeds=Factors(gpu_types={"slow": 0.5}, across_nodes=0.8, across_racks=0.7),
            costs=costs,
        ),
        "virtual clusters": _Case(jobs(30, (1, 2, 4), vc=("own", "small", "", "other")), owned),
        "elastic": _Case([*elastic, *jobs(10, (1, 2, 4))], racks, speeds=Factors(scaling=0.8)),
        "one job": _Case(jobs(1, (16,)), racks),
    }
