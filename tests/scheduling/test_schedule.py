"""One call takes a log to figures, whatever the log and the cluster are given as."""

from __future__ import annotations

from pathlib import Path

import pytest

import traincast
from tests.scheduling.queues import job, queue
from traincast import Costs, FailureEvent, Failures, Policy, RequestError, SharedCluster, schedule
from traincast.scheduling import State, simulate
from traincast.scheduling.ask import CostSettings, ScheduleAsk
from traincast.scheduling.joblogs.read import load_jobs
from traincast.scheduling.schedule import load_shared_cluster, read_log, scaled

JOBS = Path(__file__).parents[2] / "examples" / "jobs.csv"


def test_a_file_a_trace_and_a_list_of_jobs_give_equal_schedules() -> None:
    log = load_jobs(JOBS)
    fates = [schedule(jobs, nodes=2, gpus_per_node=8, policy="easy").fates for jobs in (JOBS, str(JOBS), log)]
    fates.append(schedule(log.jobs, nodes=2, gpus_per_node=8, policy="easy").fates)
    assert all(found == fates[0] for found in fates)
    assert fates[0] == simulate(log.jobs, SharedCluster.uniform(2, 8), policy="easy").fates


def test_a_schedule_takes_what_the_command_line_is_asked() -> None:
    ask = ScheduleAsk(
        str(JOBS),
        nodes="2x8",
        policy="easy",
        quota=("a=4",),
        load="2",
        costs=CostSettings(checkpoint_cost="10s+1s/gpu"),
    )
    costs = Costs(checkpoint_s=10.0, checkpoint_s_per_gpu=1.0)
    alike = schedule(JOBS, nodes="2x8", policy="easy", quota={"a": 4.0}, costs=costs, load=2.0)
    assert schedule(ask).to_dict() == alike.to_dict()
    with pytest.raises(RequestError, match=r"the ask compares 2 policies: schedule\(\) runs one"):
        schedule(ScheduleAsk(str(JOBS), nodes="2x8", compare="fifo,easy"))
    assert ScheduleAsk.from_dict(ask.to_dict()) == ask
    with pytest.raises(RequestError, match="failures"):
        ScheduleAsk.from_dict({"jobs": str(JOBS), "nodes": "2x8", "failures": "often"})
    with pytest.raises(RequestError, match="describe the cluster in exactly one way"):
        schedule(JOBS)


