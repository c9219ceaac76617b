"""The state of one job in a simulation: its remaining work, its GPUs, and its record so far."""

from __future__ import annotations

from typing import Literal, TypeAlias

from traincast.scheduling.joblogs.job import Job
from traincast.scheduling.queue.costs import Costs
from traincast.scheduling.space.free import UNIT, Allocation, JobDemand

Phase: TypeAlias = Literal["coming", "waiting", "running", "done"]


class JobRun:
    """One job's progress. Policies read it and must not change it. Times are seconds.

    ``order`` is the job's place among all jobs by submission. ``work_s`` is the work that was left when the job last
    started or stopped, in seconds of its reference placement; ``believed_work_s`` is what the scheduler believes it to
    be.
    """

    __slots__ = (
        "allocation",
        "alone_speed",
        "began_s",
        "believed_end_s",
        "believed_work_s",
        "costs",
        "demand",
        "done_s",
        "done_work_s",
        "end_s",
        "first_start_s",
        "held_units",
        "job",
        "lost_gpu_s",
        "lost_s",
        "opened_s",
        "order",
        "overhead_gpu_s",
        "overhead_s",
        "owes",
        "phase",
        "preemptions",
        "restarts",
        "served_gpu_s",
        "served_s",
        "shared_s",
        "speed",
        "started_s",
        "token",
        "waiting_since_s",
        "work_s",
    )

    def __init__(self, job: Job, order: int, demand: JobDemand, costs: Costs) -> None:
        self.job = job
        self.order = order
        self.demand = demand
        self.costs = costs
        self.phase: Phase = "coming"
        self.work_s = job.duration_s
        self.believed_work_s = job.duration_s
        self.allocation: Allocation | None = None
        self.held_units = 0  # millionths of GPUs
        self.speed = 1.0
        self.alone_speed = 1.0  # its speed where it is, if it shared its nodes with nobody
        self.opened_s = 0.0  # when it began to execute after it last took its GPUs
        self.done_s = 0.0  # seconds of execution since then, before its speed last changed
        self.done_work_s = 0.0  # the same in seconds of its reference placement
        self.shared_s = 0.0  # seconds of execution, in all, without those that it would have needed alone
        self.waiting_since_s = job.submit_s
        self.started_s = 0.0  # when it last took its GPUs
        self.began_s = 0.0  # when it then began to execute, or when its speed last changed
        self.end_s = 0.0  # when it will end, or when it ended
        self.believed_end_s = 0.0
        self.first_start_s = -1.0
        self.served_s = 0.0  # seconds on GPUs before it last started
        self.served_gpu_s = 0.0
        self.preemptions = 0
        self.restarts = 0
        self.lost_s = 0.0  # execution lost to failures, in seconds of the reference placement
        self.lost_gpu_s = 0.0  # the same in GPU-seconds
        self.overhead_s = 0.0  # time on GPUs without execution
        self.overhead_gpu_s = 0.0
        self.owes: Literal["", "saved", "failed"] = ""  # how it last stopped: decides the overhead of its next start
        self.token = 0  # counts its starts and stops

    @property
    def num_gpus(self) -> float:
        """Return the GPUs that it holds or, while it waits, asks for; below 1 is a share of one GPU."""
        held = self.allocation or self.demand
        return held.num_gpus if held.units == UNIT else held.units / UNIT

    def executed_s(self, now: float) -> float:
        """Return the seconds of execution since it last started, without overheads and writing checkpoints."""
        return self.costs.executed_s(now - self.began_s, self.num_gpus) if now > self.began_s else 0.0

    def left_s(self, now: float) -> float:
        """Return the true remaining work, in seconds of its reference placement."""
        return self.work_s - self.executed_s(now) * self.speed if self.phase == "running" else self.work_s

    def remaining_s(self, now: float) -> float:
        """Return the work that the scheduler believes is left, in seconds of its reference placement; always above 0.

        A job that outlasts its estimate is believed to take twice the estimate in all, then four times, and so on.
        """
        left = self.believed_work_s
        if self.phase == "running":
            done = self.executed_s(now) * self.speed
            while left <= done:
                left += self.job.duration_s - self.work_s + left  # work done before this start, and work left then
            return left - done
        return left

    def attained_s(self, now: float) -> float:
        """Return the seconds for which it has held GPUs."""
        return self.served_s + (now - self.started_s) if self.phase == "running" else self.served_s

    def attained_gpu_s(self, now: float) -> float:
        """Return the GPU-seconds that it has held."""
        if self.phase == "running":
            return self.served_gpu_s + (now - self.started_s) * self.num_gpus
        return self.served_gpu_s
