"""Every file of the catalog loads, and says what hardware can say."""

from __future__ import annotations

import itertools

import pytest

from tests.conftest import CNN, GPT, graph_of
from traincast import Cluster, Device, load_cluster, load_device
from traincast.cluster import cluster_names, device_names, find_device, find_node, node_names
from traincast.cluster.catalog import DATA, device_table
from traincast.strategy import load_precision
from traincast.strategy.choose import usual_precision
from traincast.validating.operators import one_device

ARCHITECTURES = (
    "kepler maxwell pascal volta turing ampere ada hopper blackwell blackwell-ultra "
    "cdna1 cdna2 cdna3 cdna4 gcn5 xe2 knl cpu tpu neuron gaudi bi davinci"
).split()
ARRAYS = ("tpu", "neuron", "gaudi")
"""Architectures with a few large matrix units instead of many small cores."""
NARROWING = ("fp32", "tf32", "fp16", "fp8", "nvfp4")
BITS = {
    "fp64": (11, 52), "fp32": (8, 23), "tf32": (8, 10), "fp16": (5, 10), "bf16": (8, 7), "fp8": (5, 3), "nvfp4": (2, 1),
}  # fmt: skip
"""Bits of exponent and fraction; of fp8 the larger of its two encodings."""


def check_device(device: Device) -> None:
    assert device.architecture in ARCHITECTURES
    assert 1e12 <= device.peak_flops["fp32"] <= 1e15
    stated = [device.peak_flops[dtype] for dtype in NARROWING if dtype in device.peak_flops]
    assert all(wider <= narrower for wider, narrower in itertools.pairwise(stated))
    if "bf16" in device.peak_flops:
        assert device.peak_flops["fp32"] <= device.peak_flops["bf16"] <= device.peak_flops["fp16"]
    assert 50e9 <= device.memory_bandwidth <= 2e13
    assert 5e9 <= device.memory_bytes <= 1e12
    assert 1e6 <= device.l2_bytes <= 512e6
    assert (1 if device.architecture in ARRAYS else 10) <= device.num_sms <= 512
    assert 0.5e9 <= device.clock_hz <= 3e9
    assert 50 <= device.tdp_w <= 2000
    assert 0.05 <= device.price_per_hour <= 50
    assert device.source


def check_cluster(cluster: Cluster) -> None:
    check_device(cluster.device)
    assert 1 <= cluster.devices_per_node <= 72
    assert 5e9 <= cluster.intra_node.bandwidth <= 2e12
    assert 1e9 <= cluster.inter_node.bandwidth <= 200e9
    assert 0 < cluster.intra_node.latency_s <= cluster.inter_node.latency_s * 2 <= 1e-4
    assert 1e9 <= cluster.nic_bandwidth_per_device * cluster.devices_per_node <= 1e13
    assert (cluster.devices_per_node == 1) == (cluster.intra_topology == "none")
    assert 1e-6 <= cluster.launch_s <= 2e-5
    assert cluster.oversubscription >= 1
    assert 1e11 <= cluster.host_memory_bytes <= 1e14
    assert 5e8 <= cluster.storage_bandwidth <= 1e12
    assert cluster.node_power_w >= cluster.device.tdp_w * cluster.devices_per_node
    assert cluster.price_per_node_hour == pytest.approx(cluster.devices_per_node * cluster.device.price_per_hour)
    assert len(cluster.subset_bandwidth) <= max(0, cluster.devices_per_node - 2)
    assert cluster.source


@pytest.mark.parametrize("name", device_names())
def test_every_device_is_plausible(name: str) -> None:
    device = load_device(name)
    assert device.name == name
    check_device(device)


@pytest.mark.parametrize("name", node_names())
def test_every_node_type_is_plausible(name: str) -> None:
    node = load_cluster(name)
    assert (node.name, node.num_nodes) == (name, 1)
    check_cluster(node)


@pytest.mark.parametrize("name", cluster_names())
def test_every_known_cluster_is_plausible(name: str) -> None:
    cluster = load_cluster(name)
    assert cluster.name == name
    assert cluster.num_nodes > 1 or cluster.calibration is not None
    check_cluster(cluster)


@pytest.mark.parametrize("name", device_names())
def test_every_device_has_a_usual_node_and_is_found_by_its_own_name(name: str) -> None:
    device = find_device(name)
    assert device.name == name
    assert device_table(name)["usual_node"] in node_names()
    node = find_node(device, 1)
    assert (node.device, node.devices_per_node, node.num_nodes) == (device, 1, 1)


@pytest.mark.parametrize("name", device_names())
def test_every_device_is_found_by_each_word_of_its_own(name: str) -> None:
    aliases = device_table(name)["aliases"]
    assert isinstance(aliases, dict)
    words = aliases["model"]
    assert isinstance(words, tuple)
    for word in words:
        found = device_table(find_device(f"NVIDIA {word}".upper()).name)["aliases"]
        assert isinstance(found, dict)
        models = found["model"]
        assert isinstance(models, tuple)
        assert word in models


def test_names_are_lower_case_and_do_not_clash() -> None:
    names = [*node_names(), *cluster_names()]
    assert len(names) == len(set(names))
    assert all(name == name.lower() for name in [*names, *device_names()])
    assert {path.suffix for path in DATA.glob("*/*")} == {".toml"}


@pytest.mark.parametrize("name", device_names())
def test_a_format_that_a_device_lacks_is_computed_in_one_that_holds_all_its_numbers(name: str) -> None:
    device = load_device(name)
    for dtype, bits in BITS.items():
        used = device.computes_in(dtype)
        assert device.supports(dtype) == (used == dtype) or dtype == "fp64"
        assert all(own <= wide for own, wide in zip(bits, BITS[used], strict=True)), (dtype, used)
        assert device.peak(dtype) == device.peak_flops.get(used, device.peak_flops["fp32"] / 64)


@pytest.mark.parametrize("name", device_names())
def test_the_default_precision_is_one_that_the_device_has(name: str) -> None:
    """Where there are matrix units for 16 bits, they are used: fp16 on V100, whose bf16 is as slow as fp32."""
    device = load_device(name)
    for model in (GPT, CNN):
        chosen = load_precision(usual_precision(graph_of(model), one_device(device)))
        assert device.supports(chosen.linear.value) and device.supports(chosen.products.value)
        if device.supports("fp16"):
            assert device.peak(chosen.products.value) > device.peak("fp32")
