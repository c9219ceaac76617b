"""The protocol of a policy, which decides who runs next."""

from __future__ import annotations

from traincast.scheduling.queue.run import JobRun
from traincast.scheduling.queue.state import State


class Policy:
    """Decides at every instant at which something happened: a job came, ended or failed, or the policy asked for it.

    The simulation calls `begin` once, then `queued`, `started` and `stopped` as jobs change, and `decide` when an
    instant is settled: all that ended then has ended, all that failed or was repaired is known, all that came is
    waiting. `decide` looks at ``state.waiting`` and ``state.running`` and calls `State.start`, which places a job and
    says whether that could be done, `State.preempt`, or `State.wake` to be asked again at a later time. It must not
    look at ``job.duration_s`` or ``run.work_s``, which are the truth: `JobRun.remaining_s` is what a
    scheduler may know.

    A policy of one's own needs only `decide`::

        class Smallest(Policy):
            def decide(self, state):
                for run in sorted(state.waiting.values(), key=lambda run: run.num_gpus):
                    state.start(run)

    and is named ``package.module:Smallest``.
    """

    resizes: bool = False
    """Whether the policy gives elastic jobs other numbers of GPUs than they ask for. If so, only ``min_gpus`` must fit
    the cluster."""

    def begin(self, state: State) -> None:
        """A run begins: forget all earlier ones."""

    def queued(self, run: JobRun, state: State) -> None:
        """A job begins to wait: it was submitted, preempted or stopped by a failure."""

    def started(self, run: JobRun, state: State) -> None:
        """A job has taken its GPUs."""

    def stopped(self, run: JobRun, state: State) -> None:
        """A job has left its GPUs: it is done, or `queued` is called next."""

    def decide(self, state: State) -> None:
        """Start and preempt jobs."""
        raise NotImplementedError
