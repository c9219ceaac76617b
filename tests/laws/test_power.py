"""Power: a lower limit never makes a product faster, and what does not fill the matrix units is never slowed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast import load_device
from traincast.cluster import Device
from traincast.cluster.architecture import load_architecture
from traincast.estimate.power import slowdowns
from traincast.graph import DType, Operator, OpKind, Phase, TensorSpec

H100 = load_device("h100-sxm5-80gb")
WATTS = st.floats(min_value=50.0, max_value=2000.0)
SHARES = st.floats(min_value=0.001, max_value=1.0)
DEVICES = st.sampled_from(
    [load_device(n) for n in ("h100-sxm5-80gb", "h20", "a100-sxm4-80gb", "b200-sxm", "v100-sxm2-16gb")]
)


def product(dtype: str) -> Operator:
    """A square GEMM in ``dtype``."""
    square = TensorSpec((4096, 4096), DType(dtype))
    return Operator(name="mm", kind=OpKind.GEMM, phase=Phase.FORWARD, inputs=(square, square), outputs=(square,))


def slowdown(device: Device, dtype: str, share: float) -> float:
    """That of a product that reaches ``share`` of the peak rate at full clock."""
    op = product(dtype)
    return float(slowdowns([op], np.array([op.flops / (share * device.peak(dtype))]), device)[0])


def limited(device: Device, watts: float) -> Device:
    return replace(device, power_limit_w=watts)


@given(DEVICES, SHARES, WATTS, WATTS, st.sampled_from(["fp16", "bf16", "fp8"]))
def test_a_lower_limit_never_makes_a_product_faster(
    device: Device, share: float, one: float, other: float, dtype: str
) -> None:
    low, high = sorted((one, other))
    assert slowdown(limited(device, low), dtype, share) >= slowdown(limited(device, high), dtype, share) >= 1.0


@given(DEVICES, SHARES, SHARES, WATTS)
def test_a_product_that_was_faster_at_full_clock_stays_as_fast(
    device: Device, one: float, other: float, watts: float
) -> None:
    """The time 1 / u · slowdown(u) falls with u: slowing a fast product never makes it slower than a slow one."""
    low, high = sorted((one, other))
    times = [slowdown(limited(device, watts), "bf16", share) / share for share in (low, high)]
    assert times[0] >= times[1] * (1.0 - 1e-12)


@given(DEVICES, SHARES, WATTS, st.sampled_from(["fp32", "fp64"]))
def test_products_outside_matrix_units_are_never_slowed(device: Device, share: float, watts: float, dtype: str) -> None:
    assert slowdown(limited(device, watts), dtype, share) == 1.0


@given(SHARES)
def test_products_in_half_precision_are_not_slowed_where_matrix_units_lack_it(share: float) -> None:
    assert slowdown(limited(load_device("v100-sxm2-16gb"), 100.0), "bf16", share) == 1.0


@given(st.floats(min_value=0.001, max_value=0.57))
def test_at_its_tdp_an_h100_runs_products_below_the_curve_at_full_clock(share: float) -> None:
    assert slowdown(H100, "bf16", share) == slowdown(H100, "fp8", share) == 1.0


@pytest.mark.parametrize("name", ["a100-sxm4-80gb", "b200-sxm", "l4", "h20"])
def test_without_a_limit_nothing_is_slowed_on_devices_whose_energy_is_not_known_or_suffices(name: str) -> None:
    assert slowdown(load_device(name), "bf16", 0.9) == pytest.approx(1.0, abs=1e-12)


def test_the_slowdown_is_the_closed_form() -> None:
    power = load_architecture("hopper").power
    full_w = power.joules_per_tflop * 989.4
    for watts in (400.0, 500.0, 700.0):
        expected = max(1.0, full_w * 0.8 / (watts - power.static * 700.0)) ** (1.0 / power.exponent)
        assert slowdown(limited(H100, watts), "bf16", 0.8) == pytest.approx(expected, rel=1e-12)
        assert slowdown(limited(H100, watts), "fp8", 0.8) == pytest.approx(expected, rel=1e-12)


def test_the_clock_of_the_answer_keeps_the_limit() -> None:
    """At the clock c = 1 / slowdown, the static share and the product draw exactly the limit."""
    power, share = load_architecture("hopper").power, 0.8
    clock = 1.0 / slowdown(limited(H100, 500.0), "bf16", share)
    drawn = power.static * 700.0 + power.joules_per_tflop * 989.4 * share * clock**power.exponent
    assert drawn == pytest.approx(500.0, rel=1e-12)
