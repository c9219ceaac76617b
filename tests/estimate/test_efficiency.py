"""Which fractions a device reaches: its own, ours of it, or its architecture's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from traincast import load_device
from traincast.cluster import device_names
from traincast.cluster.architecture import architecture_names, load_architecture
from traincast.estimate.operators.efficiency import (
    INTERVALS,
    MEMORY_SHARE,
    Achievable,
    achievable,
    resembles_measured,
)
from traincast.graph import OpKind

H100 = load_device("h100-sxm5-80gb")


def reach_of(architecture: str) -> Achievable:
    return achievable(replace(H100, architecture=architecture))


def test_an_architecture_gives_the_fractions_of_its_devices() -> None:
    assert achievable(H100).memory == load_architecture("hopper").reaches["memory"]
    assert achievable(H100).gemm_fraction("fp8") == load_architecture("hopper").reaches["gemm_fp8"]
    assert set(architecture_names()) > {"hopper", "cdna3", "tpu"}


def test_a_fraction_measured_on_the_device_wins_for_all_dtypes() -> None:
    reach = achievable(replace(H100, achievable={"gemm": 0.5, "memory": 0.6, "kernel_floor_s": 9e-6}))
    assert reach.gemm_fraction("bf16") == reach.gemm_fraction("fp8") == 0.5
    assert (reach.memory, reach.floor_s) == (0.6, 9e-6)
    assert reach.attention == achievable(H100).attention


def test_a_fraction_for_one_dtype_leaves_the_others() -> None:
    reach = achievable(replace(H100, achievable={"gemm_fp8": 0.5, "conv_fp32": 0.4}))
    assert reach.gemm_fraction("fp8") == 0.5
    assert reach.gemm_fraction("bf16") == achievable(H100).gemm_fraction("bf16")
    assert reach.conv_fraction("fp32") == 0.4


def test_an_unknown_architecture_falls_back_to_defaults_that_are_not_measured() -> None:
    assert not reach_of("rubin").measured
    assert reach_of("rubin") == reach_of("knl")


def test_a_card_short_of_power_differs_from_its_architecture() -> None:
    assert achievable(load_device("t4")).gemm_fraction("fp32") < reach_of("turing").gemm_fraction("fp32")


def test_matrix_units_that_compute_less_per_cycle_reach_more_of_their_peak() -> None:
    ampere = load_architecture("ampere").reaches
    card = achievable(load_device("rtx-3090"))  # a quarter of what an SM of A100 computes per cycle
    assert card.loss_share == pytest.approx(0.25, rel=0.01)
    assert card.gemm_fraction("bf16") == pytest.approx(1.0 - (1.0 - ampere["gemm"]) * card.loss_share)
    assert card.conv_fraction("tf32") == pytest.approx(1.0 - (1.0 - ampere["conv_tf32"]) * card.loss_share)
    assert card.gemm_fraction("fp32") == ampere["gemm_fp32"]  # no matrix units
    for name in ("a100-sxm4-80gb", "h100-sxm5-80gb", "l40s", "v100-sxm2-16gb"):
        device = load_device(name)
        assert achievable(device).gemm_fraction("fp16") == load_architecture(device.architecture).reaches["gemm"]


def test_operators_of_servers_say_nothing_about_slower_matrix_units() -> None:
    assert not resembles_measured(load_device("rtx-3090"), "bf16")
    assert not resembles_measured(load_device("rtx-2080-ti"), "fp16")
    assert resembles_measured(load_device("rtx-3090"), "fp32")
    for name in ("a100-sxm4-80gb", "v100-sxm2-16gb", "rtx-a6000", "l4", "p100-pcie-16gb", "mi250"):
        assert resembles_measured(load_device(name), "fp16")


@pytest.mark.parametrize("name", device_names())
def test_every_device_of_the_catalog_reaches_positive_fractions(name: str) -> None:
    reach = achievable(load_device(name))
    for fraction in (*reach.gemm.values(), *reach.conv.values(), reach.attention, reach.attention_backward):
        assert 0 < fraction <= 1.2
    assert 0 < reach.memory <= 1
    assert 0 < reach.floor_s < 1e-4


def test_shares_and_intervals_are_what_they_say() -> None:
    assert all(0 < share <= 1 for share in MEMORY_SHARE.values())
    assert all(low < 1 < high for low, high in INTERVALS.values())
    assert {kind for kind, _ in MEMORY_SHARE} <= set(OpKind)
