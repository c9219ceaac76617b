"""Laws of queues, for any jobs: order, conservation, optimality, reservations, and runs that repeat."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast import Costs, FailureLaw, Failures, Job, SharedCluster
from traincast.scheduling import POLICIES, JobRun, Noisy, State, measure, simulate
from traincast.scheduling.conformance import check_outcome, check_work
from traincast.scheduling.policies.backfill import Easy
from traincast.scheduling.space.placement import Space

RUN_TO_THE_END = ["fifo", "fifo-fit", "sjf", "sjf-fit", "priority", "easy", "conservative", "qssf", "failure-aware"]


@st.composite
def queues(draw: st.DrawFn, sizes: tuple[float, ...] = (1, 1, 2, 3, 4, 8), most: int = 14) -> list[Job]:
    number = draw(st.integers(1, most))
    return [
        Job(
            job_id=str(at),
            submit_s=draw(st.integers(0, 60)),
            num_gpus=draw(st.sampled_from(sizes)),
            duration_s=draw(st.integers(1, 50)),
            priority=draw(st.integers(0, 2)),
        )
        for at in range(number)
    ]


@pytest.mark.long(but=6)
@settings(deadline=None, derandomize=True, max_examples=12)
@given(jobs=queues(), placement=st.sampled_from(["pooled", "consolidated", "topology"]), seed=st.integers(0, 3))
@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_starts_early_no_gpu_is_used_twice_and_work_is_conserved(
    policy: str, jobs: list[Job], placement: str, seed: int
) -> None:
    costs = Costs(checkpoint_s=seed, restore_s_per_gpu=0.5, restart_s=1, interval_s=7)
    failures = Failures(laws=(FailureLaw(kind="node", mtbf_s=200, repair_s=5),)) if seed else None
    outcome = simulate(
        jobs,
        SharedCluster.uniform(2, 4),
        policy=policy,
        placement=placement,
        costs=costs,
        failures=failures,
        beliefs=Noisy(0.5, seed),
        seed=seed,
    )
    check_outcome(outcome, failures=True)
    check_work(outcome)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(jobs=queues(sizes=(1,)))
def test_on_one_gpu_srtf_has_the_least_mean_completion_time(jobs: list[Job]) -> None:
    one = SharedCluster.uniform(1, 1)
    best = measure(simulate(jobs, one, policy="srtf")).mean_jct_s
    for policy in RUN_TO_THE_END:
        assert best <= measure(simulate(jobs, one, policy=policy)).mean_jct_s + 1e-9, policy


class Witness(Easy):
    """EASY that remembers the first reservation of every head."""

    def begin(self, state: State) -> None:
        super().begin(state)
        self.promised: dict[int, float] = {}

    def _reserve(self, head: JobRun, state: State) -> tuple[float, Space]:
        found = super()._reserve(head, state)
        self.promised.setdefault(head.order, found[0])
        return found


@settings(deadline=None, derandomize=True, max_examples=150)
@given(jobs=queues(most=25), placement=st.sampled_from(["pooled", "consolidated", "topology", "spread", "packed"]))
def test_easy_never_delays_the_reservation_of_a_head(jobs: list[Job], placement: str) -> None:
    witness = Witness()
    outcome = simulate(jobs, SharedCluster.uniform(2, 4), policy=witness, placement=placement)
    for order, promised in witness.promised.items():
        assert outcome.fates[order].start_s <= promised


@settings(deadline=None, derandomize=True, max_examples=60)
@given(jobs=queues())
def test_easy_starts_the_first_head_when_fifo_does_and_conservative_nobody_later_than_fifo(jobs: list[Job]) -> None:
    """With exact estimates and pooled GPUs, none who came before is delayed: FIFO's starts are upper bounds."""
    cluster = SharedCluster.uniform(2, 4)
    line = simulate(jobs, cluster, policy="fifo").fates
    for mine, fifos in zip(simulate(jobs, cluster, policy="conservative").fates, line, strict=True):
        assert mine.start_s <= fifos.start_s


@settings(deadline=None, derandomize=True, max_examples=100)
@given(jobs=queues(sizes=(1,), most=30))
def test_twice_the_cluster_never_lengthens_fifos_makespan_for_single_gpu_jobs(jobs: list[Job]) -> None:
    cluster = SharedCluster.uniform(1, 2)
    assert simulate(jobs, cluster.doubled()).makespan_s <= simulate(jobs, cluster).makespan_s


@settings(deadline=None, derandomize=True, max_examples=60)
@given(jobs=queues())
def test_fifo_starts_jobs_in_the_order_in_which_they_came(jobs: list[Job]) -> None:
    starts = [fate.start_s for fate in simulate(jobs, SharedCluster.uniform(2, 4)).fates]
    assert starts == sorted(starts)


@settings(deadline=None, derandomize=True, max_examples=40)
@given(jobs=queues())
def test_a_policy_without_blocking_starts_every_job_that_fits(jobs: list[Job]) -> None:
    outcome = simulate(jobs, SharedCluster.uniform(2, 4), policy="fifo-fit")
    for job, fate in zip(outcome.jobs, outcome.fates, strict=True):
        for time, free in zip(outcome.history.time_s, outcome.history.free_gpus, strict=True):
            assert not (job.submit_s <= time < fate.start_s and free >= job.num_gpus)


@pytest.mark.parametrize("policy", ["fifo", "srtf", "gandiva", "easy"])
@settings(deadline=None, derandomize=True, max_examples=10)
@given(jobs=queues(), seed=st.integers(0, 5))
def test_equal_seeds_give_equal_runs(policy: str, jobs: list[Job], seed: int) -> None:
    failures = Failures(laws=(FailureLaw(kind="device", mtbf_s=300, repair_s=5, shape=0.7),))
    first, second = (
        simulate(jobs, SharedCluster.uniform(2, 4), policy=policy, placement="random", failures=failures, seed=seed)
        for _ in range(2)
    )
    assert (first.fates, first.segments) == (second.fates, second.segments)


@settings(deadline=None, derandomize=True, max_examples=30)
@given(jobs=queues(), shift=st.integers(1, 1000))
def test_time_has_no_origin(jobs: list[Job], shift: int) -> None:
    later = [
        Job(job_id=j.job_id, submit_s=j.submit_s + shift, num_gpus=j.num_gpus, duration_s=j.duration_s) for j in jobs
    ]
    for policy in ("easy", "srtf"):
        a, b = (simulate(queue, SharedCluster.uniform(2, 4), policy=policy) for queue in (jobs, later))
        assert [f.end_s + shift for f in a.fates] == [f.end_s for f in b.fates]
