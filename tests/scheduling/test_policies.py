"""Each policy on a queue small enough to do by hand."""

from __future__ import annotations

import pytest

from tests.scheduling.queues import job, queue, spans, starts
from traincast import Costs, FailureEvent, Failures, Job, Policy, RequestError, SharedCluster, UnknownNameError
from traincast.scheduling import (
    Factors,
    Given,
    Node,
    Noisy,
    PlacedGpus,
    State,
    User,
    load_beliefs,
    load_policy,
    measure,
    simulate,
)
from traincast.scheduling.policies.attained import Gittins, Las, Tiresias
from traincast.scheduling.policies.backfill import FirstBelow
from traincast.scheduling.policies.leased import Gandiva, MaxMin, Themis

ONE = SharedCluster.uniform(1, 1)
BLOCKED = queue((0, 3, 100), (1, 4, 50), (2, 1, 99), (3, 1, 20), (4, 1, 10))
"""Three of four GPUs are in use; b wants all four and waits until 100."""


def test_fifo_waits_for_its_head() -> None:
    assert starts(BLOCKED, "fifo") == {"a": 0, "b": 100, "c": 150, "d": 150, "e": 150}


def test_fifo_fit_lets_whoever_fits_pass() -> None:
    assert starts(BLOCKED, "fifo-fit") == {"a": 0, "b": 120, "c": 2, "d": 100, "e": 100}


def test_sjf_lets_the_shortest_block() -> None:
    assert starts(queue((0, 3, 100), (1, 4, 10), (2, 1, 20)), "sjf") == {"a": 0, "b": 100, "c": 110}
    assert starts(queue((0, 4, 100), (1, 4, 50), (2, 1, 20)), "sjf") == {"a": 0, "c": 100, "b": 120}


def test_sjf_fit_takes_the_shortest_that_fits() -> None:
    jobs = queue((0, 3, 100), (1, 4, 10), (2, 1, 200), (2, 1, 20))
    assert starts(jobs, "sjf-fit") == {"a": 0, "b": 222, "c": 22, "d": 2}


def test_easy_backfills_who_ends_before_the_head_can_start() -> None:
    assert starts(BLOCKED, "easy") == {"a": 0, "b": 100, "c": 150, "d": 3, "e": 23}


def test_easy_backfills_who_leaves_the_head_room() -> None:
    jobs = queue((0, 2, 100), (1, 3, 50), (2, 1, 1000), (2, 1, 1000))
    assert starts(jobs, "easy") == {"a": 0, "b": 100, "c": 2, "d": 150}


def test_conservative_lets_none_delay_any_that_came_before() -> None:
    jobs = queue((0, 2, 100), (1, 4, 50), (2, 3, 30), (3, 2, 110), (4, 1, 90))
    found = starts(jobs, "conservative")
    assert found["b"] == 100
    assert found["c"] == 150
    assert found["e"] == 4
    assert found["d"] == 180


def test_priority_serves_the_most_urgent_first() -> None:
    jobs = [job(0, 4, 10, job_id="a"), job(1, 4, 10, job_id="b"), job(2, 4, 10, job_id="c", priority=5)]
    assert starts(jobs, "priority") == {"a": 0, "c": 10, "b": 20}


def test_qssf_counts_gpus_times_time() -> None:
    assert starts(queue((0, 4, 10), (1, 4, 10), (2, 1, 30)), "qssf") == {"a": 0, "c": 10, "b": 40}


def test_srtf_preempts_for_a_shorter_job_and_srsf_for_a_smaller_one() -> None:
    jobs = queue((0, 4, 100), (10, 1, 120))
    assert spans(simulate(jobs, SharedCluster.uniform(1, 4), policy="srtf"))["b"] == [(100, 220)]
    assert spans(simulate(jobs, SharedCluster.uniform(1, 4), policy="srsf"))["b"] == [(10, 130)]


