"""Before a run: jobs that can never start, unknown virtual clusters, GPU types, and overload."""

from __future__ import annotations

from pathlib import Path

import pytest

from traincast import JobLog, RequestError, SharedCluster
from traincast.scheduling import Node
from traincast.scheduling.check import check_fit
from traincast.scheduling.joblogs.read import load_jobs

HEADER = "job_id,submit_s,num_gpus,duration_s,vc,gpu_type,min_gpus,max_gpus\n"
SMALL = SharedCluster.uniform(2, 4)
MIXED = SharedCluster(
    nodes=(
        Node(name="n0", num_gpus=4, gpu_type="V100", vc="own"),
        Node(name="n1", num_gpus=8, gpu_type="V100"),
        Node(name="n2", num_gpus=16, gpu_type="T4"),
    ),
    quotas={"small": 2.0, "own": 4.0},
)


def log_of(folder: Path, *rows: str) -> JobLog:
    path = folder / "jobs.csv"
    path.write_text(HEADER + "".join(row + "\n" for row in rows), encoding="utf-8")
    return load_jobs(path)


def said(log: JobLog) -> list[str]:
    return [note.removeprefix(f"{log.path}: ") for note in log.notes]


def test_a_trace_that_fits_is_left_as_it_is(tmp_path: Path) -> None:
    log = log_of(tmp_path, "a,0,8,10,,,,", "b,100,0.5,10,,,,")
    checked = check_fit(log, SMALL)
    assert checked.jobs == log.jobs
    assert checked.notes == ()


def refusal(log: JobLog, cluster: SharedCluster) -> str:
    with pytest.raises(RequestError) as refused:
        check_fit(log, cluster)
    line = str(refused.value)
    assert "\n" not in line
    return line.removeprefix(f"{log.path}: ")


def test_jobs_larger_than_the_cluster_are_counted_and_the_first_named(tmp_path: Path) -> None:
    log = log_of(tmp_path, "a,0,8,10,v,,,", *(f"j{i},{i},{9 + i},10,v,,," for i in range(5)))
    assert refusal(log, SMALL) == (
        "5 of 6 jobs can never start: line 3 (job j0) asks for 9 GPUs of 8, line 4 (job j1) asks for 10 GPUs of 8, "
        "line 5 (job j2) asks for 11 GPUs of 8 and 2 more; the cluster has 2 nodes with 8 GPUs: add nodes, or have "
        "oversize jobs dropped or clipped"
    )


def test_jobs_larger_than_the_cluster_are_left_out_or_made_smaller_when_asked(tmp_path: Path) -> None:
    log = log_of(tmp_path, "a,0,8,1,,,,", "b,100,9,1,,,,", "c,200,20,1,,,16,32")
    dropped = check_fit(log, SMALL, oversize="drop")
    assert dropped["job_id"].tolist() == ["a"]
    assert said(dropped) == ["2 jobs left out: larger than what the cluster can give them"]
    clipped = check_fit(log, SMALL, oversize="clip")
    assert [(job.num_gpus, job.min_gpus, job.max_gpus) for job in clipped.jobs] == [(8, 0, 0), (8, 0, 0), (8, 0, 0)]
    assert said(clipped) == ["2 jobs made smaller, to what the cluster can give them; durations are as they were"]


def test_nothing_left_after_dropping_is_refused(tmp_path: Path) -> None:
    log = log_of(tmp_path, "a,0,9,10,,,,")
    with pytest.raises(RequestError, match=r"every job is larger than the cluster's 8 GPUs: add nodes$"):
        check_fit(log, SMALL, oversize="drop")


def test_an_elastic_job_fits_if_the_least_of_it_does(tmp_path: Path) -> None:
    log = log_of(tmp_path, "a,0,16,10,,,8,32")
    checked = check_fit(log, SMALL)
    assert checked.jobs[0].num_gpus == 16
    assert said(checked) == [
        "1 job can start only under an elastic policy: line 2 (job a) asks for 16 GPUs of 8, with min_gpus as its least"
    ]