def test_nodes_may_be_a_number_a_text_a_file_or_a_cluster(tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text("node,gpu_type,gpus\nnode0,,8\nnode1,,8\n", encoding="utf-8")
    asked: list[int | str | Path | SharedCluster] = ["2x8", path, SharedCluster.uniform(2, 8)]
    found = [schedule(JOBS, nodes=nodes).metrics for nodes in asked]
    assert all(metrics == schedule(JOBS, nodes=2, gpus_per_node=8).metrics for metrics in found)


def test_the_public_name_is_this_one() -> None:
    assert traincast.schedule is schedule


def test_racks_types_and_quotas_are_added_to_nodes_that_have_none() -> None:
    cluster, notes = load_shared_cluster("4x8", gpu_type="V100", nodes_per_rack=2, quotas={"a": 4})
    assert [(n.rack, n.switch, n.gpu_type) for n in cluster.nodes] == [
        *[("0", "0", "V100")] * 2,
        *[("1", "1", "V100")] * 2,
    ]
    assert cluster.quotas == {"a": 4}
    assert notes == ()
    assert load_shared_cluster(cluster, quotas={"b": 2})[0].quotas == {"a": 4, "b": 2}


def test_a_higher_load_moves_submissions_and_deadlines_together() -> None:
    jobs = [job(100, 1, 10, job_id="a"), job(300, 1, 10, job_id="b", deadline_s=350.0)]
    log = scaled(read_log(jobs), 2.0)
    assert log["submit_s"].tolist() == [100, 200]
    assert log["deadline_s"].tolist()[1] == 250


def test_jobs_as_columns_keep_all_that_they_have() -> None:
    jobs = [
        job(5, 0.5, 10, job_id="a", vc="x", priority=2.0, estimate_s=12.0, gpu_type="T4", user="u"),
        job(7, 2, 10, job_id="b", min_gpus=1, max_gpus=4, model="m", batch=8, strategy="dp=2", steps=3.0),
    ]
    assert list(read_log(jobs).jobs) == jobs


def test_jobs_that_are_described_take_longer_where_they_are_spread(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    model = '"gpt:layers=2,hidden=256,heads=4,vocab=1000,seq=64"'
    path.write_text(
        f"job_id,submit_s,num_gpus,duration_s,model,batch,steps\na,0,4,,{model},64,1000\n", encoding="utf-8"
    )
    packed, spread = (
        schedule(path, nodes="2x4:dgx-1-v100", placement=placement, estimates="predicted").metrics.mean_jct_s
        for placement in ("consolidated", "spread")
    )
    assert 0 < packed < spread


def test_notes_say_what_the_checks_found() -> None:
    found = schedule(queue((0, 1, 100), (1, 64, 100)), nodes="1x8", oversize="drop")
    assert len(found.jobs) == 1
    assert "1 job left out" in found.notes[0]
    assert "overload" in schedule(queue((0, 8, 100), (1, 8, 100)), nodes="1x8").notes[0]


def test_figures_of_virtual_clusters_and_of_all_are_in_one_document() -> None:
    found = schedule(JOBS, nodes="2x8", policy="sjf", estimates="noisy:0.3", seed=4)
    data = found.to_dict()
    assert (data["policy"], data["estimates"], data["seed"]) == ("sjf", "noisy:0.3", 4)
    assert data["mean_jct_s"] == found.metrics.mean_jct_s
    assert data["virtual_clusters"]["research"]["num_jobs"] == found.by_vc["research"].num_jobs


class Broken(Policy):
    """Fails on purpose."""

    def decide(self, state: State) -> None:
        raise KeyError("nobody")


class Idle(Policy):
    """Starts nothing."""

    def decide(self, state: State) -> None:
        pass


def test_a_policy_that_fails_or_starts_nothing_is_refused_in_a_line() -> None:
    with pytest.raises(RequestError, match=r"failed with KeyError: 'nobody' \(test_schedule.py, line \d+\)"):
        schedule(queue((0, 1, 1)), nodes="1x1", policy=Broken())
    with pytest.raises(RequestError, match="wait for ever"):
        schedule(queue((0, 1, 1)), nodes="1x1", policy=Idle())


def test_a_cluster_that_is_down_for_ever_is_refused() -> None:
    event = FailureEvent(time_s=0.5, kind="node", target="node0", repair_s=float("inf"))
    with pytest.raises(RequestError, match="wait for ever"):
        schedule(queue((0, 1, 1)), nodes="1x1", failures=Failures(events=(event,)))


@pytest.mark.parametrize(
    ("jobs", "more", "message"),
    [
        ([], {"nodes": "1x1"}, "no jobs"),
        ([job(0, 1, 1, job_id="a"), job(1, 1, 1, job_id="a")], {"nodes": "1x1"}, "its own job_id"),
        (queue((0, 1, 1)), {"nodes": 2}, "without a number of GPUs"),
        (queue((0, 1, 1)), {"nodes": "2x2", "gpus_per_node": 2}, "leave out"),
        (queue((0, 1, 1)), {"nodes": SharedCluster.uniform(1, 1), "gpus_per_node": 2}, "leave it out"),
        (queue((0, 1, 1)), {"nodes": "1x1", "load": float("nan")}, "load nan"),
        (queue((0, 1, 1)), {"nodes": "1x1", "estimates": "best"}, "best"),
        (queue((0, 1, 1)), {"nodes": "1x1", "nodes_per_rack": -1}, "rack"),
    ],
)
def test_impossible_arguments_are_refused(jobs: object, more: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        schedule(jobs, **more)  # type: ignore[call-overload]
