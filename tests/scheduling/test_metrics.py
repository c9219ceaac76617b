"""Figures of an outcome, by hand."""

from __future__ import annotations

import pytest

from tests.scheduling.queues import job, queue
from traincast import Costs, SharedCluster
from traincast.scheduling import measure, measure_by_vc, simulate
from traincast.scheduling.queue.metrics import rho


def test_times_of_a_queue_of_two() -> None:
    found = measure(simulate(queue((0, 4, 10), (0, 2, 30)), SharedCluster.uniform(1, 4)))
    assert (found.num_jobs, found.mean_jct_s, found.median_jct_s) == (2, 25, 25)
    assert (found.mean_queue_s, found.makespan_s) == (5, 40)
    assert found.utilization == (40 + 60) / 160
    assert found.goodput == 1
    assert found.p99_jct_s == pytest.approx(39.7)


def test_fragmentation_is_the_part_of_free_gpus_on_nodes_that_are_partly_used() -> None:
    jobs = queue((0, 1, 10), (0, 1, 20))
    found = measure(simulate(jobs, SharedCluster.uniform(2, 2), placement="spread"))
    # Until 10 both nodes have one free GPU; then one is empty and the other has one.
    assert found.fragmentation == pytest.approx((2 * 10 + 1 * 10) / (2 * 10 + 3 * 10))
    assert measure(
        simulate(jobs, SharedCluster.uniform(2, 2), placement="consolidated")
    ).fragmentation == pytest.approx(10 / (20 + 30))


def test_the_rest_of_a_shared_gpu_is_a_fragment() -> None:
    found = measure(simulate([job(0, 0.25, 10, job_id="a")], SharedCluster.uniform(2, 1)))
    assert found.fragmentation == pytest.approx(0.75 / 1.75)
    assert found.utilization == pytest.approx(0.125)


def test_idle_gpus_count_against_a_policy_only_while_somebody_waits() -> None:
    found = measure(simulate(queue((0, 3, 10), (0, 2, 10)), SharedCluster.uniform(1, 4)))
    assert found.idle_while_waiting == 10 / 80


def test_a_job_alone_is_treated_fairly_and_one_that_waits_for_another_is_not() -> None:
    assert rho(simulate(queue((0, 4, 10)), SharedCluster.uniform(1, 4))).tolist() == [1]
    # b has half a cluster of four GPUs for itself in the ideal: two jobs on average, so 20 s; it took 20 s.
    assert rho(simulate(queue((0, 4, 10), (0, 4, 10)), SharedCluster.uniform(1, 4))).tolist() == pytest.approx(
        [10 / 20, 20 / 15]
    )


def test_virtual_clusters_have_their_own_figures() -> None:
    jobs = [job(0, 1, 10, job_id="a", vc="x"), job(0, 1, 30, job_id="b", vc="y"), job(0, 1, 50, job_id="c", vc="y")]
    found = measure_by_vc(simulate(jobs, SharedCluster.uniform(1, 4)))
    assert {vc: (m.num_jobs, m.mean_jct_s) for vc, m in found.items()} == {"x": (1, 10), "y": (2, 40)}
    assert {vc: (m.makespan_s, m.utilization) for vc, m in found.items()} == {"x": (10, 0.25), "y": (50, 0.4)}


def test_overhead_and_deadlines_are_counted() -> None:
    jobs = [job(0, 2, 100, job_id="a", deadline_s=200), job(10, 2, 20, job_id="b", deadline_s=25)]
    costs = Costs(checkpoint_s=3, restore_s=2)
    found = measure(simulate(jobs, SharedCluster.uniform(1, 2), policy="srtf", costs=costs))
    assert found.preemptions == 1
    assert found.overhead_gpu_s == 10
    assert found.goodput == pytest.approx(240 / 250)
    assert found.deadlines_met == 0.5
