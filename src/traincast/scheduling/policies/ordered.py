"""Policies without preemption. They order jobs by submission, length, priority or GPU time; one avoids failed nodes."""

from __future__ import annotations

from typing import ClassVar

from traincast.errors import RequestError
from traincast.scheduling.policies.lanes import Key, Lanes
from traincast.scheduling.policy import Policy
from traincast.scheduling.queue.run import JobRun
from traincast.scheduling.queue.state import State


def line_of(run: JobRun, state: State) -> str:
    """Return the line of a job: one for each virtual cluster that owns nodes, and one for all other jobs."""
    return run.job.vc if run.job.vc in state.layout.owners else ""


class Ordered(Policy):
    """Jobs start in the order of a key that does not change while they wait.

    If strict, the first job without room blocks all behind it in its line. A job that is held back only by its quota
    blocks only the jobs of its virtual cluster. If not strict, every job that fits starts.
    """

    is_strict: ClassVar[bool] = True

    def __init__(self) -> None:
        self._lanes = Lanes()

    def key(self, run: JobRun, state: State) -> Key:
        """Return the job's key; the smallest comes first."""
        raise NotImplementedError

    def begin(self, state: State) -> None:
        """Start with an empty line."""
        self._lanes.clear()

    def queued(self, run: JobRun, state: State) -> None:
        """Put the job into its line."""
        lane = (line_of(run, state), run.demand.vc) if self.is_strict else run.demand
        self._lanes.push(run, self.key(run, state), lane)

    def decide(self, state: State) -> None:
        """Start the jobs that may start."""
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
        """Return the job's order of submission."""
        return ()


class FifoFit(Fifo):
    """In order of submission; a job that does not fit is passed over."""

    is_strict = False


class Sjf(Ordered):
    """Shortest job first, by believed remaining time; if the shortest does not fit, it blocks the rest."""

    def key(self, run: JobRun, state: State) -> Key:
        """Return the job's believed remaining time."""
        return (run.remaining_s(state.now),)


class SjfFit(Sjf):
    """The shortest job that fits."""

    is_strict = False


class Priority(Ordered):
    """The most urgent job first, then in order of submission: the head of the line blocks."""

    def key(self, run: JobRun, state: State) -> Key:
        """Return the job's negative priority, so that the largest comes first."""
        return (-run.job.priority,)


class Qssf(Ordered):
    """Quasi-shortest service first (Hu et al., SC 2021, Helios): least believed GPU time first; the head blocks."""

    def key(self, run: JobRun, state: State) -> Key:
        """Return the job's believed remaining GPU-seconds."""
        return (run.remaining_s(state.now) * run.job.num_gpus,)


class FailureAware(FifoFit):
    """In order of submission, preferably on nodes that have not failed within the last ``memory_s``.

    A node that failed is more likely than others to fail again soon. The scheduler does not know the probability, so
    it relies on the failures it has seen.
    """

    def __init__(self, memory_s: float = 7 * 86400.0) -> None:
        super().__init__()
        if not memory_s > 0:
            raise RequestError(f"memory_s={memory_s}: expected seconds above 0")
        self.memory_s = memory_s

    def decide(self, state: State) -> None:
        """Start jobs that fit, first on nodes without recent failures."""
        if not state.waiting or state.free.is_full():
            return
        suspect = sum(1 << node for node, times in state.failed_nodes.items() if times[-1] > state.now - self.memory_s)

        def attempt(run: JobRun, _: Key) -> bool:
            if suspect:
                others = tuple(pool.without(suspect) for pool in run.demand.pools)
                if state.start(run, demand=run.demand._replace(pools=others)):
                    return True
            return state.start(run)

        self._lanes.walk(state, attempt)
