"""What an unknown name is told."""

from __future__ import annotations

import pytest

from traincast.cluster import cluster_names, device_names, node_names
from traincast.errors import UnknownNameError
from traincast.graph import zoo

CLUSTERS = [*cluster_names(), *node_names()]


@pytest.mark.parametrize(
    ("name", "choices", "meant"),
    [
        ("h1000", device_names(), "h100-nvl-94gb, h100-pcie-80gb, h100-sxm5-80gb"),
        ("H100", device_names(), "h100-nvl-94gb, h100-pcie-80gb, h100-sxm5-80gb"),
        ("4090", device_names(), "rtx-4090"),
        ("dgx-h10", CLUSTERS, "dgx-h100"),
        ("resnet51", zoo.names(), "resnet50"),
        ("lama3-8b", zoo.names(), "llama3-8b"),
        ("gtp", list(zoo.FAMILIES), "gpt"),
    ],
)
def test_a_slip_of_the_pen_is_told_what_was_meant(name: str, choices: list[str], meant: str) -> None:
    assert f"unknown thing {name!r}: did you mean {meant}" in str(UnknownNameError("thing", name, choices))


@pytest.mark.parametrize("name", ["fpga", "npu", "warp", "中文", ""])
def test_a_name_like_nothing_known_is_told_what_is_known(name: str) -> None:
    said = str(UnknownNameError("device", name, device_names(), hint="look"))
    assert said.startswith(f"unknown device {name!r}: known are a10, a30, a40, cpu, ")
    assert said.endswith(", …; look")
