"""The event engine by hand: what happens at one instant, what stopping costs, what is refused."""

from __future__ import annotations

import pytest

from tests.scheduling.queues import job, queue, spans, starts
from traincast import Costs, FailureEvent, Failures, Policy, RequestError, SharedCluster, SimulationError
from traincast.scheduling import Factors, JobRun, Node, State, measure, simulate
from traincast.scheduling.space.cluster import Pool
from traincast.scheduling.space.free import Free
from traincast.scheduling.space.placement import Consolidated, Picked


class Diary(Policy):
    """Starts whatever fits, and writes down what it is told."""

    def __init__(self) -> None:
        self.lines: list[tuple[float, str, str]] = []

    def queued(self, run: JobRun, state: State) -> None:
        self.lines.append((state.now, "queued", run.job.job_id))

    def stopped(self, run: JobRun, state: State) -> None:
        self.lines.append((state.now, "stopped", run.job.job_id))

    def decide(self, state: State) -> None:
        self.lines.append((state.now, "decide", f"{state.free.total} free"))
        for run in list(state.waiting.values()):
            state.start(run)


def test_at_one_instant_jobs_end_then_things_fail_or_are_repaired_then_jobs_arrive_then_it_is_decided() -> None:
    diary = Diary()
    failures = Failures(
        events=(
            FailureEvent(time_s=5, kind="device", target="node0", gpu=3, repair_s=5),
            FailureEvent(time_s=10, kind="device", target="node0", gpu=1, repair_s=100),
        )
    )
    jobs = [*queue((0, 1, 10), (0, 1, 30)), job(10, 1, 5, job_id="new")]
    simulate(jobs, SharedCluster.uniform(1, 4), policy=diary, failures=failures)
    assert [line for line in diary.lines if line[0] == 10] == [
        (10, "stopped", "a"),  # it ended, so the failure of its neighbour is the only one that counts
        (10, "stopped", "b"),
        (10, "queued", "b"),
        (10, "queued", "new"),
        (10, "decide", "3 free"),  # GPU 3 is back, GPU 1 is down
    ]


def test_a_job_that_ends_as_its_gpu_fails_has_ended() -> None:
    failures = Failures(events=(FailureEvent(time_s=10, kind="node", target="node0", repair_s=5),))
    outcome = simulate(queue((0, 4, 10)), SharedCluster.uniform(1, 4), failures=failures)
    assert outcome.fates[0].end_s == 10
    assert outcome.fates[0].restarts == 0


def test_who_arrives_when_gpus_become_free_gets_them_after_those_who_wait() -> None:
    assert starts(queue((0, 4, 10), (5, 4, 10), (10, 4, 10)), "fifo") == {"a": 0, "b": 10, "c": 20}


def test_jobs_of_one_instant_keep_the_order_in_which_they_are_given() -> None:
    assert starts(queue((0, 4, 10), (0, 4, 20), (0, 4, 5)), "fifo") == {"a": 0, "b": 10, "c": 30}


def test_times_are_exact_and_not_rounded() -> None:
    outcome = simulate(queue((0.1, 4, 0.25), (0.2, 4, 1e6)), SharedCluster.uniform(1, 4))
    assert [fate.end_s for fate in outcome.fates] == [0.35, 0.35 + 1e6]


def test_free_preemption_costs_no_time() -> None:
    outcome = simulate(queue((0, 4, 100), (10, 4, 20)), SharedCluster.uniform(1, 4), policy="srtf")
    assert spans(outcome) == {"a": [(0, 10), (30, 120)], "b": [(10, 30)]}
    assert [fate.preemptions for fate in outcome.fates] == [1, 0]
    assert outcome.fates[0].queue_s == 20


def test_a_preempted_job_pays_for_saving_and_loading_by_its_size_when_it_goes_on() -> None:
    costs = Costs(checkpoint_s=2, checkpoint_s_per_gpu=1, restore_s=3, restore_s_per_gpu=0.5)
    outcome = simulate(queue((0, 4, 100), (10, 4, 20)), SharedCluster.uniform(1, 4), policy="srtf", costs=costs)
    overhead = (2 + 4 * 1) + (3 + 4 * 0.5)
    assert spans(outcome)["a"] == [(0, 10), (30, 30 + overhead + 90)]
    assert outcome.fates[0].overhead_s == overhead


def test_regular_checkpoints_take_their_time_and_none_is_written_at_the_end() -> None:
    costs = Costs(checkpoint_s=5, interval_s=20)
    outcome = simulate(queue((0, 1, 60)), SharedCluster.uniform(1, 4), costs=costs)
    assert outcome.fates[0].end_s == 60 + 2 * 5


