"""How sure an order is: laws of chances and ties, and draws that come again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import AnalyticalCostModel, request_of
from tests.searching.problems import TINY
from traincast import Forecast, load_cluster
from traincast.cluster import FACTORS
from traincast.forecast import forecast
from traincast.report.outlook import Mode
from traincast.searching.sureness import DRAWS, chances, drawn_seconds, spreads, ties

WIDE = "gpt:layers=2,hidden=1024,heads=8,vocab=1000,seq=512"
ULTRASCALE = "h100-sxm5-80gb-nanotron-ultrascale"
Floats = npt.NDArray[np.float64]


def forecasts(*texts: str) -> list[Forecast]:
    return [
        forecast(request_of(text, model=TINY, runtime="megatron"), cost_model=AnalyticalCostModel()) for text in texts
    ]


def slower(made: Forecast, times: float) -> Forecast:
    """The same forecast, of a run that takes so many times as long."""
    estimates = made.estimates
    longer = {name: getattr(estimates, name) * times for name in ("seconds", "low", "high")}
    report = made.report
    report = replace(report, step_s=report.step_s * times, low_s=report.low_s * times, high_s=report.high_s * times)
    return replace(made, estimates=replace(estimates, **longer), report=report)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    table=st.integers(1, 6).flatmap(
        lambda n: st.lists(st.lists(st.floats(0.1, 10.0), min_size=n, max_size=n), min_size=1, max_size=30)
    )
)
def test_chances_are_shares_of_one(table: list[list[float]]) -> None:
    drawn = np.array(table)
    found = chances(drawn)
    assert found.sum() == pytest.approx(1.0)
    assert (found >= 0).all()
    assert len(found) == len(table[0])
    tied = ties(drawn)
    assert not tied[0]
    assert len(tied) == len(found)


@settings(deadline=None, derandomize=True, max_examples=40)
@given(factor=st.floats(0.5, 3.0), seed=st.integers(0, 5))
def test_chances_do_not_change_with_the_unit_of_time(factor: float, seed: int) -> None:
    drawn = np.exp(np.random.default_rng(seed).normal(size=(64, 5)))
    assert chances(drawn * factor) == pytest.approx(chances(drawn))
    assert ties(drawn * factor).tolist() == ties(drawn).tolist()


def test_a_strategy_ties_with_itself_and_not_with_one_three_times_slower() -> None:
    (made,) = forecasts("dp=4,micro_batch=4")
    drawn = drawn_seconds([made, made, slower(made, 3.0)])
    assert drawn.shape == (DRAWS, 3)
    assert ties(drawn).tolist() == [False, True, False]
    first, second, third = chances(drawn)
    assert first == pytest.approx(0.5, abs=0.2)
    assert second == pytest.approx(0.5, abs=0.2)
    assert third == 0.0


def test_draws_come_again_with_their_seed() -> None:
    made = forecasts("dp=4,micro_batch=4", "dp=2,tp=2,micro_batch=4", "dp=2,pp=2,micro_batch=2")
    first = drawn_seconds(made, seed=1)
    assert (drawn_seconds(made, seed=1) == first).all()
    assert (drawn_seconds(made, seed=2) != first).any()
    assert drawn_seconds(made, draws=7).shape == (7, 3)
    assert (first > 0).all()


def test_draws_lie_around_the_forecast() -> None:
    made = forecasts("dp=4,micro_batch=4", "dp=2,tp=2,micro_batch=4")
    middle = np.median(drawn_seconds(made, draws=400), axis=0)
    for each, value in zip(made, middle, strict=True):
        assert value == pytest.approx(each.report.step_s, rel=0.3)


def test_draws_are_as_wide_as_the_interval_that_a_forecast_alone_states() -> None:
    (made,) = forecasts("dp=4,micro_batch=4")
    report = made.report
    for low, high in ((0.4, 1.9), (0.25, 6.0)):
        wide = replace(made, report=replace(report, low_s=low * report.step_s, high_s=high * report.step_s))
        found = np.quantile(drawn_seconds([wide], draws=2000)[:, 0] / report.step_s, (0.05, 0.95))
        assert found == pytest.approx([low, high], rel=0.15)


def test_strategies_of_one_cluster_share_what_it_may_be() -> None:
    """Two that differ little differ little in every draw, however far both are from their forecast."""
    (made,) = forecasts("dp=4,micro_batch=4")
    drawn: Floats = np.log(drawn_seconds([made, slower(made, 1.01)]))
    assert np.std(drawn[:, 0] - drawn[:, 1]) < 0.7 * np.std(drawn[:, 0])


def test_a_calibrated_cluster_is_drawn_as_it_was_measured() -> None:
    """What it was never measured at is common to all of its strategies; what it left over each has by itself."""
    there = on_ultrascale("dp=8,micro_batch=2")
    known = np.log(drawn_seconds([there, slower(there, 1.5)], draws=400))
    report, calibration = there.report, there.request.cluster.calibration
    assert calibration is not None
    own, whole = (np.log(b / a) / 3.29 for a, b in ((calibration.low, calibration.high), (report.low_s, report.high_s)))
    assert whole > 2 * own
    assert np.std(known[:, 0]) == pytest.approx(whole, rel=0.2)
    assert np.std(known[:, 0] - known[:, 1]) == pytest.approx(np.sqrt(2) * own, rel=0.2)


def test_a_run_that_may_stall_is_drawn_in_both_modes() -> None:
    there = on_ultrascale("dp=8,micro_batch=2")
    step = there.report.step_s
    modes = (Mode(name="usual", step_s=step, probability=0.75), Mode(name="stalled", step_s=9 * step, probability=0.25))
    report = replace(there.report, modes=modes, low_s=0.7 * step, high_s=10.0 * step)
    drawn = drawn_seconds([replace(there, report=report)], draws=2000)[:, 0] / step
    assert np.mean(drawn > 3.0) == pytest.approx(0.25, abs=0.03)
    assert np.median(drawn[drawn <= 3.0]) == pytest.approx(1.0, rel=0.02)
    assert np.median(drawn[drawn > 3.0]) == pytest.approx(9.0, rel=0.02)
    assert np.quantile(drawn[drawn <= 3.0], 0.05) == pytest.approx(0.7, rel=0.05)


def test_a_calibrated_cluster_does_not_take_the_draws_of_another_one_with_its_device() -> None:
    there = on_ultrascale("dp=8,micro_batch=2")
    (plain,) = forecasts("dp=4,micro_batch=4")
    device = there.request.cluster.device
    here = replace(plain, request=replace(plain.request, cluster=replace(plain.request.cluster, device=device)))
    for both in ([there, here], [here, there]):
        drawn = np.log(drawn_seconds(both, draws=400))
        alone = np.log(drawn_seconds([there], draws=400))
        assert np.std(drawn[:, both.index(there)]) == pytest.approx(np.std(alone), rel=0.05)


def test_devices_err_apart_and_those_never_measured_further() -> None:
    large = request_of("dp=4,micro_batch=8", model=WIDE, runtime="megatron", global_batch=32)
    made = forecast(large, cost_model=AnalyticalCostModel())
    another = elsewhere(made, "another")
    apart = spread(made, another)
    assert spread(made, made) == pytest.approx(np.sqrt(2) * 0.03, rel=0.2)
    assert 0.15 < apart < 0.5
    estimates = made.estimates
    unknown = replace(
        another,
        estimates=replace(
            estimates,
            low=0.5 * estimates.seconds,
            high=2.0 * estimates.seconds,
            unmeasured=np.ones(len(estimates.seconds), dtype=bool),
        ),
    )
    assert spread(made, unknown) > 1.2 * apart
    faster = slower(unknown, 1 / 1.39)
    sure, unsure = (chances(drawn_seconds([each, made], draws=400))[0] for each in (slower(another, 1 / 1.39), faster))
    assert unsure < sure < 1.0


def on_ultrascale(strategy: str) -> Forecast:
    """A forecast on a calibrated cluster, of a run that is unlike those measured there."""
    request = replace(request_of(strategy, model=TINY, runtime="nanotron"), cluster=load_cluster(f"{ULTRASCALE}:1"))
    return forecast(request, cost_model=AnalyticalCostModel())


def elsewhere(made: Forecast, name: str) -> Forecast:
    """The same forecast on a device and a cluster of another name."""
    cluster = made.request.cluster
    return replace(
        made,
        request=replace(made.request, cluster=replace(cluster, name=name, device=replace(cluster.device, name=name))),
    )


def spread(first: Forecast, second: Forecast) -> float:
    """The standard deviation of the logarithm of the ratio of two."""
    drawn = np.log(drawn_seconds([first, second], draws=400))
    return float(np.std(drawn[:, 0] - drawn[:, 1]))


def test_every_factor_of_a_calibration_has_a_spread() -> None:
    assert set(spreads()) == set(FACTORS)
    assert all(0 < spread < 2 for spread in spreads().values())
