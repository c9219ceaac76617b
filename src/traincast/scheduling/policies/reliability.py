"""Failure-aware placement: jobs avoid nodes that failed recently, as long as there are others."""

from __future__ import annotations

from traincast.errors import RequestError
from traincast.scheduling.policies.lanes import Key
from traincast.scheduling.policies.ordered import FifoFit
from traincast.scheduling.queue.run import JobRun
from traincast.scheduling.queue.state import State


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