@pytest.mark.parametrize(
    ("fails_s", "lost_s"),
    [(19, 19), (26, 1), (49, 20), (50, 0), (74, 20)],
    ids=["before any", "just after one", "as one is written", "as it is done", "as the second is written"],
)
def test_a_failure_costs_what_was_done_since_the_last_checkpoint(fails_s: float, lost_s: float) -> None:
    costs = Costs(checkpoint_s=5, interval_s=20, restart_s=7, restore_s=1)
    failures = Failures(events=(FailureEvent(time_s=fails_s, kind="node", target="node0", repair_s=10),))
    outcome = simulate(queue((0, 1, 90)), SharedCluster.uniform(1, 4), costs=costs, failures=failures)
    fate = outcome.fates[0]
    assert (fate.restarts, fate.preemptions) == (1, 0)
    assert fate.lost_s == lost_s
    assert fate.queue_s == 10
    kept = fails_s // 25 * 20
    left = 90 - kept
    assert fate.end_s == fails_s + 10 + 7 + 1 + left + 5 * (-(-left // 20) - 1)


def test_without_checkpoints_a_failure_costs_all_since_the_last_start() -> None:
    failures = Failures(events=(FailureEvent(time_s=40, kind="device", target="node0", gpu=0, repair_s=1),))
    outcome = simulate(queue((0, 4, 100)), SharedCluster.uniform(1, 4), failures=failures)
    assert outcome.fates[0].lost_s == 40
    assert outcome.fates[0].end_s == 141
    assert measure(outcome).lost_gpu_s == 160


def test_what_was_saved_by_preemption_survives_a_failure() -> None:
    failures = Failures(events=(FailureEvent(time_s=50, kind="node", target="node0", repair_s=0),))
    outcome = simulate(queue((0, 4, 100), (30, 4, 10)), SharedCluster.uniform(1, 4), policy="srtf", failures=failures)
    assert outcome.fates[0].lost_s == 10
    assert outcome.fates[0].end_s == 50 + 70


def test_a_gpu_down_for_two_reasons_is_back_when_both_are_repaired() -> None:
    failures = Failures(
        events=(
            FailureEvent(time_s=0, kind="device", target="node0", gpu=0, repair_s=30),
            FailureEvent(time_s=5, kind="node", target="node0", repair_s=5),
        )
    )
    assert starts(queue((6, 3, 1), (6, 4, 1)), "fifo", failures=failures) == {"a": 10, "b": 30}


def test_a_switch_takes_all_its_nodes_along() -> None:
    cluster = SharedCluster.uniform(4, 2, nodes_per_rack=2)
    failures = Failures(events=(FailureEvent(time_s=5, kind="switch", target="0", repair_s=10),))
    outcome = simulate(queue((0, 2, 20), (0, 2, 20), (0, 2, 20), (0, 2, 20)), cluster, failures=failures)
    assert [fate.restarts for fate in outcome.fates] == [1, 1, 0, 0]


def test_a_job_runs_at_the_speed_of_its_placement() -> None:
    speeds = Factors(gpu_types={"old": 0.5}, across_nodes=0.8)
    nodes = tuple(Node(name=str(n), num_gpus=2, gpu_type="old") for n in range(2))
    outcome = simulate(queue((0, 4, 100), (0, 2, 100)), SharedCluster(nodes=nodes), speeds=speeds)
    assert [fate.jct_s for fate in outcome.fates] == pytest.approx([250, 250 + 200])


def test_jobs_larger_than_the_cluster_are_refused_before_the_run() -> None:
    with pytest.raises(RequestError, match=r"job b asks for 5 GPUs, but the cluster has 4 .*\(and 1 more"):
        simulate(queue((0, 4, 10), (0, 5, 10), (0, 6, 1)), SharedCluster.uniform(1, 4))


def test_jobs_that_placement_could_never_place_are_refused() -> None:
    nodes = tuple(Node(name=str(n), num_gpus=4) for n in range(2))
    with pytest.raises(RequestError, match="cannot be placed even on the empty cluster of 8"):
        simulate(queue((0, 4, 1), (0, 5, 1)), SharedCluster(nodes=nodes), placement=OneNode())


class OneNode(Consolidated):
    """Never splits a job."""

    def pick(self, count: int, pool: Pool, free: Free) -> Picked | None:
        return super().pick(count, pool, free) if count <= free.layout.largest else None


class Never(Policy):
    """Starts nothing."""

    def decide(self, state: State) -> None:
        state.wake(state.now + 1)


def test_a_gpu_type_that_is_not_there_is_refused() -> None:
    with pytest.raises(RequestError, match="GPU types: a100"):
        simulate(
            [job(0, 1, 1, job_id="x", gpu_type="h100")],
            SharedCluster(nodes=(Node(name="n", num_gpus=1, gpu_type="a100"),)),
        )


def test_more_than_a_quota_is_refused() -> None:
    with pytest.raises(RequestError, match="quota of virtual cluster 'v' is 2"):
        simulate([job(0, 3, 1, job_id="x", vc="v")], SharedCluster.uniform(1, 4, quotas={"v": 2}))


def test_a_policy_that_starts_nothing_is_found_out() -> None:
    with pytest.raises(SimulationError, match="1 jobs wait for ever"):
        simulate(queue((0, 1, 1)), SharedCluster.uniform(1, 1), policy=Never())


def test_a_cluster_that_is_never_repaired_is_found_out() -> None:
    failures = Failures(events=(FailureEvent(time_s=0, kind="node", target="node0", repair_s=float("inf")),))
    with pytest.raises(SimulationError, match="failures must be repaired"):
        simulate(queue((0, 1, 1)), SharedCluster.uniform(1, 1), failures=failures)


def test_a_policy_that_starts_a_job_twice_is_told() -> None:
    class Twice(Policy):
        def decide(self, state: State) -> None:
            for run in list(state.waiting.values()):
                state.start(run)
                state.start(run)

    with pytest.raises(SimulationError, match="starts job a, which is running"):
        simulate(queue((0, 1, 1)), SharedCluster.uniform(1, 4), policy=Twice())


def test_an_empty_queue_runs() -> None:
    outcome = simulate([], SharedCluster.uniform(1, 1))
    assert not outcome.fates
    assert outcome.makespan_s == 0


def test_history_says_who_waits_and_what_is_used() -> None:
    history = simulate(queue((0, 3, 10), (0, 2, 10)), SharedCluster.uniform(2, 2)).history
    assert history.time_s.tolist() == [0, 10, 20]
    assert history.waiting.tolist() == [1, 0, 0]
    assert history.used_gpus.tolist() == [3, 2, 0]
    assert history.split_gpus.tolist() == [1, 0, 0]