def test_srtf_keeps_a_job_on_its_gpus_and_displaces_the_one_that_ranks_last() -> None:
    jobs = queue((0, 2, 100), (0, 2, 50), (0, 2, 200), (10, 2, 10))
    outcome = simulate(jobs, SharedCluster.uniform(3, 2), policy="srtf", placement="consolidated")
    assert {j: f.preemptions for j, f in zip("abcd", outcome.fates, strict=True)} == {"a": 0, "b": 0, "c": 1, "d": 0}


def test_edf_goes_by_deadline_and_serves_jobs_without_one_last() -> None:
    jobs = [
        job(0, 1, 10, job_id="a"),
        job(1, 1, 10, job_id="b", deadline_s=50),
        job(2, 1, 5, job_id="c", deadline_s=20),
    ]
    assert spans(simulate(jobs, ONE, policy="edf")) == {"a": [(0, 1), (16, 25)], "b": [(1, 2), (7, 16)], "c": [(2, 7)]}


def test_las_gives_equal_jobs_their_turns() -> None:
    assert spans(simulate(queue((0, 1, 20), (0, 1, 20)), ONE, policy=Las(quantum_s=10))) == {
        "a": [(0, 10), (20, 30)],
        "b": [(10, 20), (30, 40)],
    }


def test_tiresias_lets_a_job_fall_at_its_threshold_and_not_before() -> None:
    jobs = queue((0, 2, 100), (10, 2, 10))
    outcome = simulate(jobs, SharedCluster.uniform(1, 2), policy=Tiresias([100]))
    assert spans(outcome) == {"a": [(0, 50), (60, 110)], "b": [(50, 60)]}


def test_gittins_learns_that_short_jobs_are_common() -> None:
    """After many jobs of 10 s, one that has had more is unlikely to end soon: a new one comes first."""
    jobs = [*(job(20 * n, 1, 10, job_id=str(n)) for n in range(10)), job(200, 1, 500, job_id="long")]
    jobs.append(job(400, 1, 10, job_id="new"))
    assert {f.job_id: f.start_s for f in simulate(jobs, ONE, policy=Gittins(first_gpu_s=20)).fates}["new"] == 400


def test_gandiva_slices_time() -> None:
    outcome = simulate(queue((0, 1, 20), (0, 1, 10), (0, 1, 20)), ONE, policy=Gandiva(lease_s=10))
    assert spans(outcome) == {"a": [(0, 10), (30, 40)], "b": [(10, 20)], "c": [(20, 30), (40, 50)]}


def test_max_min_serves_who_has_had_the_least() -> None:
    outcome = simulate(queue((0, 1, 40), (5, 1, 20)), ONE, policy=MaxMin(lease_s=10))
    assert spans(outcome)["b"][0] == (10, 20)


def test_themis_serves_whom_sharing_hurts_most() -> None:
    """At 100 the short job has taken five times its time, the long one hardly more than its own."""
    jobs = queue((0, 1, 100), (0, 1, 1000), (80, 1, 5))
    assert starts(jobs, "fifo", gpus=1)["c"] == 1100
    outcome = simulate(jobs, ONE, policy=Themis(lease_s=100))
    assert {f.job_id: f.start_s for f in outcome.fates}["c"] == 100


def test_gavel_gives_the_fast_gpus_to_who_gains_from_them() -> None:
    class Uneven:
        def speed(self, job: Job, placed: PlacedGpus) -> float:
            return (3.0 if job.job_id == "gains" else 1.1) if placed.gpu_type == "fast" else 1.0

    nodes = tuple(Node(name=kind, num_gpus=1, gpu_type=kind) for kind in ("fast", "slow"))
    jobs = [job(0, 1, 300, job_id="indifferent"), job(0, 1, 300, job_id="gains")]
    plain = simulate(jobs, SharedCluster(nodes=nodes), policy="fifo", speeds=Uneven())
    aware = simulate(jobs, SharedCluster(nodes=nodes), policy="gavel", speeds=Uneven())
    assert {f.job_id: f.nodes for f in plain.fates}["gains"] == ("slow",)
    assert {f.job_id: f.nodes for f in aware.fates}["gains"] == ("fast",)
    assert measure(aware).mean_jct_s < measure(plain).mean_jct_s


