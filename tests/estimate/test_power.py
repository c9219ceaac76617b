"""Power limits reach forecasts, searches and calibrations alike, and leave measured times alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from traincast import Ask, RequestError, load_cluster, predict
from traincast.estimate import SOURCES, AnalyticalCostModel, Estimates
from traincast.estimate.power import estimated, mean_slowdown, under_power
from traincast.graph import DType, Operator, OpKind, Phase, TensorSpec

H100 = load_cluster("dgx-h100:1")
AT_500 = H100.with_power_limit(500.0)
ASK = Ask("llama3-8b", cluster="dgx-h100:1", global_batch=8, strategy="dp=8,zero=3")


def operator(kind: OpKind = OpKind.GEMM) -> Operator:
    square = TensorSpec((8192, 8192), DType.BF16)
    return Operator(name="mm", kind=kind, phase=Phase.FORWARD, inputs=(square, square), outputs=(square,))


def at_full_clock(source: str = "analytical", bundle: int = -1, count: int = 1) -> Estimates:
    """Those of ``count`` products at nine tenths of the peak rate."""
    seconds = np.full(count, operator().flops / (0.9 * H100.device.peak("bf16")))
    return Estimates(
        seconds=seconds,
        low=seconds / 2,
        high=seconds * 2,
        source=np.full(count, SOURCES.index(source), dtype=np.int8),
        bundle=np.full(count, bundle, dtype=np.int16),
    )


def test_times_and_intervals_are_slowed_alike() -> None:
    full = at_full_clock()
    slow = under_power(full, [operator()], AT_500.device)
    assert slow.slowed is not None and slow.slowed[0] == pytest.approx(1.77, abs=0.01)
    for name in ("seconds", "low", "high"):
        assert getattr(slow, name)[0] == pytest.approx(getattr(full, name)[0] * slow.slowed[0], rel=1e-12)


@pytest.mark.parametrize("source", ["measured", "carried"])
def test_times_measured_on_the_machine_itself_stay(source: str) -> None:
    full = at_full_clock(source)
    assert under_power(full, [operator()], AT_500.device) is full


def test_times_of_a_bundle_of_the_user_stay() -> None:
    full = at_full_clock("learned", bundle=0)
    assert under_power(full, [operator()], AT_500.device) is full


def test_a_device_whose_fractions_were_measured_is_not_slowed_again() -> None:
    full = at_full_clock()
    assert under_power(full, [operator()], replace(AT_500.device, achievable={"gemm": 0.9})) is full


def test_works_that_are_no_products_stay() -> None:
    add = operator(OpKind.ELEMENTWISE)
    full = AnalyticalCostModel().estimate([add], AT_500)
    assert estimated(AnalyticalCostModel(), [add], AT_500).seconds[0] == full.seconds[0]


def test_the_mean_slowdown_weighs_products_by_their_time() -> None:
    works = [operator(), operator(OpKind.ELEMENTWISE)]
    both = at_full_clock(count=2)
    slow = under_power(both, works, AT_500.device)
    assert slow.slowed is not None and slow.slowed[1] == 1.0
    assert mean_slowdown(slow, works, np.array([3, 5])) == pytest.approx(slow.slowed[0], rel=1e-12)
    assert mean_slowdown(both, works, np.array([3, 5])) == 1.0


def test_a_limit_of_the_ask_and_of_the_cluster_are_the_same() -> None:
    asked = predict(replace(ASK, power_limit=500.0)).report
    stated = predict(replace(ASK, cluster=AT_500)).report
    assert asked.step_s == stated.step_s > predict(ASK).report.step_s
    assert asked.power_limit_w == 500.0 and asked.power_slowdown == stated.power_slowdown > 1.3


def test_a_limit_above_the_tdp_is_allowed_and_slows_less() -> None:
    at_tdp, more = predict(ASK).report, predict(replace(ASK, power_limit=1000.0)).report
    assert at_tdp.power_limit_w == 700.0
    assert 1.0 == more.power_slowdown < at_tdp.power_slowdown
    assert more.step_s < at_tdp.step_s


def test_every_part_of_a_mixed_cluster_gets_the_limit_and_hosts_do_not() -> None:
    mixed = load_cluster("dgx-a100:1+dgx-h100:1+cpu-server:1", hosts=True).with_power_limit(300.0)
    assert [part.device.limit_w for part in mixed.parts] == [300.0, 300.0]
    assert mixed.device.limit_w == 300.0
    assert mixed.hosts[0].device.power_limit_w is None


@pytest.mark.parametrize("watts", [0.0, -5.0, 1e9, float("nan")])
def test_an_impossible_limit_is_refused(watts: float) -> None:
    with pytest.raises(RequestError, match=r"power limit .* W: expected a number from 1 to"):
        predict(replace(ASK, power_limit=watts))


def test_a_limit_below_what_a_device_draws_before_it_computes_is_refused() -> None:
    with pytest.raises(RequestError, match="h100-sxm5-80gb draws about 245 W before it computes"):
        predict(replace(ASK, power_limit=240.0))
