"""Which node a measured row ran on, by its device, its devices per node and the text of its network."""

from __future__ import annotations

import pytest

from traincast import Cluster, RequestError, load_device
from traincast.cluster import find_device, find_node
from traincast.cluster.interconnect import says_adapters, says_network


def node(text: str, count: int, interconnect: str | None, system: str | None = None) -> Cluster:
    return find_node(find_device(text, form=interconnect), count, interconnect, system=system)


@pytest.mark.parametrize(
    ("text", "count", "interconnect", "name", "intra", "node_gbit"),
    [
        ("H100-SXM5-80GB", 8, "NVLink4 / EFA", "p5.48xlarge", 450e9, 3200),
        ("A100-SXM4", 8, None, "dgx-a100", 300e9, 1600),
        (
            "a100_40gb",
            8,
            "NVLink / 1600Gbps RoCE (A100), 3200Gbps-class (H100)",
            "dgx-a100-40gb",
            300e9,
            1600,
        ),
        ("h100_80gb", 8, "NVLink / 1600Gbps RoCE (A100), 3200Gbps-class (H100)", "dgx-h100", 450e9, 3200),
        ("A100-SXM4-80GB", 8, "NVSwitch / 8x HDR200 IB", "dgx-a100", 300e9, 1600),
        ("A100-SXM4-80GB", 8, "4 Omni-Path links per node", "dgx-a100", 300e9, 400),
        ("NVIDIA GB200", 4, "NVL72 NVLink5", "dgx-gb200", 900e9, 1600),
        ("NVIDIA GB200", 8, None, "gb200-nvl72", 900e9, 3200),
        (
            "NVIDIA A100-SXM4-80GB",
            4,
            "NVLink3 intra, Slingshot-11 inter",
            "perlmutter-node-80gb",
            300e9,
            800,
        ),
        (
            "NVIDIA A100-SXM4-80GB",
            2,
            "NVLink3 intra, Slingshot-11 inter",
            "perlmutter-node-80gb",
            100e9,
            400,
        ),
        ("NVIDIA GH200-120GB", 1, "NDR InfiniBand (1 GPU/node)", "vista-node", 450e9, 400),
        ("GH200", 4, "NVLink4 intra, Slingshot-11 (4x200Gb/s per node) inter", "alps-node", 450e9, 800),
        ("NVIDIA A100-80GB-PCIe?", 2, "pairwise NVLink + PCIe", "pcie-a100-nvlink", 300e9, 200),
        ("NVIDIA A100-80GB-PCIe?", 4, "pairwise NVLink + PCIe", "pcie-a100-nvlink", 31.5e9, 200),
        ("NVIDIA L40S", 8, "PCIe4", "pcie-l40s", 31.5e9, 200),
        ("NV_1080Ti", 8, "PCIe / IB (8-GPU Tyan nodes)", "pcie-1080ti", 15.75e9, 56),
        ("IA_KNL7250", 1, "Omni-Path", "knl-node", 20e9, 100),
        ("V100-SXM2", 8, "PCIe", "dgx-1-v100", 15.75e9, 400),
        ("V100", 8, "NVLink, 100 Gbps Ethernet", "dgx-1-v100", 150e9, 100),
        ("A100", 8, "NVLink3 (600 GB/s), 4x 200Gb/s RoCE", "dgx-a100", 300e9, 800),
        ("H100", 8, "NVLink 900GB/s + 3.2 Tbps InfiniBand", "dgx-h100", 450e9, 3200),
        ("H100", 8, "400Gb/s per GPU", "dgx-h100", 450e9, 3200),
        ("A100", 8, "25 GB/s per GPU", "dgx-a100", 300e9, 1600),
        ("A100", 8, "8x200G IB", "dgx-a100", 300e9, 1600),
        ("T4", 1, "10GbE", "pcie-t4", 15.75e9, 10),
        ("A100", 8, "Ethernet", "dgx-a100", 300e9, 10),
    ],
)
def test_a_measured_row_finds_its_node(
    *, text: str, count: int, interconnect: str | None, name: str, intra: float, node_gbit: float
) -> None:
    found = node(text, count, interconnect)
    assert (found.name, found.devices_per_node, found.num_nodes) == (name, count, 1)
    assert found.intra_node.bandwidth == intra
    assert found.inter_node.bandwidth * found.nics_per_node * 8 == pytest.approx(node_gbit * 1e9)


