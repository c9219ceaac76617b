"""Policies without preemption. They order jobs by submission, length, priority or GPU time."""

from __future__ import annotations

from typing import ClassVar

from traincast.scheduling.policies.lanes import Key, Lanes
from traincast.scheduling.policy import Policy
from traincast.scheduling.run import JobRun
from traincast.scheduling.state import State


def line_of(run: JobRun, state: State) -> str:
    """The line of a job: one line for all, and one for each virtual cluster with nodes of its own."""
    return run.job.vc if run.job.vc in state.layout.owners else ""


class Ordered(Policy):
    """Jobs start in the order of a key that does not change while they wait.

    If strict, the first job without room blocks all behind it in its line. A job held back only by its quota blocks
    none but those of its virtual cluster. Otherwise whoever fits starts.
    """

    is_strict: ClassVar[bool] = True

    def __init__(self) -> None:
        self._lanes = Lanes()

    def key(self, run: JobRun, state: State) -> Key:
        """The job's key; the smallest comes first."""
        raise NotImplementedError

    def begin(self, state: State) -> None:
        """Start with an empty line."""
        self._lanes.clear()

    def queued(self, run: JobRun, state: State) -> None:
        """Stand in line."""
        lane = (line_of(run, state), run.demand.vc) if self.is_strict else run.demand
        self._lanes.push(run, self.key(run, state), lane)

    def decide(self, state: State) -> None:
        """Start what may start."""
        if not state.waiting or state.free.is_full():
            return
        if not self.is_strict:
            self._lanes.walk(state, lambda run, _: state.start(run))
            return
        blocked: set[str] = set()

        def attempt(run: JobRun, _: Key) -> bool:
            line = line_of(run, state)
            if line in blocked:
                return False
            if state.start(run):
                return True
            if state.free.in_quota(run.demand):
                blocked.add(line)
            return False

        self._lanes.walk(state, attempt)


class Fifo(Ordered):
    """First in, first out: the head of the line blocks."""

    def key(self, run: JobRun, state: State) -> Key:
        """Its order of submission."""
        return ()


class FifoFit(Fifo):
    """In order of submission; a job that does not fit is passed over."""

    is_strict = False


class Sjf(Ordered):
    """Shortest job first, by believed duration; the shortest blocks the rest."""

    def key(self, run: JobRun, state: State) -> Key:
        """What is left of it."""
        return (run.remaining_s(state.now),)


class SjfFit(Sjf):
    """The shortest job that fits."""

    is_strict = False


class Priority(Ordered):
    """The most urgent first, then in order of submission: the head of the line blocks."""

    def key(self, run: JobRun, state: State) -> Key:
        """Its priority, larger first."""
        return (-run.job.priority,)


class Qssf(Ordered):
    """Quasi-shortest service first (Hu et al., SC 2021, for Helios): least predicted GPU time first, which blocks."""

    def key(self, run: JobRun, state: State) -> Key:
        """What is left of it, in GPU-seconds."""
        return (run.remaining_s(state.now) * run.job.num_gpus,)
