"""Jobs and clusters that cannot be are refused, in one line each."""

from __future__ import annotations

import math
from typing import Any

import pytest

from traincast import Costs, FailureEvent, FailureLaw, Failures, Job, RequestError, SharedCluster, UnknownNameError
from traincast.scheduling import Factors, Node, simulate
from traincast.scheduling.space.cluster import NodeIndex


@pytest.mark.parametrize(
    "wrong",
    [
        {"submit_s": -1},
        {"submit_s": math.nan},
        {"duration_s": 0},
        {"duration_s": math.inf},
        {"num_gpus": 0},
        {"num_gpus": 1.5},
        {"num_gpus": -2},
        {"estimate_s": 0},
        {"deadline_s": math.nan},
        {"priority": math.inf},
        {"min_gpus": 4, "max_gpus": 8},
        {"min_gpus": 1},
        {"max_gpus": 1, "num_gpus": 2, "min_gpus": 1},
    ],
    ids=str,
)
def test_a_job_with_impossible_values_is_refused(wrong: dict[str, Any]) -> None:
    right: dict[str, Any] = {"job_id": "x", "submit_s": 0, "num_gpus": 1, "duration_s": 10}
    with pytest.raises(RequestError, match=r"job x: .*expected") as caught:
        Job(**(right | wrong))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("gpus", [0.1, 0.999, 1, 8, 4096])
def test_whole_gpus_and_shares_of_one_are_jobs(gpus: float) -> None:
    assert Job(job_id="x", submit_s=0, num_gpus=gpus, duration_s=1).num_gpus == gpus


def test_a_cluster_without_gpus_or_with_a_name_twice_is_refused() -> None:
    with pytest.raises(RequestError, match="without GPUs"):
        SharedCluster(nodes=())
    with pytest.raises(RequestError, match="2 nodes with 1 different names"):
        SharedCluster(nodes=(Node(name="a", num_gpus=1), Node(name="a", num_gpus=1)))
    with pytest.raises(RequestError, match="quota 0"):
        SharedCluster.uniform(1, 1, quotas={"v": 0})
    with pytest.raises(RequestError, match="0 nodes of 8 GPUs"):
        SharedCluster.uniform(0, 8)


def test_doubling_a_cluster_doubles_all_of_it() -> None:
    twice = SharedCluster.uniform(3, 8, nodes_per_rack=2, quotas={"v": 5}).doubled()
    assert (twice.num_gpus, len(twice.nodes), twice.quotas) == (48, 6, {"v": 10})
    assert len({node.rack for node in twice.nodes}) == 4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Costs(restore_s=-1), "restore_s=-1"),
        (lambda: Factors(across_nodes=0), "across_nodes=0"),
        (lambda: Factors(scaling=2), "scaling=2"),
        (lambda: FailureLaw(kind="node", mtbf_s=0, repair_s=1), "mtbf_s=0"),
        (lambda: FailureLaw(kind="node", mtbf_s=1, repair_s=-1), "repair_s=-1"),
        (lambda: FailureEvent(time_s=-1, kind="node", target="n", repair_s=1), "time_s=-1"),
        (lambda: FailureEvent(time_s=1, kind="node", target="n", repair_s=math.nan), "repair_s=nan"),
    ],
)
def test_impossible_settings_are_refused(make: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        make()


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (FailureEvent(time_s=1, kind="node", target="nod0", repair_s=1), "did you mean node0"),
        (FailureEvent(time_s=1, kind="switch", target="s", repair_s=1), "unknown switch 's'"),
        (FailureEvent(time_s=1, kind="device", target="node0", gpu=9, repair_s=1), "GPU 9 of node0: it has 4"),
    ],
)
def test_a_failure_of_what_is_not_there_is_refused(event: FailureEvent, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Failures(events=(event,)).process(NodeIndex(SharedCluster.uniform(1, 4)))


def test_switches_fail_only_where_nodes_name_them() -> None:
    law = FailureLaw(kind="switch", mtbf_s=1, repair_s=1)
    with pytest.raises(RequestError, match="no node names its switch"):
        Failures(laws=(law,)).process(NodeIndex(SharedCluster.uniform(2, 2)))
    with pytest.raises(UnknownNameError, match="kind of failure"):
        FailureLaw(kind="rack", mtbf_s=1, repair_s=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [0.7, 1.0, 2.0])
def test_failures_come_as_often_as_the_law_says(shape: float) -> None:
    law = FailureLaw(kind="device", mtbf_s=1000, repair_s=100, shape=shape)
    process = Failures(laws=(law,)).process(NodeIndex(SharedCluster.uniform(10, 8)), seed=1)
    count, until = 0, 100_000
    while process.next_s < until:
        count += not process.pop()[1]
    assert count == pytest.approx(80 * until / (1000 + 100), rel=0.06)


def test_a_speed_of_zero_is_refused() -> None:
    class Broken:
        def speed(self, job: Job, placed: object) -> float:
            return 0.0

    with pytest.raises(RequestError, match="job x on node0 has speed 0"):
        simulate([Job(job_id="x", submit_s=0, num_gpus=1, duration_s=1)], SharedCluster.uniform(1, 1), speeds=Broken())
