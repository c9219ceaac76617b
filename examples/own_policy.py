"""Defines a scheduling policy: the highest response ratio is next, so that short jobs pass and long jobs do not starve.

On the command line, from this folder: ``traincast schedule jobs.csv --nodes 2x8 --policy own_policy:ResponseRatio``.
"""

from pathlib import Path

from traincast import schedule
from traincast.scheduling import JobRun, Policy, State
from traincast.scheduling.conformance import check_policy

JOBS = Path(__file__).with_name("jobs.csv")


class ResponseRatio(Policy):
    def decide(self, state: State) -> None:
        """Start jobs in order of (time since submission + remaining time) / remaining time, until one does not fit."""

        def ratio(run: JobRun) -> float:
            left = run.remaining_s(state.now)
            return (state.now - run.job.submit_s + left) / left

        for run in sorted(state.waiting.values(), key=ratio, reverse=True):
            if not state.start(run):
                return


if __name__ == "__main__":
    check_policy(ResponseRatio())
    print("ResponseRatio keeps the laws of a queue")
    for policy in ("fifo", "sjf", ResponseRatio()):
        found = schedule(JOBS, nodes="2x8", policy=policy, placement="consolidated")
        hours = [seconds / 3600 for seconds in (found.metrics.mean_jct_s, found.metrics.p99_jct_s)]
        print(f"{found.policy}: mean completion {hours[0]:.2f} h, 99th percentile {hours[1]:.2f} h")
