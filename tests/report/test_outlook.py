"""What is expected of a real run: the interval grows away from what was measured, and warnings say why."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import GPT, AnalyticalCostModel, ChosenSeconds, request_of, rises
from traincast import Calibration, Report, Request, predict
from traincast.cluster import FEATURES, MOST_LIKELY, Correction, Stall
from traincast.forecast import forecast
from traincast.report.outlook import StepTraits, correction_at, expect, look_at, unfamiliar
from traincast.report.uncertainty import STRAINED, widened

NUMBER = len(FEATURES)
ORIGIN = (0.0,) * NUMBER
POINTS = tuple(tuple(2.0 * (i == j) for i in range(NUMBER)) for j in range(NUMBER))
CALIBRATION = Calibration(
    low=0.9,
    high=1.2,
    unknown=0.7,
    runtimes=("megatron",),
    correction=Correction(points=(ORIGIN, *POINTS), weights=(0.1,) + (0.0,) * NUMBER, scales=(1.0,) * NUMBER),
)
quick = settings(deadline=None, derandomize=True, max_examples=60)


def look(*features: float, nodes: int = 1, tensor_nodes: int = 1, stages: int = 1) -> StepTraits:
    """A look at a run with these first features, and zeros for all others."""
    found = (*features, *ORIGIN[len(features) :])
    return StepTraits(features=found, messages=8, nodes=nodes, tensor_nodes=tensor_nodes, stages=stages)


def width(calibration: Calibration, at: StepTraits, runtime: str = "megatron") -> tuple[float, float]:
    """Logarithms of the ends of the interval over the expectation."""
    found = expect(calibration, at, usual_s=1.0, stalled_s=1.0, runtime=runtime)
    return math.log(found.step_s / found.low_s), math.log(found.high_s / found.step_s)


@quick
@given(point=st.sampled_from([ORIGIN, *POINTS]), shift=st.floats(-1.0, 1.0), axis=st.integers(0, NUMBER - 1))
def test_near_a_measured_run_the_interval_is_that_of_the_calibration(
    point: tuple[float, ...], shift: float, axis: int
) -> None:
    at = look(*(x + shift * (i == axis) for i, x in enumerate(point)))
    assert unfamiliar(CALIBRATION, at) == 0.0
    assert width(CALIBRATION, at) == pytest.approx((-math.log(0.9), math.log(1.2)), rel=1e-9)
    assert expect(CALIBRATION, at, usual_s=1.0, stalled_s=1.0, runtime="megatron").warnings == ()


@quick
@given(axis=st.integers(0, NUMBER - 1))
def test_the_interval_grows_with_the_distance_from_all_points_to_what_is_unknown(axis: int) -> None:
    looks = [look(*(-away * (i == axis) for i in range(NUMBER))) for away in (0.0, 1.0, 1.6, 2.0, 3.0, 5.0, 50.0)]
    for side, inside in enumerate((math.log(0.9), math.log(1.2))):
        widths = [width(CALIBRATION, at)[side] for at in looks]
        assert rises(widths)
        assert widths[0] == widths[1] < widths[2]
        assert widths[-1] == pytest.approx(math.hypot(inside, CALIBRATION.unknown), rel=1e-9)
    assert rises([unfamiliar(CALIBRATION, at) for at in looks])


def test_a_calibration_without_points_holds_everywhere() -> None:
    plain = replace(CALIBRATION, correction=None)
    assert width(plain, look(1e3)) == pytest.approx((-math.log(0.9), math.log(1.2)), rel=1e-9)


def test_a_correction_is_whole_at_its_point_and_nothing_far_away() -> None:
    correction = Correction(points=(ORIGIN,), weights=(0.2,), scales=(2.0,) * NUMBER)
    assert correction_at(correction, ORIGIN) == pytest.approx(math.exp(0.2), rel=1e-12)
    beside = (2.0, *ORIGIN[1:])  # one scale away
    assert correction_at(correction, beside) == pytest.approx(math.exp(0.2 * math.exp(-0.5)), rel=1e-12)
    assert correction_at(correction, (100.0,) * NUMBER) == 1.0
    assert correction_at(None, ORIGIN) == 1.0
    twice = Correction(points=(ORIGIN, ORIGIN), weights=(0.2, -0.05), scales=(2.0,) * NUMBER)
    assert correction_at(twice, ORIGIN) == pytest.approx(math.exp(0.15), rel=1e-12)


def test_a_correction_moves_the_expectation_and_its_interval_alike() -> None:
    found = expect(CALIBRATION, look(), usual_s=2.0, stalled_s=2.0, runtime="megatron")
    assert found.step_s == pytest.approx(2.0 * math.exp(0.1), rel=1e-12)
    assert (found.low_s, found.high_s) == pytest.approx((0.9 * found.step_s, 1.2 * found.step_s), rel=1e-12)


@pytest.mark.parametrize("axis", range(6))
def test_a_warning_names_the_count_that_is_outside(axis: int) -> None:
    at = look(*(6.0 * (i == axis) for i in range(NUMBER)))
    (said,) = expect(CALIBRATION, at, usual_s=1.0, stalled_s=1.0, runtime="megatron").warnings
    assert f"64 {FEATURES[axis]} (measured: 1 to 4)" in said
    assert all(f" {name} (" not in said for i, name in enumerate(FEATURES) if i != axis)
    assert "\n" not in said


def test_a_warning_of_an_unusual_mixture_names_no_count() -> None:
    at = look(*(1.9 for _ in range(6)))  # each was measured, but not together
    (said,) = expect(CALIBRATION, at, usual_s=1.0, stalled_s=1.0, runtime="megatron").warnings
    assert "this combination" in said


def test_another_runtime_is_as_unknown_as_can_be() -> None:
    below, above = width(CALIBRATION, look(), runtime="nanotron")
    assert below == pytest.approx(math.hypot(math.log(0.9), 0.7), rel=1e-9)
    assert above == pytest.approx(math.hypot(math.log(1.2), 0.7), rel=1e-9)
    found = expect(CALIBRATION, look(), usual_s=1.0, stalled_s=1.0, runtime="nanotron")
    assert [w for w in found.warnings if "calibrated with megatron, not with nanotron" in w]


def odds(probability: float) -> float:
    return math.log(probability / (1.0 - probability))


@pytest.mark.parametrize("chance", [0.01, 0.2, 0.69, 0.71, 0.9, 0.99])
def test_a_stall_is_forecast_where_it_is_likely_and_bounds_the_interval_where_it_is_not_rare(chance: float) -> None:
    stall = Stall(seconds=0.0, base=odds(chance))
    calibration = Calibration(low=0.9, high=1.2, runtimes=("megatron",), stall=stall)
    found = expect(calibration, look(), usual_s=1.0, stalled_s=5.0, runtime="megatron")
    assert found.step_s == (5.0 if chance >= MOST_LIKELY else 1.0)
    assert found.high_s == pytest.approx(1.2 * (5.0 if chance > 0.05 else 1.0), rel=1e-12)
    assert found.low_s == pytest.approx(0.9 * (5.0 if chance > 0.95 else 1.0), rel=1e-12)
    both = [("usual", 1.0), ("stalled", 5.0)] if 0.05 < chance < 0.95 else []
    assert [(m.name, m.step_s) for m in found.modes] == both
    assert [m.probability for m in found.modes] == pytest.approx([1.0 - chance, chance][: len(both)])
    said = [w for w in found.warnings if "stalled" in w]
    assert len(said) == (chance > 0.05)
    if said:
        assert said[0].startswith(f"{chance:.0%} of similar runs stalled")
        assert "5.0 times as long" in said[0]


def test_modes_are_scaled_with_the_step_and_raised_to_its_floor() -> None:
    calibration = Calibration(runtimes=("megatron",), stall=Stall(seconds=0.0, base=0.0))
    found = expect(calibration, look(), usual_s=1.0, stalled_s=5.0, runtime="megatron").scaled(2.0)
    assert [m.step_s for m in found.modes] == [2.0, 10.0]
    assert [m.step_s for m in found.above(3.0).modes] == [3.0, 10.0]
    assert sum(m.probability for m in found.modes) == 1.0


def test_a_stall_is_never_shorter_than_a_usual_step() -> None:
    calibration = Calibration(runtimes=("megatron",), stall=Stall(seconds=0.0, base=10.0))
    assert expect(calibration, look(), usual_s=3.0, stalled_s=1.0, runtime="megatron").step_s == 3.0


def report_of(request: Request, calibration: Calibration | None, seconds: float = 0.0) -> Report:
    """A report by physics, or of works that all take ``seconds``, on a cluster with this calibration."""
    cluster = replace(request.cluster, calibration=calibration)
    model = ChosenSeconds(lambda _: seconds) if seconds else AnalyticalCostModel()
    return forecast(replace(request, cluster=cluster), cost_model=model).report


@pytest.mark.parametrize("strategy", ["dp=1", "dp=8,zero=3", "dp=2,tp=2,pp=2,num_microbatches=4"])
def test_without_a_calibration_the_interval_is_that_of_the_works_times_published_factors(strategy: str) -> None:
    request = request_of(strategy)
    report = report_of(request, None)
    assert report.low_s < report.step_s < report.high_s
    assert report.calibrated_s == 0.0
    sure = report_of(request, None, seconds=1e-3)  # works without any doubt
    idle = (sure.exposed_communication_s + sure.overhead_s) / sure.step_s
    low, high = widened("strained" if idle > STRAINED else "language", below=0.0, above=0.0, devices=8)
    assert (sure.low_s, sure.high_s) == pytest.approx((low * sure.step_s, high * sure.step_s), rel=1e-12)


def parts(report: Report) -> float:
    return (
        report.compute_s
        + report.exposed_communication_s
        + report.bubble_s
        + report.optimizer_s
        + report.overhead_s
        + report.calibrated_s
    )


@pytest.mark.parametrize("strategy", ["dp=16,zero=1", "dp=2,tp=4,pp=2,num_microbatches=4"])
def test_jitter_and_seconds_of_a_step_are_what_the_calibration_adds(strategy: str) -> None:
    request = request_of(strategy)  # two nodes
    plain = report_of(request, None)
    calibration = Calibration(jitter=0.1, step_s=0.25, runtimes=("pytorch",), low=0.8, high=1.5)
    report = report_of(request, calibration)
    assert report.step_s == pytest.approx(1.1 * plain.step_s + 0.25, rel=1e-9)
    assert report.calibrated_s == pytest.approx(0.1 * plain.step_s + 0.25, rel=1e-9)
    assert parts(report) == pytest.approx(report.step_s, rel=1e-9)
    assert (report.low_s, report.high_s) == pytest.approx((0.8 * report.step_s, 1.5 * report.step_s), rel=1e-9)
    assert report.samples_per_s == pytest.approx(request.global_batch / report.step_s, rel=1e-12)


def test_a_stalled_pipeline_waits_for_every_message_of_its_busiest_stage() -> None:
    request = request_of("pp=4,num_microbatches=8")
    calibration = Calibration(runtimes=("pytorch",), stall=Stall(seconds=0.5, base=20.0))
    plain, stalled = report_of(request, None), report_of(request, calibration)
    # A stage in the middle receives and sends forward, and receives and sends backward.
    assert stalled.step_s == pytest.approx(plain.step_s + 0.5 * 4 * 8, rel=1e-9)
    assert parts(stalled) == pytest.approx(stalled.step_s, rel=1e-9)


def test_a_look_has_counts_as_logarithms_and_shares_in_tenths() -> None:
    request = request_of("dp=2,tp=4,pp=2,num_microbatches=4", global_batch=32)
    made = forecast(request, cost_model=AnalyticalCostModel())
    seconds = AnalyticalCostModel().estimate(made.lowered.plan.works, request.cluster).seconds
    found = look_at(request, made.timeline, seconds)
    assert len(found.features) == NUMBER
    named = dict(zip(FEATURES, found.features, strict=True))
    tokens = 32 // (2 * 4) * 128
    counts = {"nodes": 2, "tensor ranks": 4, "stages": 2, "replicas": 2, "microbatches": 4}
    for name, count in {**counts, "tokens of a microbatch": tokens}.items():
        assert named[name] == pytest.approx(math.log2(count), rel=1e-12), name
    report = made.report
    shares = {"exposed communication": report.exposed_communication_s, "bubble": report.bubble_s}
    for name, part in {**shares, "host": report.overhead_s}.items():
        assert named[name] == pytest.approx(10.0 * part / report.step_s, rel=1e-9, abs=1e-12), name
    assert (found.nodes, found.tensor_nodes, found.stages, found.messages) == (2, 1, 2, 4 * 2)


def test_a_calibration_that_names_no_runtime_holds_for_all() -> None:
    written_by_hand = Calibration(gemm=1.08, low=0.9, high=1.2)
    found = expect(written_by_hand, look(nodes=64, stages=8), usual_s=1.0, stalled_s=1.0, runtime="megatron")
    assert (found.low_s, found.high_s) == pytest.approx((0.9, 1.2))
    assert found.warnings == ()
    unmeasured = replace(CALIBRATION, runtimes=())
    assert width(unmeasured, look(), runtime="any") == width(CALIBRATION, look())
    (warning,) = expect(unmeasured, look(9.0), usual_s=1.0, stalled_s=1.0, runtime="any").warnings
    assert warning.startswith("no run that calibrated this cluster is close to this one: 512 nodes")


def test_a_calibration_as_the_documents_show_it_can_be_used(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('extends = "dgx-h100"\n\n[calibration]\ngemm = 1.08\n', encoding="utf-8")
    asked = {"global_batch": 1024, "strategy": "dp=8", "cost_model": AnalyticalCostModel()}
    slower = predict(GPT, cluster=str(path), **asked).report  # type: ignore[call-overload]
    plain = predict(GPT, cluster="dgx-h100", **asked).report  # type: ignore[call-overload]
    assert slower.step_s > plain.step_s
    assert slower.low_s < slower.step_s < slower.high_s
