"""The queue and the cluster at one instant, as a policy sees and changes them."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from traincast.errors import RequestError, SimulationError
from traincast.scheduling.estimates.beliefs import Beliefs
from traincast.scheduling.joblogs.job import Job
from traincast.scheduling.queue.costs import Costs
from traincast.scheduling.queue.outcome import Occupancy
from traincast.scheduling.queue.run import JobRun
from traincast.scheduling.queue.speeds import PLAIN, PlacedGpus, Speeds
from traincast.scheduling.space.cluster import NodeIndex, Pool, SharedCluster
from traincast.scheduling.space.free import UNIT, Allocation, Free, JobDemand
from traincast.scheduling.space.placement import Placement, Space

if TYPE_CHECKING:
    from traincast.scheduling.sharing.contention import Contention, Tenants


class Watcher(Protocol):
    """Is told when jobs change; :class:`traincast.scheduling.policy.Policy` says what each call means."""

    def queued(self, run: JobRun, state: State) -> None:
        """A job begins to wait."""

    def started(self, run: JobRun, state: State) -> None:
        """A job has taken its GPUs."""

    def stopped(self, run: JobRun, state: State) -> None:
        """A job has left its GPUs."""


class State:
    """The waiting and running jobs, by their order, the free GPUs, and the time.

    A policy changes it with `start`, `preempt` and `wake`, and reads it with `fits`, `space`, `believed_end_s` and
    `would_end_s`. The methods from `submit` on are for the simulation.
    """

    def __init__(
        self,
        *,
        cluster: SharedCluster,
        policy: Watcher,
        placement: Placement,
        beliefs: Beliefs,
        speeds: Speeds,
        believed_speeds: Speeds,
        costs: Costs,
        contention: Contention | None = None,
    ) -> None:
        self.now = 0.0
        self.cluster = cluster
        self.layout = NodeIndex(cluster)
        self.free = Free(self.layout)
        self.placement = placement
        self.costs = costs
        self.waiting: dict[int, JobRun] = {}
        self.running: dict[int, JobRun] = {}
        self.wake_s = math.inf
        self.used_units = 0
        self.ends: list[tuple[float, int, int]] = []  # (time, order, token) of running jobs, as a heap
        self.segments: list[Occupancy] = []
        self.num_changes = 0  # failures and repairs so far
        self.failed_nodes: dict[int, list[float]] = {}  # when each node failed, wholly or in part
        self._policy = policy
        self._beliefs = beliefs
        self._speeds = speeds
        self._believed_speeds = believed_speeds
        self._demands: dict[tuple[float, str, str], JobDemand] = {}
        switches = cluster.leaf_switches() if cluster.uplink else ()
        self.tenants = _tenants_of(contention, switches) if contention is not None else None

    def start(self, run: JobRun, *, demand: JobDemand | None = None, at: Allocation | None = None) -> bool:
        """Place a waiting job and run it. Returns whether there was room.

        The job gets GPUs for its own demand, for ``demand`` if given, or exactly the GPUs ``at``.
        """
        self.placement.asked(run, self)
        allocation = at if at is not None and at.gpus else self.placement.find(demand or run.demand, self.free)
        if allocation is None or (allocation is at and not self.free.fits(allocation)):
            return False
        if run.phase != "waiting":
            raise SimulationError(f"policy starts job {run.job.job_id}, which is {run.phase}: it must be waiting")
        self.free.take(allocation)
        run.held_units = allocation.num_gpus * allocation.units
        self.used_units += run.held_units
        del self.waiting[run.order]
        self.running[run.order] = run
        run.phase = "running"
        run.allocation = allocation
        run.token += 1
        now, gpus = self.now, run.num_gpus
        if run.first_start_s < 0:
            run.first_start_s = now
        run.started_s = now
        run.began_s = now + self.overhead_s(run, gpus) if run.owes else now
        run.opened_s, run.done_s, run.done_work_s = run.began_s, 0.0, 0.0
        run.speed = run.alone_speed = self._speed_at(run, allocation, self._speeds)
        run.end_s = run.began_s + self.costs.elapsed_s(run.work_s / run.speed, gpus)
        run.believed_end_s = run.began_s + self.costs.elapsed_s(run.believed_work_s / run.speed, gpus)
        heapq.heappush(self.ends, (run.end_s, run.order, run.token))
        if self.tenants is not None:
            self._adjust(self.tenants.add(run, self.placed(allocation)))
        self._policy.started(run, self)
        return True

    def preempt(self, run: JobRun) -> None:
        """Stop a running job: it is saved and waits. Preempting a job at the instant it started undoes the start."""
        if run.phase != "running":
            raise SimulationError(f"policy preempts job {run.job.job_id}, which is {run.phase}: it must be running")
        if run.started_s == self.now:
            if not run.served_s and run.first_start_s == self.now:
                run.first_start_s = -1.0
        else:
            run.preemptions += 1
            self._settle(run)
            run.owes = "saved"
        self._leave(run)
        self.enqueue(run)

    def wake(self, at_s: float) -> None:
        """Request a decision at that time, in case nothing happens before. The next decision cancels the request."""
        if at_s > self.now:
            self.wake_s = min(self.wake_s, at_s)

    def fits(self, run: JobRun) -> bool:
        """Whether there is room for a waiting job now."""
        self.placement.asked(run, self)
        return self.placement.find(run.demand, self.free) is not None

    def space(self) -> Space:
        """Return a copy of what is free now, for planning."""
        return self.placement.space(self.free)

    def believed_end_s(self, run: JobRun) -> float:
        """Return when a running job is believed to end; always later than now."""
        if run.believed_end_s <= self.now:
            left = run.remaining_s(self.now) / run.speed
            run.believed_end_s = max(run.began_s, self.now) + self.costs.elapsed_s(left, run.num_gpus)
        return run.believed_end_s

    def would_end_s(self, run: JobRun, allocation: Allocation) -> float:
        """Return when a waiting job is believed to end if it starts now on these GPUs."""
        gpus = allocation.num_gpus if allocation.units == UNIT else allocation.units / UNIT
        seconds = run.remaining_s(self.now) / self._speed_at(run, allocation, self._believed_speeds)
        return self.now + self.overhead_s(run, gpus) + self.costs.elapsed_s(seconds, gpus)

    def overhead_s(self, run: JobRun, num_gpus: float) -> float:
        """Return the seconds that a waiting job would hold GPUs before it executes, to load a checkpoint or restart."""
        if not run.owes:
            return 0.0
        stop = self.costs.saving_s(num_gpus) if run.owes == "saved" else self.costs.restart_s
        return stop + self.costs.loading_s(num_gpus)

    def demand(self, job: Job, *, num_gpus: float | None = None) -> JobDemand:
        """Return the job's demand, optionally for another number of GPUs."""
        gpus = job.num_gpus if num_gpus is None else num_gpus
        key = (gpus, job.vc, job.gpu_type)
        found = self._demands.get(key)
        if found is None:
            pools = self.layout.pools(vc=job.vc, gpu_type=job.gpu_type)
            vc = job.vc if job.vc in self.cluster.quotas else ""
            whole = gpus >= 1
            found = JobDemand(int(gpus) if whole else 1, UNIT if whole else max(1, round(gpus * UNIT)), pools, vc)
            self._demands[key] = found
        return found

    def believed_speed(self, run: JobRun, placed: PlacedGpus) -> float:
        """Return the believed speed of a job alone on some GPUs."""
        return _speed(run.job, placed, self._believed_speeds)

    def speed_in(self, run: JobRun, pool: Pool, num_gpus: int) -> float:
        """Return the believed speed of a job on that many GPUs, packed on the first nodes of a pool."""
        nodes, counts = [], []
        for number, node in enumerate(self.cluster.nodes):
            if num_gpus > 0 and pool.nodes >> number & 1 and node.num_gpus:
                nodes.append(node)
                counts.append(min(num_gpus, node.num_gpus))
                num_gpus -= node.num_gpus
        return _speed(run.job, PlacedGpus(tuple(nodes), tuple(counts)), self._believed_speeds)

    def prefer_pools(self, run: JobRun, pools: Sequence[Pool]) -> None:
        """Set the order in which a job tries its pools."""
        run.demand = run.demand._replace(pools=tuple(pools))

    def placed(self, allocation: Allocation) -> PlacedGpus:
        """Return the allocation as GPUs per node, the form from which speeds are forecast."""
        return PlacedGpus(
            tuple(self.cluster.nodes[node] for node, _ in allocation.gpus),
            tuple(mask.bit_count() for _, mask in allocation.gpus),
        )

    # The following methods are for the simulation.

    def submit(self, run: JobRun) -> None:
        """Let a job arrive."""
        believed = self._beliefs.seconds(run.job)
        if not (math.isfinite(believed) and believed > 0):
            raise RequestError(f"job {run.job.job_id} is believed to take {believed} s: expected seconds above 0")
        run.believed_work_s = believed
        self.enqueue(run)

    def enqueue(self, run: JobRun) -> None:
        """Let a job wait."""
        run.phase = "waiting"
        run.waiting_since_s = self.now
        self.waiting[run.order] = run
        self._policy.queued(run, self)

    def complete(self, run: JobRun) -> None:
        """End a job that is done."""
        self._charge(run, max(0.0, self.now - run.started_s - run.done_s - run.work_s / run.speed))
        run.shared_s += run.work_s / run.speed - run.work_s / run.alone_speed
        run.work_s = 0.0
        self._leave(run)
        run.phase = "done"

    def kill(self, run: JobRun) -> None:
        """Stop a job because of a failure; it falls back to its last checkpoint."""
        elapsed, recent = max(0.0, self.now - run.opened_s), run.executed_s(self.now)
        executed = run.done_s + recent
        speed = (run.done_work_s + recent * run.speed) / executed if run.done_s else run.speed
        kept = min(executed, self.costs.kept_s(elapsed, run.num_gpus))
        run.lost_s += (executed - kept) * speed
        run.lost_gpu_s += (executed - kept) * run.num_gpus
        run.restarts += 1
        self._settle(run, lost_work_s=(executed - kept) * speed)
        run.owes = "failed"
        self._leave(run)
        self.enqueue(run)

    def _settle(self, run: JobRun, *, lost_work_s: float = 0.0) -> None:
        """Update the remaining work of a job that stops; ``lost_work_s`` of it was done and must be done again."""
        executed = run.executed_s(self.now)
        self._charge(run, max(0.0, self.now - run.started_s - run.done_s - executed))
        run.believed_work_s = run.remaining_s(self.now) + lost_work_s
        run.shared_s += executed - executed * run.speed / run.alone_speed
        run.work_s -= executed * run.speed - lost_work_s

    def _adjust(self, runs: Sequence[JobRun]) -> None:
        """Change the speeds of running jobs to those that they have beside their present neighbours."""
        assert self.tenants is not None
        for run in runs:
            speed = run.alone_speed * self.tenants.factor(run)
            if speed == run.speed:
                continue
            executed = run.executed_s(self.now)
            run.believed_work_s = run.remaining_s(self.now)
            run.shared_s += executed - executed * run.speed / run.alone_speed
            run.work_s = max(0.0, run.work_s - executed * run.speed)
            run.done_s += executed
            run.done_work_s += executed * run.speed
            run.began_s, run.speed = max(run.began_s, self.now), speed
            run.end_s = run.began_s + self.costs.elapsed_s(run.work_s / speed, run.num_gpus)
            run.believed_end_s = run.began_s + self.costs.elapsed_s(run.believed_work_s / speed, run.num_gpus)
            heapq.heappush(self.ends, (run.end_s, run.order, run.token))

    @staticmethod
    def _charge(run: JobRun, overhead_s: float) -> None:
        run.overhead_s += overhead_s
        run.overhead_gpu_s += overhead_s * run.num_gpus

    def _leave(self, run: JobRun) -> None:
        allocation = run.allocation
        assert allocation is not None
        self.free.give(allocation)
        self.used_units -= run.held_units
        held = self.now - run.started_s
        run.served_s += held
        run.served_gpu_s += held * run.num_gpus
        run.token += 1
        del self.running[run.order]
        if held:
            self.segments.append(Occupancy(run.order, run.started_s, self.now, allocation))
        if self.tenants is not None:
            self._adjust(self.tenants.remove(run))
        self._policy.stopped(run, self)
        run.allocation = None

    def _speed_at(self, run: JobRun, allocation: Allocation, speeds: Speeds) -> float:
        if speeds is PLAIN and (allocation.units < UNIT or allocation.num_gpus == run.job.num_gpus):
            return 1.0
        return _speed(run.job, self.placed(allocation), speeds)

    def strike(self, gpus: Sequence[tuple[int, int]]) -> None:
        """Let GPUs, given as (node, bits), fail: stop their jobs, then take the GPUs out of service."""
        self.num_changes += 1
        wanted = dict(gpus)
        hit = [
            run
            for run in self.running.values()
            if run.allocation and any(wanted.get(node, 0) & mask for node, mask in run.allocation.gpus)
        ]
        for run in hit:
            self.kill(run)
        for node, mask in gpus:
            self.failed_nodes.setdefault(node, []).append(self.now)
            for gpu in range(mask.bit_length()):
                if mask >> gpu & 1:
                    self.free.fail(node, gpu)

    def mend(self, gpus: Sequence[tuple[int, int]]) -> None:
        """Repair a failure of GPUs."""
        self.num_changes += 1
        for node, mask in gpus:
            for gpu in range(mask.bit_length()):
                if mask >> gpu & 1:
                    self.free.repair(node, gpu)


def _speed(job: Job, placed: PlacedGpus, speeds: Speeds) -> float:
    found = speeds.speed(job, placed)
    if not (math.isfinite(found) and found > 0):
        names = ", ".join(node.name for node in placed.nodes)
        raise RequestError(f"job {job.job_id} on {names} has speed {found}: expected a number above 0")
    return found


def _tenants_of(contention: Contention, switches: Sequence[int]) -> Tenants:
    """Return the empty record of who is where; only jobs that share nodes or uplinks need it."""
    from traincast.scheduling.sharing.contention import Tenants

    return Tenants(contention, switches)
