"""Job times from model, strategy and placement."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tests.scheduling.described import MLP, cluster, log, on
from traincast import Job, RequestError, UnknownNameError, predict
from traincast.cluster import find_device, find_node
from traincast.cluster.topology import part_of_node
from traincast.scheduling import simulate
from traincast.scheduling.estimates.forecasts import ForecastSpeeds, facts_of, forecast_durations
from traincast.scheduling.sharing.step_times import NOWHERE, StepTimes, What, Where


def job(num_gpus: float, **more: object) -> Job:
    """A job that trains the small model."""
    fields = {"job_id": "a", "submit_s": 0.0, "duration_s": 100.0, "model": MLP, "batch": 512, **more}
    return Job(num_gpus=num_gpus, **fields)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def speeds() -> ForecastSpeeds:
    """Forecasts on a cluster of two types, shared by tests that do not count them."""
    return ForecastSpeeds(StepTimes(cluster("4x8:V100+2x8:A100")))


def test_a_job_on_its_reference_placement_runs_at_speed_1(speeds: ForecastSpeeds) -> None:
    assert speeds.speed(job(4, gpu_type="V100"), on((4,))) == 1.0
    assert speeds.speed(job(16, gpu_type="V100"), on((8, 8))) == 1.0


def test_a_job_is_slower_the_more_nodes_it_is_spread_over(speeds: ForecastSpeeds) -> None:
    found = [speeds.speed(job(4, gpu_type="V100"), on(counts)) for counts in ((4,), (2, 2), (1, 1, 1, 1))]
    assert found[0] > found[1] >= found[2] > 0


def test_gpus_spread_unevenly_count_as_spread_over_the_next_number_that_divides(speeds: ForecastSpeeds) -> None:
    asked = job(8, gpu_type="V100")
    assert speeds.speed(asked, on((4, 3, 1))) == speeds.speed(asked, on((2, 2, 2, 2)))
    assert speeds.speed(asked, on((7, 1))) == speeds.speed(asked, on((4, 4)))


def test_a_v100_is_slower_than_an_a100(speeds: ForecastSpeeds) -> None:
    anywhere = job(2)
    assert speeds.speed(anywhere, on((2,), "V100")) == 1.0
    assert speeds.speed(anywhere, on((2,), "A100")) > 1.0
    assert speeds.speed(job(2, gpu_type="A100"), on((2,), "A100")) == 1.0


def test_several_racks_are_slower_where_the_network_between_them_is_thin() -> None:
    steps = StepTimes(cluster("4x8:V100"), oversubscription=8.0)
    near = steps.step_s(What(MLP, 512), Where("V100", 8, 4, 4, 1))
    assert near < steps.step_s(What(MLP, 512), Where("V100", 8, 4, 4, 2))
    assert steps.where(on((1, 1), racks=("r0", "r1"))).num_racks == 2


def test_half_a_gpu_is_half_as_fast(speeds: ForecastSpeeds) -> None:
    share, whole = job(0.5, gpu_type="V100"), job(1, gpu_type="V100")
    reference = [speeds.steps.reference(ask).step_s for ask in (facts_of(share), facts_of(whole))]
    assert reference[0] == 2 * reference[1]
    assert speeds.speed(share, on((1,))) == 1.0


def test_durations_are_steps_times_the_step_that_predict_gives(tmp_path: Path) -> None:
    asked = log(tmp_path, f'a,0,4,"{MLP}",512,1000', f'b,0,1,"{MLP}",64,10')
    found = forecast_durations(asked, cluster("2x8:V100"))
    node = find_node(find_device("V100"), 8)
    expected = [
        predict(MLP, cluster=part_of_node(node, node.device, gpus), global_batch=batch).report.step_s * count
        for gpus, batch, count in ((4, 512, 1000), (1, 64, 10))
    ]
    assert [one.duration_s for one in found.jobs] == pytest.approx(expected, rel=1e-12)
    assert "2 jobs without duration_s forecast" in found.notes[-1]


def test_a_duration_that_is_given_stays(tmp_path: Path) -> None:
    columns = "job_id,submit_s,num_gpus,duration_s,model,batch,steps"
    asked = log(tmp_path, "a,0,1,77,no-such-model,8,5", columns=columns)
    assert forecast_durations(asked, cluster("1x8:V100")) is asked


def test_a_strategy_that_is_given_is_used(tmp_path: Path) -> None:
    model = "gpt:layers=2,hidden=256,heads=4,vocab=1000,seq=64"
    columns = "job_id;submit_s;num_gpus;model;batch;steps;strategy".replace(";", ",")
    rows = (f'a,0,4,"{model}",16,10,"dp=2,tp=2"', f'b,0,4,"{model}",16,10,')
    found = forecast_durations(log(tmp_path, *rows, columns=columns), cluster("1x8:A100"))
    assert found.jobs[0].duration_s != found.jobs[1].duration_s


def test_a_job_that_does_not_fit_in_memory_is_refused_in_one_line(tmp_path: Path) -> None:
    big = "gpt:layers=2,hidden=16384,heads=16,vocab=1000,seq=64"
    asked = log(tmp_path, f'a,0,1,"{MLP}",8,10', f'b,1,1,"{big}",1,10')
    with pytest.raises(RequestError, match=r"line 3 \(job b\): gpt.* does not fit in memory: a GPU needs") as error:
        forecast_durations(asked, cluster("1x8:V100"))
    assert "\n" not in str(error.value)
    assert "1 of 2 jobs cannot be forecast" in str(error.value)


def test_a_job_that_fits_only_on_some_gpus_is_bound_to_these(tmp_path: Path) -> None:
    big = "gpt:layers=4,hidden=12288,heads=16,vocab=1000,seq=64"  # too large for a V100 even with states on the host
    both = cluster("2x1:V100+2x1:A100")
    found = forecast_durations(log(tmp_path, f'a,0,1,"{big}",1,10'), both)
    assert found["gpu_type"].tolist() == ["A100"]
    assert "bound to the GPU type on which they can run" in found.notes[-1]
    free = job(1, model=big, batch=1)
    with pytest.raises(RequestError, match="may be given V100, on which it cannot run: set its gpu_type to A100"):
        ForecastSpeeds(StepTimes(both)).refuse_impossible([free])


def test_a_batch_that_does_not_divide_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot run"):
        forecast_durations(log(tmp_path, f'a,0,7,"{MLP}",16,10'), cluster("1x8:V100"))


@pytest.mark.parametrize(
    ("row", "nodes", "said"),
    [
        ("a,0,1,no-such-model,8,10", "1x8:V100", "unknown model 'no-such-model'"),
        (f'a,0,1,"{MLP}",,10', "1x8:V100", "has no batch: give one"),
        (f'a,0,1,"{MLP}",8,10', "1x8", "nodes state no GPU type"),
        (f'a,0,1,"{MLP}",8,10', "1x8:abacus", "unknown device 'abacus'"),
        (f'a,0,16,"{MLP}",16,10', "1x8:V100", "asks for 16 GPUs"),
    ],
)
def test_what_cannot_be_forecast_is_refused_in_one_line(tmp_path: Path, row: str, nodes: str, said: str) -> None:
    with pytest.raises(RequestError, match=said) as error:
        forecast_durations(log(tmp_path, row), cluster(nodes))
    assert "\n" not in str(error.value)


def test_each_distinct_case_is_forecast_once(tmp_path: Path) -> None:
    rows = [f'{at},{at},{gpus},"{MLP}",512,{at + 1}' for at, gpus in enumerate([1, 2, 4, 2, 1, 4, 4, 2])]
    there = cluster("2x4:V100")
    steps = StepTimes(there)
    told: list[tuple[int, int]] = []
    found = forecast_durations(log(tmp_path, *rows), there, steps=steps, progress=lambda *numbers: told.append(numbers))
    assert steps.num_forecasts == 3
    assert told == [(1, 3), (2, 3), (3, 3)]
    speeds = ForecastSpeeds(steps)
    first = simulate(found.jobs, there, policy="fifo", placement="spread", speeds=speeds)
    count = steps.num_forecasts
    again = simulate(found.jobs, there, policy="fifo", placement="spread", speeds=speeds)
    assert steps.num_forecasts == count > 3
    assert [fate.end_s for fate in first.fates] == [fate.end_s for fate in again.fates]


def test_what_was_prepared_is_not_forecast_again_elsewhere() -> None:
    there = cluster("2x4:V100")
    speeds = ForecastSpeeds(StepTimes(there))
    told: list[int] = []
    speeds.prepare([job(4)], progress=lambda done, total: told.append(total - done))
    assert told[-1] == 0
    copy: ForecastSpeeds = pickle.loads(pickle.dumps(speeds))
    before = copy.steps.num_forecasts
    assert copy.speed(job(4), on((2, 2), size=4)) == speeds.speed(job(4), on((2, 2), size=4)) < 1
    assert copy.steps.num_forecasts == before


def test_spreading_a_queue_costs_time_that_consolidating_saves(tmp_path: Path) -> None:
    there = cluster("2x4:V100")
    steps = StepTimes(there)
    asked = forecast_durations(log(tmp_path, f'a,0,4,"{MLP}",512,1000'), there, steps=steps)
    ends = [
        simulate(asked.jobs, there, placement=placement, speeds=ForecastSpeeds(steps)).fates[0].end_s
        for placement in ("consolidated", "spread")
    ]
    assert ends[0] == pytest.approx(asked.jobs[0].duration_s)
    assert ends[1] > ends[0]


def test_jobs_without_a_description_run_as_others_do(speeds: ForecastSpeeds) -> None:
    assert speeds.speed(job(2, model=""), on((1, 1))) == 1.0


def test_an_elastic_job_is_faster_on_more_gpus() -> None:
    steps = StepTimes(cluster("2x8:A100"))
    elastic = job(2, model="resnet20-cifar", batch=2048, min_gpus=1, max_gpus=8)
    speeds = ForecastSpeeds(steps)
    found = [speeds.speed(elastic, on((gpus,), "A100")) for gpus in range(1, 9)]
    assert found[1] == 1.0
    assert found == sorted(found)
    what = What("resnet20-cifar", 2048, "", is_elastic=True)
    two_s, eight_s = (steps.step_s(what, Where("A100", 8, gpus, 1)) for gpus in (2, 8))
    assert found[7] / found[1] == pytest.approx(two_s / eight_s)


def test_an_elastic_job_has_no_use_for_more_gpus_than_samples() -> None:
    steps = StepTimes(cluster("1x8:A100"))
    what = What(MLP, 4, "", is_elastic=True)
    assert steps.step_s(what, Where("A100", 8, 8, 1)) == steps.step_s(what, Where("A100", 8, 4, 1)) < NOWHERE


def test_replicas_of_an_elastic_job_keep_their_strategy() -> None:
    steps = StepTimes(cluster("1x8:A100"))
    model = "gpt:layers=2,hidden=256,heads=4,vocab=1000,seq=64"
    what = What(model, 16, "dp=1,tp=2", is_elastic=True)
    times = [steps.step_s(what, Where("A100", 8, gpus, 1)) for gpus in (1, 2, 3, 4)]
    assert times[0] == NOWHERE
    assert times[1] == times[2] < NOWHERE
    assert times[3] < NOWHERE


def test_elastic_jobs_run_under_the_elastic_policy() -> None:
    there = cluster("1x8:A100")
    queue = [
        job(2, job_id=name, model="resnet20-cifar", batch=2048, min_gpus=1, max_gpus=8, duration_s=1000.0)
        for name in ("a", "b")
    ]
    outcome = simulate(queue, there, policy="elastic", speeds=ForecastSpeeds(StepTimes(there)))
    assert max(fate.end_s for fate in outcome.fates) < 1000.0


def test_hardware_says_what_a_gpu_type_stands_for() -> None:
    there = cluster("1x8:fast")
    with pytest.raises(UnknownNameError, match="unknown device 'fast'"):
        StepTimes(there).step_s(What(MLP, 64), Where("fast", 8, 2, 1))
    named = StepTimes(there, hardware={"fast": "dgx-h100"}).step_s(What(MLP, 64), Where("fast", 8, 2, 1))
    assert named == StepTimes(cluster("1x8:H100")).step_s(What(MLP, 64), Where("H100", 8, 2, 1))


def test_an_oversubscription_below_1_is_refused() -> None:
    with pytest.raises(RequestError, match=r"oversubscription=0.5: expected a number from 1"):
        StepTimes(cluster("1x8:V100"), oversubscription=0.5)