def test_the_name_of_a_machine_finds_its_node() -> None:
    assert find_node(find_device("V100", 32, "DGX-2H"), 16, system="DGX-2H").name == "dgx-2h"
    assert find_node(find_device("A100"), 4, system="Perlmutter").name == "perlmutter-node-80gb"
    assert find_node(find_device("GH200"), 1, system="CSCS Alps").name == "alps-node"
    quarter = find_node(find_device("V100", 16, "DGX-1"), 4, system="DGX-1")
    assert (quarter.intra_node.bandwidth, quarter.nics_per_node) == (100e9, 2)


@pytest.mark.parametrize("count", [0, -1, 10**6, 2.5, float("nan")])
def test_a_senseless_number_of_devices_is_refused(count: float) -> None:
    with pytest.raises(RequestError, match="devices per node"):
        find_node(find_device("A100"), count)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("network", "system", "says"),
    [
        ("NVLink4 / EFA", "", True),
        ("8x HDR200 IB", "", True),
        ("1600Gbps RoCE", "", True),
        ("", "DGX-A100", True),
        ("NVLink", "multi-node A100 cluster (variant/NIC not stated)", False),
        ("", "", False),
    ],
)
def test_a_network_is_stated_by_its_kind_its_rate_or_its_machine(network: str, system: str, says: bool) -> None:
    assert says_network(load_device("a100-sxm4-80gb"), network, system=system) is says


@pytest.mark.parametrize(
    ("text", "count", "interconnect", "adapters", "gbit"),
    [
        # Lanes of a port are no adapters; a count before them is
        ("H100", 8, "4X NDR", 8, 400),
        ("H100", 8, "NDR 4X", 8, 400),
        ("H100", 8, "NDR 4x", 8, 400),
        ("H100", 8, "InfiniBand 4X HDR", 8, 200),
        ("A100", 8, "4X InfiniBand EDR", 8, 100),
        ("A100", 8, "single-port 4X EDR 100Gb/s", 8, 100),
        ("A100", 8, "8x HDR 4X", 8, 200),
        ("A100", 8, "1x 4X EDR", 1, 100),
        ("A100", 8, "2 x 4X FDR InfiniBand", 2, 56),
        ("A100", 8, "2x 4x HDR", 2, 200),
        ("A100", 8, "dual-rail 4X EDR", 2, 100),
        ("V100", 8, "12X FDR", 4, 168),
        ("V100", 8, "QDR 12X", 4, 96),
        ("A100", 8, "4x EDR", 4, 100),
        ("A100", 8, "4 x HDR", 4, 200),
        ("A100", 8, "Mellanox 4x HDR", 4, 200),
        ("A100", 8, "8x ConnectX-6 200Gb/s HDR", 8, 200),
        ("A100", 8, "4 dual-port ConnectX-6 200 Gb/s", 4, 200),
        ("H100", 8, "400G InfiniBand x4", 4, 400),
        ("H100", 8, "CX-7 400G x 4", 4, 400),
        ("H100", 8, "4 EFA NICs", 4, 100),
        ("H100", 8, "EFAv2", 32, 100),
        ("A100", 4, "HPE Slingshot 11, 2x 200 Gb/s NICs", 2, 200),
        ("A100", 4, "Slingshot-10", 4, 100),
        # A rate apart from its kind
        ("A100", 8, "InfiniBand, 100Gb/s", 8, 100),
        ("A100", 8, "InfiniBand\uff0c100Gb/s", 8, 100),
        # Networks that training does not use
        ("A100", 8, "1x 1GbE management; 4x 200Gb/s HDR InfiniBand", 4, 200),
        ("A100", 8, "4x HDR200 IB (1x 1GbE management)", 4, 200),
        ("A100", 8, "BMC 1GbE, 4x HDR200 IB", 4, 200),
        ("A100", 8, "onboard 10GbE, 4x HDR200 IB", 4, 200),
        ("A100", 8, "2x 10Gbase-T onboard, 4x HDR", 4, 200),
        ("A100", 8, "1 GbE mgmt + 2 x 100 GbE RoCE", 2, 100),
        ("A100", 8, "2 x 100 GbE RoCE + 1 GbE mgmt", 2, 100),
        ("H100", 8, "out-of-band 1 GbE and 4x NDR", 4, 400),
        ("H100", 8, "1GbE IPMI and 4x400G RoCE", 4, 400),
        ("H100", 8, "storage: 2x 200 Gb/s Ethernet; compute: 4x NDR", 4, 400),
        ("H100", 8, "4x 400GbE storage, 2x NDR", 2, 400),
        ("H100", 8, "Gigabit Ethernet; 4x NDR", 4, 400),
        ("A100", 8, "10GbE management network", 8, 200),
        ("A100", 8, "onboard 10GbE", 1, 10),
        # Links inside a slice of TPUs
        ("TPU v5p", 4, "ICI 4800 Gbps", 1, 200),
        ("TPU v5p", 4, "ICI + DCN 100 Gbps", 1, 100),
    ],
)
def test_free_text_tells_the_adapters_of_the_fabric(
    *, text: str, count: int, interconnect: str, adapters: int, gbit: float
) -> None:
    found = node(text, count, interconnect)
    assert (found.nics_per_node, round(found.inter_node.bandwidth * 8 / 1e9)) == (adapters, gbit)