def test_elastic_gives_what_is_left_to_who_gains_most() -> None:
    jobs = [
        job(0, 1, 100, job_id="rigid"),
        job(0, 1, 1000, job_id="long", min_gpus=1, max_gpus=8),
        job(0, 1, 10, job_id="short", min_gpus=1, max_gpus=8),
    ]
    outcome = simulate(jobs, SharedCluster.uniform(1, 8), policy="elastic")
    held = {outcome.jobs[s.order].job_id: s.allocation.num_gpus for s in outcome.segments if s.start_s == 0}
    assert held["rigid"] == 1
    assert held["long"] > held["short"]
    assert sum(held.values()) == 8


def test_elastic_shrinks_a_job_to_let_another_in_and_grows_it_again() -> None:
    jobs = [
        job(0, 2, 100, job_id="a", min_gpus=1, max_gpus=4),
        job(10, 2, 20, job_id="b", min_gpus=2, max_gpus=2),
    ]
    outcome = simulate(jobs, SharedCluster.uniform(1, 4), policy="elastic")
    held = [(s.start_s, s.end_s, s.allocation.num_gpus) for s in outcome.segments if s.order == 0]
    # Four GPUs for 10 s are 20 s of work, two for 20 s another 20 s; four again do the other 60 s in 30 s.
    assert held == [(0, 10, 4), (10, 30, 2), (30, 60, 4)]


def test_failure_aware_keeps_off_nodes_that_failed() -> None:
    failures = Failures(events=(FailureEvent(time_s=5, kind="node", target="node0", repair_s=1),))
    jobs = queue((10, 2, 10))
    aware = simulate(jobs, SharedCluster.uniform(2, 2), policy="failure-aware", failures=failures)
    plain = simulate(jobs, SharedCluster.uniform(2, 2), policy="fifo-fit", failures=failures)
    assert (aware.fates[0].nodes, plain.fates[0].nodes) == (("node1",), ("node0",))


def test_a_virtual_cluster_at_its_quota_does_not_block_the_others() -> None:
    jobs = [job(0, 2, 100, job_id="a", vc="v"), job(1, 1, 10, job_id="b", vc="v"), job(2, 2, 10, job_id="c", vc="w")]
    cluster = SharedCluster.uniform(1, 4, quotas={"v": 2})
    for policy in ("fifo", "easy", "conservative"):
        found = {f.job_id: f.start_s for f in simulate(jobs, cluster, policy=policy).fates}
        assert found == {"a": 0, "b": 100, "c": 2}, policy


def test_a_virtual_cluster_with_its_own_nodes_has_a_line_of_its_own() -> None:
    nodes = (Node(name="own", num_gpus=2, vc="v"), Node(name="all", num_gpus=2))
    jobs = [job(0, 2, 100, job_id="a", vc="v"), job(1, 2, 10, job_id="b", vc="v"), job(2, 2, 10, job_id="c")]
    for policy in ("fifo", "easy"):
        outcome = simulate(jobs, SharedCluster(nodes=nodes), policy=policy)
        assert {f.job_id: f.start_s for f in outcome.fates} == {"a": 0, "b": 100, "c": 2}, policy


def test_policies_use_beliefs_and_the_run_uses_true_durations() -> None:
    jobs = queue((0, 1, 10), (1, 1, 100), (1, 1, 5))
    beliefs = Given({"a": 10, "b": 1, "c": 50})
    assert starts(jobs, "sjf", gpus=1, beliefs=beliefs) == {"a": 0, "b": 10, "c": 110}


def test_a_job_that_outlives_its_estimate_is_believed_to_take_twice_as_long() -> None:
    seen: list[float] = []

    class Watch(Policy):
        def decide(self, state: State) -> None:
            for run in list(state.waiting.values()):
                state.start(run)
            seen.extend(run.remaining_s(state.now) for run in state.running.values())
            state.wake(state.now + 10)

    simulate(queue((0, 1, 45)), ONE, policy=Watch(), beliefs=Given({"a": 15}))
    assert seen == [15, 5, 10, 30, 20]