@pytest.mark.parametrize(
    ("row", "line"),
    [
        ("a,0,9,10,,V100,,", "line 2 (job a) asks for 9 GPUs of type V100 of 8 for virtual cluster none"),
        ("a,0,17,10,,,,", "line 2 (job a) asks for 17 GPUs of 16 for virtual cluster none"),
        ("a,0,5,10,own,,,", "line 2 (job a) asks for 5 GPUs of 4 for virtual cluster own"),
        ("a,0,3,10,small,,,", "line 2 (job a) asks for 3 GPUs of 2 for virtual cluster small"),
    ],
    ids=["type", "types are not mixed", "owned nodes", "quota"],
)
def test_a_job_must_fit_its_gpu_type_its_nodes_and_its_quota(row: str, line: str, tmp_path: Path) -> None:
    assert refusal(log_of(tmp_path, row), MIXED) == (
        f"1 of 1 job can never start: {line}; the cluster has 3 nodes with 28 GPUs (T4, V100): add nodes, or have "
        "oversize jobs dropped or clipped"
    )


def test_a_gpu_type_that_no_node_has_is_refused_unless_any_will_do(tmp_path: Path) -> None:
    log = log_of(tmp_path, "a,0,1,10,,H100,,")
    assert refusal(log, MIXED) == (
        "1 of 1 job can never start: line 2 (job a) asks for 1 GPU of type H100 of 0 for virtual cluster none; the "
        "cluster has 3 nodes with 28 GPUs (T4, V100): give it nodes for them, or any_gpu"
    )
    assert check_fit(log, MIXED, any_gpu=True).jobs[0].gpu_type == ""


def test_gpu_types_are_passed_over_where_nodes_name_none(tmp_path: Path) -> None:
    checked = check_fit(log_of(tmp_path, "a,0,1,10,,H100,,"), SMALL)
    assert checked.jobs[0].gpu_type == ""
    assert said(checked) == ["GPU types that jobs ask for are passed over: the nodes name none"]


def test_of_several_gpu_types_the_one_with_the_most_gpus_is_taken(tmp_path: Path) -> None:
    checked = check_fit(log_of(tmp_path, "a,0,1,10,,V100|T4|H100,,", "b,90,1,10,,V100,,"), MIXED)
    assert checked["gpu_type"].tolist() == ["T4", "V100"]
    assert said(checked) == ["1 job that may run on several GPU types kept to the one with the most GPUs"]


def test_virtual_clusters_that_the_cluster_does_not_know_are_noted(tmp_path: Path) -> None:
    checked = check_fit(log_of(tmp_path, "a,0,1,10,other,,,", "b,90,1,10,own,,,", "c,90,1,10,,,,"), MIXED)
    assert said(checked) == [
        "1 job of virtual clusters that the cluster does not know, 'other' for one: they have no quota, and share the "
        "nodes without owner; known are own, small"
    ]


def test_a_virtual_cluster_without_any_node_is_refused(tmp_path: Path) -> None:
    owned = SharedCluster(nodes=(Node(name="n0", num_gpus=4, vc="own"),))
    assert refusal(log_of(tmp_path, "a,0,1,10,other,,,"), owned).startswith(
        "1 of 1 job can never start: line 2 (job a) asks for 1 GPU of 0 for virtual cluster other; "
    )


def test_overload_is_said_with_its_figure(tmp_path: Path) -> None:
    log = log_of(tmp_path, "a,0,8,100,,,,", "b,100,4,50,,,,")
    assert said(check_fit(log, SMALL)) == [
        "overload: jobs ask for 10.0 GPUs on average between the first and the last submission, the cluster has 8 "
        "(125%): the queue grows until submissions end; add nodes, or take a part of the log"
    ]
    assert check_fit(log, SharedCluster.uniform(1, 10)).notes == ()


def test_overload_of_a_virtual_cluster_is_said_too(tmp_path: Path) -> None:
    log = log_of(tmp_path, "a,0,2,500,small,,,", "b,100,1,50,small,,,")
    assert said(check_fit(log, MIXED)) == [
        "overload: 1 virtual cluster is asked for more than the quota: small (10.5 of 2 GPUs); raise quotas, or take a "
        "part of the log"
    ]
