"""Which device a text means: the spellings of the measured tables, and what memory and form settle."""

from __future__ import annotations

import pytest

from traincast import UnknownNameError
from traincast.cluster import find_device
from traincast.cluster.match import open_variants

SPELLINGS: dict[str, list[str]] = {
    "a100-pcie-40gb": ["NVIDIA A100-PCIe-40GB"],
    "a100-pcie-80gb": [
        "NVIDIA A100-80GB-PCIe?",
        "NVIDIA A100-PCIe-80GB",
        "NVIDIA_A100_80GB_PCIe",
        "a100_pairwise_nvlink",
    ],
    "a100-sxm4-40gb": ["a100_40gb", "A100 40GB with 1600 Gbps node-node interconnect (RoCE)", "p4d.24xlarge"],
    "a100-sxm4-80gb": [
        "NVIDIA A100-SXM4-80GB",
        "A100-SXM4-80GB",
        "A100-SXM4",
        "A100",
        "a100_80gb",
        "a100_dgx",
        "a100_sxm",
        "A100-80GB SXM (Selene)",
        "A100 80GB with 1600 Gbps node-node interconnect (RoCE)",
        "single 8-GPU A100 node (variant not stated in data file)",
        "multi-node A100 cluster (variant/NIC not stated in data file)",
    ],
    "a40": ["NVIDIA A40", "a40_pairwise_nvlink"],
    "arc-pro-b60": [
        "Intel Arc Pro B60",
        "Intel(R) Graphics [0xe211]",
        "Intel(R) Arc(TM) Pro B60 Graphics",
        "b60",
    ],
    "b200-sxm": ["NVIDIA B200", "NVIDIA B200-SXM", "B200", "B200-SXM", "8x B200-SXM", "DGX-B200", "b200_sxm"],
    "b300-sxm": ["NVIDIA B300 SXM6 AC", "NVIDIA B300-SXM", "B300", "DGX-B300", "b300_sxm"],
    "gb200": ["NVIDIA GB200", "GB200", "DGX-GB200", "GB200 NVL72"],
    "gb300": ["NVIDIA GB300", "GB300", "DGX-GB300"],
    "gh200-120gb": ["NVIDIA GH200-120GB", "NVIDIA GH200 480GB", "GH200 Grace Hopper"],
    "gtx-1080-ti": ["NVIDIA GTX 1080 Ti", "NV_1080Ti", "GeForce GTX1080Ti"],
    "h100-pcie-80gb": ["NVIDIA H100-80GB-PCIe?", "h100_pairwise_nvlink", "NVIDIA H100 PCIe"],
    "h100-sxm5-80gb": [
        "NVIDIA H100-SXM5-80GB",
        "NVIDIA H100 80GB HBM3",
        "NVIDIA_H100_80GB_HBM3",
        "H100-SXM5-80GB",
        "H100",
        "h100_80gb",
        "h100_sxm",
        "h100_dgx",
        "H100SXM",
        "8xH100",
        "DGX-H100",
        "H100 80GB BF16 (Large Scale, >= 128 GPUs)",
        "H100-80GB x8 nodes, NVLink intra / EFA inter (per playbook text, not in data file)",
    ],
    "h200-sxm": ["NVIDIA H200", "NVIDIA H200-SXM", "h200_sxm"],
    "k40": ["NVIDIA Tesla K40"],
    "k80": ["NVIDIA Tesla K80"],
    "knl-7250": ["Intel KNL 7250", "IA_KNL7250"],
    "l4": ["NVIDIA L4", "NVIDIA_L4"],
    "l40s": ["NVIDIA L40S", "l40s"],
    "m40": ["NVIDIA Tesla M40", "NV_M40"],
    "m60": ["NVIDIA Tesla M60"],
    "mi100": ["AMD Instinct MI100", "AMD_Instinct_MI100"],
    "mi210": ["AMD Instinct MI210", "AMD_Instinct_MI210"],
    "mi25": ["AMD MI25"],
    "mi250-gcd": ["AMD Instinct MI250", "AMD_Instinct_MI250"],
    "mi300x": ["AMD Instinct MI300X OAM", "MI300X"],
    "p100-pcie-16gb": ["NVIDIA Tesla P100-PCIe-16GB", "NVIDIA Tesla P100", "NV_P100"],
    "p4": ["NVIDIA Tesla P4"],
    "rtx-pro-6000": [
        "NVIDIA RTX PRO 6000 Server",
        "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        "rtx_pro_6000_server",
    ],
    "t4": ["NVIDIA Tesla T4", "Tesla T4"],
    "titan-x-maxwell": ["NVIDIA Titan X (Maxwell)", "NV_TitanX"],
    "titan-x-pascal": ["NVIDIA Titan X (Pascal)", "NV_TitanX_Pascal"],
    "titan-xp": ["NVIDIA Titan Xp", "TITAN Xp"],
    "v100-pcie-32gb": ["NVIDIA Tesla V100-PCIe-32GB", "Tesla_V100-PCIE-32GB"],
    "v100-sxm2-16gb": ["NVIDIA Tesla V100", "NVIDIA Tesla V100-SXM2", "Tesla V100-SXM2-16GB"],
    "v100-sxm3-32gb": ["Tesla V100-SXM3-32GB"],
    "vega-fe": ["AMD Vega FE"],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in SPELLINGS.items() for text in texts])