def test_user_estimates_must_be_there() -> None:
    with pytest.raises(RequestError, match="job a has no estimate_s"):
        simulate(queue((0, 1, 45)), ONE, beliefs=User())


def test_noise_is_drawn_once_for_each_job_and_seed() -> None:
    one = job(0, 1, 100, job_id="a")
    assert Noisy(0.3, 1).seconds(one) == Noisy(0.3, 1).seconds(one) != Noisy(0.3, 2).seconds(one)
    assert Noisy(0.0).seconds(one) == 100


@pytest.mark.parametrize("name", ["noisy", "noisy:x", "noisy:-1", "perfect", "exact:1"])
def test_unknown_estimates_are_refused(name: str) -> None:
    with pytest.raises(RequestError, match="expected"):
        load_beliefs(name)


def test_an_unknown_policy_lists_the_choices() -> None:
    with pytest.raises(UnknownNameError, match="did you mean fifo"):
        load_policy("fito")
    with pytest.raises(RequestError, match=r"makes a Exact: subclass traincast\.scheduling\.Policy"):
        load_policy("traincast.scheduling:Exact")


def test_backfilling_minds_that_a_job_is_slower_across_nodes() -> None:
    """Two GPUs on two nodes: at half speed the job would end after the head's reservation, so it may not pass."""
    jobs = queue((0, 1, 100), (0, 1, 100), (1, 4, 10), (2, 2, 60))
    cluster = SharedCluster.uniform(2, 2)
    slow = simulate(jobs, cluster, policy="easy", placement="spread", speeds=Factors(across_nodes=0.5))
    fast = simulate(jobs, cluster, policy="easy", placement="spread")
    assert (fast.fates[3].start_s, slow.fates[3].start_s) == (2, 120)
    assert slow.fates[2].start_s == 100


def test_the_cost_of_resuming_is_part_of_the_remaining_time() -> None:
    """With 15 s to save and load, a job of 92 s left would need 107: one of 100 s may go on."""
    jobs = queue((0, 1, 100), (8, 1, 5), (10, 1, 100))
    outcome = simulate(jobs, ONE, policy="srtf", costs=Costs(checkpoint_s=15))
    assert spans(outcome)["c"][0][0] == 13


def test_the_first_number_at_most_a_limit() -> None:
    numbers = FirstBelow()
    for at, value in enumerate([5.0, 3.0, 8.0, 1.0, 9.0]):
        numbers.set(at, value)
    assert [numbers.find(limit) for limit in (0.5, 1, 3, 5, 100)] == [None, 3, 1, 0, 0]
    numbers.set(0, float("inf"))
    assert numbers.find(float("inf")) == 1


def test_believed_speeds_may_differ_from_true_speeds() -> None:
    """EASY thinks that spreading costs nothing, lets the job pass, and the head comes late."""
    jobs = queue((0, 1, 100), (0, 1, 100), (1, 4, 10), (2, 2, 60))
    misled = simulate(
        jobs,
        SharedCluster.uniform(2, 2),
        policy="easy",
        placement="spread",
        speeds=Factors(across_nodes=0.5),
        believed_speeds=Factors(),
    )
    assert (misled.fates[3].start_s, misled.fates[2].start_s) == (2, 122)


def test_elastic_jobs_are_not_stopped_for_nothing() -> None:
    """Growing would save a second or two, and stopping costs a minute."""
    jobs = [job(0, 2, 10, job_id="a"), job(0, 2, 20, job_id="b", min_gpus=2, max_gpus=4)]
    outcome = simulate(jobs, SharedCluster.uniform(1, 4), policy="elastic", costs=Costs(checkpoint_s=60))
    assert outcome.fates[1].preemptions == 0
    assert simulate(jobs, SharedCluster.uniform(1, 4), policy="elastic").fates[1].end_s == 15
