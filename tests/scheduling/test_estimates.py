"""What the scheduler believes, while the simulation runs on the truth."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.scheduling import forecast_errors

from tests.scheduling.described import MLP, cluster, log
from traincast import FileFormatError, JobLog, RequestError, UnknownNameError
from traincast.scheduling import Exact, Given, Noisy, User, simulate
from traincast.scheduling.estimates.forecasts import forecast_durations
from traincast.scheduling.estimates.sources import load_estimates, predicted_seconds
from traincast.scheduling.estimates.stand_ins import load_stand_ins, stand_in_names
from traincast.scheduling.sharing.step_times import StepTimes

COLUMNS = "job_id,submit_s,num_gpus,duration_s,model,batch,steps"
THERE = cluster("1x8:V100")


@pytest.fixture(scope="module")
def steps() -> StepTimes:
    """Forecasts that tests share."""
    return StepTimes(THERE)


def scaled(folder: Path, steps: StepTimes, factor: float) -> JobLog:
    """Jobs of one GPU that truly take ``factor`` times as long as is forecast."""
    rows = [f'{at},{at},1,"{MLP}",512,{count}' for at, count in enumerate([9000, 4000, 7000, 2000, 8000, 1000])]
    found = forecast_durations(log(folder, *rows), THERE, steps=steps)
    return found.with_columns(numbers={"duration_s": found.numbers["duration_s"] * factor})


def test_estimates_have_their_names(tmp_path: Path, steps: StepTimes) -> None:
    jobs = scaled(tmp_path, steps, 1.0)
    assert isinstance(load_estimates("exact", jobs, THERE), Exact)
    assert isinstance(load_estimates("user", jobs, THERE), User)
    assert load_estimates("noisy:0.3", jobs, THERE, seed=4) == Noisy(0.3, 4)
    assert isinstance(load_estimates("predicted", jobs, THERE, steps=steps), Given)


@pytest.mark.parametrize("text", ["", "Predicted", "guess", "noisy", "noisy:x", "exact:1"])
def test_other_names_are_refused_in_one_line(tmp_path: Path, steps: StepTimes, text: str) -> None:
    with pytest.raises(RequestError, match="estimates") as error:
        load_estimates(text, scaled(tmp_path, steps, 1.0), THERE)
    assert "\n" not in str(error.value)


def test_forecasts_are_believed_and_the_truth_happens(tmp_path: Path, steps: StepTimes) -> None:
    jobs = scaled(tmp_path, steps, 3.0)
    believed = load_estimates("predicted", jobs, THERE, steps=steps)
    for one in jobs.jobs:
        assert believed.seconds(one) == pytest.approx(one.duration_s / 3)
    outcome = simulate(jobs.jobs, THERE, policy="sjf", beliefs=believed)
    assert outcome.fates[0].end_s - outcome.fates[0].start_s == pytest.approx(jobs.jobs[0].duration_s)


@pytest.mark.parametrize("policy", ["sjf", "sjf-fit", "qssf"])
def test_forecasts_in_proportion_to_the_truth_give_the_same_schedule(
    tmp_path: Path, steps: StepTimes, policy: str
) -> None:
    jobs = scaled(tmp_path, steps, 3.0)
    believed = load_estimates("predicted", jobs, THERE, steps=steps)
    one_gpu = cluster("1x1:V100")
    runs = [simulate(jobs.jobs, one_gpu, policy=policy, beliefs=given) for given in (None, believed)]
    assert [fate.start_s for fate in runs[0].fates] == [fate.start_s for fate in runs[1].fates]


def test_a_history_teaches_the_scale_of_each_model(tmp_path: Path, steps: StepTimes) -> None:
    history = scaled(tmp_path, steps, 3.0)
    jobs = scaled(tmp_path, steps, 3.0)
    found = predicted_seconds(jobs, THERE, steps=steps, history=history)
    assert found == pytest.approx(jobs.numbers["duration_s"])
    other = jobs.with_columns(texts={"model": jobs.texts["model"].copy()})
    other.texts["model"][:] = "resnet20-cifar"
    plain = predicted_seconds(other, THERE, steps=steps)
    assert predicted_seconds(other, THERE, steps=steps, history=history) == pytest.approx(3 * plain)


def test_a_history_without_durations_is_refused(tmp_path: Path, steps: StepTimes) -> None:
    jobs = log(tmp_path, f'a,0,1,"{MLP}",512,10')
    with pytest.raises(RequestError, match="no job with a duration to learn from"):
        predicted_seconds(jobs, THERE, steps=steps, history=jobs)


def test_jobs_without_a_description_cannot_be_predicted(tmp_path: Path) -> None:
    jobs = log(tmp_path, f'a,0,1,9,"{MLP}",8,5', "b,0,1,9,,,", columns=COLUMNS)
    with pytest.raises(RequestError, match=r"1 job of 2 cannot be forecast, line 3 \(job b\) first"):
        load_estimates("predicted", jobs, THERE)


def test_errors_are_told_for_each_model(tmp_path: Path, steps: StepTimes) -> None:
    jobs = scaled(tmp_path, steps, 2.0)
    one, together = forecast_errors(jobs, load_estimates("predicted", jobs, THERE, steps=steps))
    assert (one.model, together.model) == (MLP, "all")
    assert one.num_jobs == 6
    assert one.median_ratio == pytest.approx(0.5)
    assert one.mape == pytest.approx(0.5)


def test_stand_ins_turn_a_batch_per_gpu_into_one_of_all(tmp_path: Path) -> None:
    jobs = log(tmp_path, "a,0,4,9,ResNet-50,16,1000", "b,0,1,9,CycleGAN,,10", columns=COLUMNS)
    found = load_stand_ins("gavel").described(jobs)
    assert found["model"].tolist() == ["resnet50", "unet:channels=3,classes=3,padded=true,norm=true,resolution=256"]
    assert found["batch"].tolist() == [64, 7]
    assert found["steps"].tolist() == [250, 10]


def test_a_trace_is_predicted_by_stand_ins(tmp_path: Path) -> None:
    jobs = log(tmp_path, "a,0,1,9,ResNet-50,16,100", "b,0,1,9,ResNet-50,8,100", columns=COLUMNS)
    found = load_estimates("predicted:gavel", jobs, THERE)
    fp32 = StepTimes(THERE, precision="fp32", runtime="pytorch-1")
    assert found == load_estimates("predicted:gavel", jobs, THERE, steps=fp32)
    assert 0 < found.seconds(jobs.jobs[0]) < 9


OWN = """
batch_per_gpu = true
[models.slow]
model = "resnet20-cifar"
host_sample_s = 0.01
[models.plain]
model = "resnet20-cifar"
[models.game]
model = "resnet20-cifar"
refused = "a game takes the time"
"""


def test_samples_that_the_training_process_prepares_add_their_time(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(OWN)
    jobs = log(tmp_path, "a,0,1,9,slow,8,100", "b,0,1,9,plain,8,100", "c,0,2,9,slow,8,100", columns=COLUMNS)
    found = load_stand_ins(str(tmp_path / "own.toml")).host_seconds(jobs)
    assert found.tolist() == pytest.approx([8.0, 0.0, 4.0])
    one, other, _ = predicted_seconds(jobs, THERE, stand_ins=load_stand_ins(str(tmp_path / "own.toml"))).tolist()
    assert one == pytest.approx(other + 8.0)


def test_jobs_whose_time_is_not_the_device_s_count_as_typical_and_are_named(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text(OWN)
    lines = ("a,0,1,9,slow,8,100", "b,0,1,9,game,8,900", "c,0,1,9,slow,8,200", "d,0,1,9,slow,8,300")
    jobs = log(tmp_path, *lines, columns=COLUMNS)
    found = load_estimates(f"predicted:{own}", jobs, THERE)
    assert isinstance(found, Given)
    assert found.by_job["b"] == found.by_job["c"]
    assert found.notes == ("1 job of game not forecast, and taken as typical: a game takes the time",)
    only = log(tmp_path, "b,0,1,9,game,8,900", columns=COLUMNS)
    with pytest.raises(RequestError, match="no job can be forecast: a game takes the time"):
        load_estimates(f"predicted:{own}", only, THERE)


def test_the_past_of_a_model_replaces_a_forecast_that_is_refused(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text(OWN)
    jobs = log(tmp_path, "a,0,1,9,plain,8,100", "b,0,1,9,game,8,200", columns=COLUMNS)
    past = log(tmp_path, "p,0,1,50,game,8,100", "q,0,1,7,plain,8,100", columns=COLUMNS)
    found = load_estimates(f"predicted:{own}", jobs, THERE, history=past)
    assert isinstance(found, Given)
    assert found.by_job == pytest.approx({"a": 7.0, "b": 100.0})
    assert found.notes == ()


def test_models_of_the_stand_ins_are_in_the_zoo() -> None:
    from traincast.graph import zoo

    for name in stand_in_names():
        for one in load_stand_ins(name).models.values():
            assert zoo.card(one.model).family in zoo.FAMILIES
            assert one.note


def test_a_model_without_a_stand_in_is_refused(tmp_path: Path) -> None:
    jobs = log(tmp_path, "a,0,1,9,ResNet-50,16,10", "b,0,1,9,GPT-9,16,10", columns=COLUMNS)
    with pytest.raises(FileFormatError, match=r"line 3 \(job b\) has the model 'GPT-9'"):
        load_estimates("predicted:gavel", jobs, THERE)
    with pytest.raises(UnknownNameError, match="unknown table of stand-ins 'nobody'"):
        load_estimates("predicted:nobody", jobs, THERE)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = ", "is not valid TOML"),
        ("about = 'a'", "has no stand-ins"),
        ("[models.a]\nnote = 'b'", "model is missing: name a model of the zoo"),
        ("[models.a]\nmodel = 'b'\nbatch = 'c'", "batch is 'c': expected a whole number"),
        ("[models.a]\nmodel = 'b'\nlikeness = 'close'", "likeness is 'close': expected one of same, alike, flops"),
        ("batch_per_gpu = 1\n[models.a]\nmodel = 'b'", "batch_per_gpu is 1: expected true or false"),
    ],
)
def test_a_wrong_table_of_stand_ins_is_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "own.toml"
    path.write_text(text)
    with pytest.raises(FileFormatError, match=said):
        load_stand_ins(str(path))
    with pytest.raises(FileFormatError, match="does not exist"):
        load_stand_ins(str(tmp_path / "none.toml"))