@pytest.mark.parametrize(
    ("system", "adapters", "gbit"),
    [
        ("H100 96GB HBM2e 500W, 200Gb/s RDMA per GPU", 8, 200),
        ("8x H100 80GB, 3.35 TB/s, NVLink 900 GB/s, onboard 10GbE, 1GbE BMC", 8, 400),
        ("8x H100 80Gb", 8, 400),
        ("8x H100, 4x NDR, 2x 100GbE storage", 4, 400),
    ],
)
def test_the_description_of_a_system_tells_its_fabric_if_nothing_else_does(
    *, system: str, adapters: int, gbit: float
) -> None:
    found = find_node(find_device("H100"), 8, system=system)
    assert (found.nics_per_node, round(found.inter_node.bandwidth * 8 / 1e9)) == (adapters, gbit)
    stated = find_node(find_device("H100"), 8, "2x HDR", system=system)
    assert (stated.nics_per_node, round(stated.inter_node.bandwidth * 8 / 1e9)) == (2, 200)


@pytest.mark.parametrize(
    ("network", "says"),
    [("8x HDR", True), ("HDR InfiniBand", False), ("4X EDR", False), ("1600Gbps RoCE", True), ("100GbE", True)],
)
def test_a_kind_of_network_does_not_tell_how_many_adapters_there_are(network: str, says: bool) -> None:
    assert says_adapters(load_device("a100-sxm4-80gb"), network) is says


@pytest.mark.parametrize(
    ("text", "name", "node_gbit"),
    [
        ("NVLink + IPoIB", "IPoIB", 25),
        ("NVSwitch + 8x200G HDR IB, IPoIB", "IPoIB", 25),
        ("8x HDR InfiniBand, TCP over IB", "IPoIB", 25),
        ("8x HDR InfiniBand, IPoIB for storage", "HDR InfiniBand", 1600),
        ("RoCE 200Gb NIC", "RoCE", 1600),
        ("2x 200Gb RoCE NICs", "RoCE", 400),
    ],
)
def test_the_network_stack_of_the_processor_and_rates_of_single_cards_are_told_apart(
    text: str, name: str, node_gbit: float
) -> None:
    found = node("A100-SXM4-80GB", 8, text)
    assert (found.inter_node.name, found.nics_per_node * found.inter_node.bandwidth * 8e-9) == (name, node_gbit)