def test_spellings_of_measured_tables_are_understood(name: str, text: str) -> None:
    assert find_device(text).name == name


@pytest.mark.parametrize(
    ("text", "memory_gb", "form", "name"),
    [
        ("V100", 16, "DGX-1", "v100-sxm2-16gb"),
        ("V100", 32, "DGX-1", "v100-sxm2-32gb"),
        ("V100", 32, "DGX-V100", "v100-sxm2-32gb"),
        ("V100", 32, "DGX-2", "v100-sxm3-32gb"),
        ("V100", 32, "DGX-2H", "v100-sxm3-32gb-450w"),
        ("V100", 32, None, "v100-sxm2-32gb"),
        ("V100", 32, "PCIe", "v100-pcie-32gb"),
        ("A100", 80, None, "a100-sxm4-80gb"),
        ("A100", 40, "DGX-A100", "a100-sxm4-40gb"),
        ("A100", 40, "PCIe", "a100-pcie-40gb"),
        ("A100", float("nan"), None, "a100-sxm4-80gb"),
        ("H200", 141, None, "h200-sxm"),
        ("MI250", None, "card", "mi250"),
    ],
)
def test_memory_and_form_settle_what_a_name_leaves_open(
    text: str, memory_gb: float | None, form: str | None, name: str
) -> None:
    assert find_device(text, memory_gb, form).name == name


@pytest.mark.parametrize("text", ["", "  ", "TPU v1", "X100", "gpu", "H1000", "AA100", "\n", "p4x"])
def test_an_unknown_device_is_refused(text: str) -> None:
    with pytest.raises(UnknownNameError, match="unknown device") as caught:
        find_device(text)
    assert "\n" not in str(caught.value)


def test_what_a_text_leaves_open_is_told() -> None:
    assert open_variants("A100-SXM4") == ("a100-sxm4-80gb", "a100-sxm4-40gb")
    assert open_variants("A100-SXM4", 40.0) == ("a100-sxm4-40gb",)
    assert open_variants("H100") == ("h100-sxm5-80gb", "h100-pcie-80gb", "h100-sxm5-96gb")
    assert open_variants("H100 96GB HBM2e") == ("h100-sxm5-96gb",)
    assert open_variants("H100", None, "DGX-H100") == ("h100-sxm5-80gb",)


@pytest.mark.parametrize("text", ["Ascend 910B", "Cambricon MLU370", "Kunlun P40", "TPU v1"])
def test_devices_of_other_makers_are_not_taken_for_ours(text: str) -> None:
    with pytest.raises(UnknownNameError):
        find_device(text)
