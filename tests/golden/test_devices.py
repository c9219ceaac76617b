"""Rates, memory and bandwidth of every device of the catalog against what its vendor publishes.

Rates are dense: vendors' figures with 2:4 sparsity are halved. On GeForce cards they are those with fp32 accumulation,
half of the advertised ones. Those of TPUs are per chip. ``memory_gb`` is the printed capacity, in units of 2³⁰ bytes; a
device reports less, because ECC and the driver take a part. An empty field means that no figure is published.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Final

import pytest

from traincast import load_device
from traincast.cluster import device_names

with Path(__file__).with_name("devices.csv").open(encoding="utf-8", newline="") as file:
    PUBLISHED: Final = {row["name"]: row for row in csv.DictReader(file)}
SAME: Final = 0.01
LEAST_REPORTED: Final = 0.91
"""Share of the printed memory that software sees at least: ECC in GDDR6 takes a sixteenth."""
EXPLAINED: Final = {
    ("h100-pcie-80gb", "bandwidth_gb_s"): "printed as 2 TB/s; 5,120 bits at 3,186 Mbit/s are 2,039 GB/s",
    ("m40", "fp32_tflops"): "printed as 7 TFLOPS; 3,072 cores at 1,114 MHz are 6.84",
    ("p4", "fp32_tflops"): "printed as 5.5 TFLOPS; 2,560 cores at 1,063 MHz are 5.44",
    ("p40", "fp32_tflops"): "printed as 12 TFLOPS; 3,840 cores at 1,531 MHz are 11.76",
    (
        "rtx-4000-ada",
        "fp16_tflops",
    ): "327.6 is a digit off 427.6, which its 48 SMs at 2,175 MHz have, as all siblings",
    ("rtx-4000-ada", "fp8_tflops"): "as in fp16",
    ("rtx-pro-6000", "fp16_tflops"): "4 PFLOPS are rounded; at the clock of its 120 TFLOPS in fp32 they are 3.84",
    ("rtx-pro-6000", "fp8_tflops"): "as in fp16",
}
"""Figures that differ by more than :data:`SAME`, and why."""


def test_every_device_has_published_figures() -> None:
    assert sorted(PUBLISHED) == sorted(device_names())


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_device_has_the_figures_of_its_datasheet(name: str) -> None:
    device, row = load_device(name), PUBLISHED[name]
    rates = device.peak_flops
    ours = {
        "bandwidth_gb_s": device.memory_bandwidth / 1e9,
        "fp32_tflops": rates["fp32"] / 1e12,
        "fp16_tflops": rates.get("fp16", 0.0) / 1e12,
        "fp8_tflops": rates.get("fp8", 0.0) / 1e12,
    }
    for column, value in ours.items():
        if row[column]:
            differs = abs(value / float(row[column]) - 1) > SAME
            assert differs == ((name, column) in EXPLAINED), (column, value, row[column])
    if row["memory_gb"]:
        assert LEAST_REPORTED <= device.memory_bytes / (float(row["memory_gb"]) * 2**30) <= 1.0 + 1e-3


@pytest.mark.parametrize("name", [name for name in PUBLISHED if load_device(name).architecture == "ada"])
def test_tensor_cores_of_a_generation_have_one_rate(name: str) -> None:
    """16-bit products over fp32, both per SM and clock: 4, or 2 on cards whose fp32 accumulation is halved."""
    device = load_device(name)
    halved = name.startswith(("rtx-4080", "rtx-4090", "l40")) and name != "l40s"
    assert device.peak("fp16") / device.peak("fp32") == pytest.approx(2.0 if halved else 4.0, rel=0.02)
