"""Every policy with every placement keeps the laws of a queue, and the suite finds those that do not."""

from __future__ import annotations

import itertools

import pytest

from tests.scheduling.queues import queue
from traincast import Policy, SharedCluster, SimulationError
from traincast.scheduling import PLACEMENTS, POLICIES, Occupancy, Outcome, State, simulate
from traincast.scheduling.conformance import LawBrokenError, check_outcome, check_policy, check_work


@pytest.mark.long(but=lambda policy, placement: policy)
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_with_every_placement_conforms(policy: str, placement: str) -> None:
    check_policy(policy, placement=placement, seeds=1)


class Smallest(Policy):
    """A policy of one's own: fewest GPUs first."""

    def decide(self, state: State) -> None:
        for run in sorted(state.waiting.values(), key=lambda run: run.num_gpus):
            state.start(run)


def test_a_policy_of_ones_own_is_named_by_its_module_and_conforms() -> None:
    check_policy("tests.scheduling.test_conformance:Smallest", placement="consolidated", seeds=1)


class Forgetful(Smallest):
    """Behaves otherwise every time."""

    runs = itertools.count()

    def begin(self, state: State) -> None:
        self.sign = 1 if next(self.runs) % 2 else -1

    def decide(self, state: State) -> None:
        for run in sorted(state.waiting.values(), key=lambda run: self.sign * run.num_gpus):
            state.start(run)


def test_a_policy_whose_runs_differ_is_found_out() -> None:
    with pytest.raises(LawBrokenError, match="a second run differs"):
        check_policy(Forgetful())


class Lazy(Smallest):
    """Never starts large jobs."""

    def decide(self, state: State) -> None:
        for run in list(state.waiting.values()):
            if run.num_gpus < 8:
                state.start(run)


def test_a_policy_that_lets_jobs_wait_for_ever_is_found_out() -> None:
    with pytest.raises(SimulationError, match="wait for ever"):
        check_policy(Lazy())


def _changed(outcome: Outcome, segments: list[Occupancy]) -> Outcome:
    return Outcome(
        policy="",
        placement="",
        cluster=outcome.cluster,
        jobs=outcome.jobs,
        fates=outcome.fates,
        segments=segments,
        history=outcome.history,
    )


def test_an_outcome_that_breaks_a_law_is_found_out() -> None:
    good = simulate(queue((5, 2, 10), (5, 2, 20)), SharedCluster.uniform(2, 2))
    check_outcome(good)
    check_work(good)
    first, second = good.segments
    for wrong, message in (
        ([first], "never ran"),
        ([first._replace(start_s=4.0), second], "was submitted at 5"),
        ([first, second._replace(end_s=30.0)], "held GPUs until 30"),
        ([first, second, second], "runs twice"),
        ([first, second._replace(allocation=first.allocation)], "used twice"),
        ([first, second._replace(allocation=first.allocation._replace(gpus=((1, 1),)))], "holds 1 GPUs"),
    ):
        with pytest.raises(LawBrokenError, match=message):
            check_outcome(_changed(good, wrong))


def test_work_that_is_not_done_is_found_out() -> None:
    good = simulate(queue((0, 1, 10)), SharedCluster.uniform(1, 1))
    short = [good.segments[0]._replace(end_s=5.0)]
    with pytest.raises(LawBrokenError, match=r"held GPUs for 5.0 s, and has 10 s of work"):
        check_work(_changed(good, short))
