"""A handful of runs: offsets that are shrunk in closed form, and their hand-over to fitted parameters."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from benchmarks.few import helped, role
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.calibrating.conftest import MakeRuns
from traincast import Calibration, load_cluster
from traincast.calibrating.few import CLUSTER, ENOUGH, MODEL, NEAR, NOISE, ONLY_FEW, offsets, share_of_few, with_few
from traincast.calibrating.procedure import calibrate_runs
from traincast.calibrating.runs import MeasuredRun
from traincast.calibrating.study import forecast_by
from traincast.cluster import Few, write_calibrated
from traincast.forecast import forecast
from traincast.report.outlook import StepTraits, expect

PLAIN = Calibration()
ENDS = (0.7, 1.9)


def timed(run: MeasuredRun, error: float) -> MeasuredRun:
    """The same run, measured to take ``exp(error)`` times its uncalibrated forecast."""
    return replace(run, measured=replace(run.measured, seconds=run.simulated(PLAIN) * math.exp(error)))


def width(calibration: Calibration, look: StepTraits) -> float:
    found = expect(calibration, look, usual_s=1.0, stalled_s=1.0, runtime="megatron-deepspeed", uncalibrated=ENDS)
    return math.log(found.high_s / found.low_s)


def test_without_runs_nothing_changes(plain_runs: list[MeasuredRun]) -> None:
    calibration = with_few(PLAIN, offsets([]), 1.0)
    assert calibration.few == Few(share=1.0, offset=1.0, doubt=1.0)
    request = plain_runs[3].measured.request
    before = forecast(request).report
    after = forecast(replace(request, cluster=replace(request.cluster, calibration=calibration))).report
    for name in ("step_s", "low_s", "high_s"):
        assert getattr(after, name) == pytest.approx(getattr(before, name), rel=1e-9)


@pytest.mark.parametrize("count", [1, 2, 3, 10, 50])
@pytest.mark.parametrize("error", [-0.3, 0.05, 0.4])
def test_the_offset_of_identical_runs_is_their_shrunk_mean(
    plain_runs: list[MeasuredRun], count: int, error: float
) -> None:
    run = timed(plain_runs[0], error)
    found = offsets([run] * count)
    shared = CLUSTER**2 + MODEL**2 + NEAR**2
    assert found.at(run) == pytest.approx(error * count * shared / (count * shared + NOISE**2), rel=1e-6)
    assert found.cluster / found.at(run) == pytest.approx(CLUSTER**2 / shared, rel=1e-6)


def test_a_run_far_beyond_all_errors_counts_as_one_at_the_limit(plain_runs: list[MeasuredRun]) -> None:
    found = [offsets([timed(plain_runs[0], error)]).cluster for error in (0.5, 0.9, 4.0)]
    assert found[1:] == pytest.approx([found[0]] * 2, rel=1e-12)


@pytest.mark.parametrize("count", [1, 3, 12, 30])
def test_exact_forecasts_leave_forecasts_as_they_are(make_runs: MakeRuns, count: int) -> None:
    runs = make_runs(PLAIN)
    found = offsets(runs[:count])
    assert found.cluster == pytest.approx(0.0, abs=1e-12)
    assert [found.at(run) for run in runs] == pytest.approx([0.0] * len(runs), abs=1e-12)


def test_another_model_gets_the_part_of_the_cluster_alone(plain_runs: list[MeasuredRun]) -> None:
    run = timed(plain_runs[0], 0.2)
    other = replace(run, look=replace(run.look, model="another", features=tuple(f + 9 for f in run.look.features)))
    found = offsets([run])
    assert found.at(other) == pytest.approx(0.2 * CLUSTER**2 / (CLUSTER**2 + MODEL**2 + NEAR**2 + NOISE**2), rel=1e-6)
    calibration = with_few(PLAIN, found, 1.0)
    assert calibration.factor_of("another", "fp16") == pytest.approx(math.exp(found.cluster), rel=1e-9)
    assert forecast_by(calibration, run) == pytest.approx(run.simulated(PLAIN) * math.exp(found.at(run)), rel=1e-4)


@settings(deadline=None, derandomize=True, max_examples=25)
@given(order=st.permutations(range(30)), errors=st.lists(st.floats(-0.6, 0.6), min_size=30, max_size=30))
def test_more_runs_never_widen_the_interval(
    plain_runs: list[MeasuredRun], order: list[int], errors: list[float]
) -> None:
    drawn = [timed(plain_runs[i], errors[i]) for i in order]
    looks = [plain_runs[0].look, plain_runs[-1].look, replace(plain_runs[5].look, model="another")]
    before = [math.log(ENDS[1] / ENDS[0])] * len(looks)
    for count in range(1, ONLY_FEW + 1):
        calibration = with_few(PLAIN, offsets(drawn[:count]), share_of_few(count))
        after = [width(calibration, look) for look in looks]
        assert all(new <= old + 1e-9 for new, old in zip(after, before, strict=True))
        before = after
    doubts = [offsets(drawn[:count]).cluster_doubt for count in range(31)]
    assert all(new <= old + 1e-12 for old, new in pairwise(doubts))


def test_what_few_runs_leave_open_is_a_cause_of_doubt(plain_runs: list[MeasuredRun]) -> None:
    calibration = with_few(Calibration(low=0.9, high=1.2), offsets(plain_runs[:5]), 0.5)
    found = expect(calibration, plain_runs[0].look, usual_s=1.0, stalled_s=1.0, runtime="pytorch", uncalibrated=ENDS)
    assert sum(found.doubt.values()) == pytest.approx(1.0)
    kept = calibration.doubt_of(plain_runs[0].look.model, plain_runs[0].look.precision)
    added, own = 0.5 * kept * math.log(ENDS[1] / ENDS[0]), 0.5 * math.log(1.2 / 0.9)
    assert found.doubt["between_sources"] == pytest.approx(added / (added + own))


def test_offsets_hand_over_to_parameters_smoothly() -> None:
    shares = [share_of_few(n) for n in range(81)]
    assert shares[: ONLY_FEW + 1] == [1.0] * (ONLY_FEW + 1)
    assert shares[ENOUGH:] == [0.0] * (81 - ENOUGH)
    assert share_of_few(13) == pytest.approx(0.5, abs=0.02)
    steps = np.diff(shares)
    assert (steps <= 0.0).all() and steps.min() > -0.12


def test_between_few_and_many_runs_a_forecast_is_between_theirs(make_runs: MakeRuns) -> None:
    many = Calibration(gemm=1.2, memory=1.1, intra=1.4, step_s=1e-3, jitter=0.01, low=0.9, high=1.2)
    runs = make_runs(replace(PLAIN, gemm=1.3, kernels=1.2))
    found = offsets(runs[:6])
    assert with_few(many, found, 0.0) is many
    for run in runs:
        one, other = (math.log(forecast_by(with_few(many, found, share), run)) for share in (1.0, 0.0))
        for share in (0.25, 0.5, 0.9):
            middle = math.log(forecast_by(with_few(many, found, share), run))
            assert middle == pytest.approx(share * one + (1.0 - share) * other, abs=0.02)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_cluster_that_is_slow_throughout_is_forecast_better_after_one_run(make_runs: MakeRuns, count: int) -> None:
    runs = [timed(run, 0.25) for run in make_runs(PLAIN)]
    made = calibrate_runs(runs[:count], curve=())
    assert made.moves == () and made.helped
    assert made.calibration.few is not None and made.calibration.few.share == 1.0
    errors = [abs(forecast_by(made.calibration, run) / run.seconds - 1.0) for run in runs]
    assert np.mean(errors) < 0.8 * (1.0 - math.exp(-0.25))


def test_a_cluster_file_keeps_what_few_runs_said(plain_runs: list[MeasuredRun], tmp_path: Path) -> None:
    calibration = calibrate_runs([timed(plain_runs[0], 0.2), timed(plain_runs[4], 0.1)], curve=()).calibration
    write_calibrated(tmp_path / "mine.toml", extends="dgx-a100", calibration=calibration)
    again = load_cluster(str(tmp_path / "mine.toml")).calibration
    assert again is not None and again.few is not None and calibration.few is not None
    assert again.few.offset == pytest.approx(calibration.few.offset, rel=1e-4)
    assert again.few.doubt == pytest.approx(calibration.few.doubt, rel=1e-4)
    assert [s.doubt for s in again.seen] == pytest.approx([s.doubt for s in calibration.seen], rel=1e-4)
    assert forecast_by(again, plain_runs[0]) == pytest.approx(forecast_by(calibration, plain_runs[0]), rel=1e-4)


def test_the_benchmark_shows_what_own_runs_gain(make_runs: MakeRuns) -> None:
    runs = [timed(run, 0.25) for run in make_runs(PLAIN)][:20]
    error, ratios = helped(runs, draws=3, fits=1)
    assert error == pytest.approx(1.0 - math.exp(-0.25), rel=1e-6)
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[0] < 0.8 and ratios[-1] < 0.3
    assert (role("llm-foundry"), role("internevo"), role("nobody")) == ("guide", "judge", "judge")


@pytest.mark.parametrize("error", [-0.4, 0.1, 0.5, 2.0])
def test_one_run_moves_no_forecast_by_more_than_its_share(plain_runs: list[MeasuredRun], error: float) -> None:
    shared = CLUSTER**2 + MODEL**2 + NEAR**2
    most = min(abs(error), 0.5) * shared / (shared + NOISE**2)
    for seen in plain_runs[:5]:
        found = offsets([timed(seen, error)])
        moved = [math.copysign(1.0, error) * found.at(run) for run in plain_runs]
        assert all(0.0 <= each <= most + 1e-9 for each in moved)
        assert max(moved) == pytest.approx(most, rel=1e-6)
