"""The catalog: figures against datasheets, a user's own file, bad requests."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from traincast import FileFormatError, RequestError, UnknownNameError, load_cluster, load_device
from traincast.cluster import assumed_nodes, device_names

DATASHEET: list[tuple[str, str, float]] = [
    ("v100-sxm2-16gb", "fp16", 125e12),
    ("v100-pcie-32gb", "fp16", 112e12),
    ("p100-sxm2-16gb", "fp16", 21.2e12),
    ("t4", "fp16", 65e12),
    ("a100-sxm4-80gb", "fp32", 19.5e12),
    ("a100-sxm4-80gb", "tf32", 156e12),
    ("a100-sxm4-80gb", "bf16", 312e12),
    ("h100-sxm5-80gb", "bf16", 989.4e12),
    ("h100-sxm5-80gb", "fp8", 1978.9e12),
    ("h100-pcie-80gb", "bf16", 756e12),
    ("h200-sxm", "fp8", 1978.9e12),
    ("b200-sxm", "bf16", 2.25e15),
    ("b200-sxm", "nvfp4", 9e15),
    ("gb200", "fp8", 5e15),
    ("b300-sxm", "nvfp4", 13.5e15),
    ("gb300", "nvfp4", 15e15),
    ("l40s", "bf16", 362.05e12),
    ("mi250-gcd", "fp16", 181.05e12),
    ("mi300x", "bf16", 1307.4e12),
]
BANDWIDTH: list[tuple[str, float]] = [
    ("k80", 240e9),
    ("v100-sxm2-16gb", 900e9),
    ("a100-sxm4-40gb", 1555e9),
    ("a100-sxm4-80gb", 2039e9),
    ("h100-sxm5-80gb", 3.35e12),
    ("h200-sxm", 4.8e12),
    ("gh200-120gb", 4.0e12),
    ("b200-sxm", 8.0e12),
    ("rtx-pro-6000", 1.597e12),
    ("mi300x", 5.3e12),
]


@pytest.mark.parametrize(("name", "dtype", "flops"), DATASHEET)
def test_dense_rates_are_those_of_the_datasheet(name: str, dtype: str, flops: float) -> None:
    assert load_device(name).peak(dtype) == flops


@pytest.mark.parametrize(("name", "bandwidth"), BANDWIDTH)
def test_memory_bandwidth_is_that_of_the_datasheet(name: str, bandwidth: float) -> None:
    assert load_device(name).memory_bandwidth == bandwidth


@pytest.mark.parametrize(
    ("name", "intra", "nics", "nic", "devices"),
    [
        ("dgx-1-v100", 150e9, 4, 12.5e9, 8),
        ("dgx-2", 150e9, 8, 12.5e9, 16),
        ("dgx-a100", 300e9, 8, 25e9, 8),
        ("dgx-h100", 450e9, 8, 50e9, 8),
        ("dgx-b200", 900e9, 8, 50e9, 8),
        ("p4d.24xlarge", 300e9, 4, 12.5e9, 8),
        ("p5.48xlarge", 450e9, 32, 12.5e9, 8),
        ("alps", 450e9, 4, 25e9, 4),
        ("pcie-t4", 15.75e9, 1, 3.125e9, 4),
    ],
)
def test_links_of_known_nodes(name: str, intra: float, nics: int, nic: float, devices: int) -> None:
    cluster = load_cluster(name)
    assert cluster.intra_node.bandwidth == intra
    assert (cluster.nics_per_node, cluster.inter_node.bandwidth) == (nics, nic)
    assert cluster.devices_per_node == devices


def test_a_node_type_and_a_count_make_a_cluster() -> None:
    cluster = load_cluster("dgx-h100:4")
    assert (cluster.name, cluster.num_nodes, cluster.num_devices) == ("dgx-h100", 4, 32)
    assert cluster.inter_topology == "rail-optimized"
    assert load_cluster(" DGX_H100 : 4 ") == cluster
    assert load_cluster("selene:2").device.name == "a100-sxm4-80gb"


@pytest.mark.parametrize("name", device_names())
def test_a_device_stands_for_the_node_that_it_is_usually_in_and_that_is_said(name: str) -> None:
    cluster = load_cluster(f"{name}:2x1", hosts=True)
    assert (cluster.name, cluster.device, cluster.num_nodes, cluster.devices_per_node) == (
        name,
        load_device(name),
        2,
        1,
    )
    assert cluster.calibration is None
    (said,) = assumed_nodes(cluster)
    assert said.startswith(f"{name} names no node: assumed 2 nodes like ")
    assert ", with 1 device each, " in said


@pytest.mark.parametrize("name", device_names())
def test_a_bare_device_is_one_device_and_that_is_said(name: str) -> None:
    cluster = load_cluster(name, hosts=True)
    assert (cluster.num_devices, cluster) == (1, load_cluster(f"{name}:1x1", hosts=True))
    (said,) = assumed_nodes(cluster)
    assert said.startswith(f"{name} is one device, assumed in a node like ")


def test_a_device_with_nodes_has_whole_nodes_and_one_among_other_nodes_is_one() -> None:
    whole = load_cluster("rtx-4090:2")
    assert (whole.num_nodes, whole.devices_per_node) == (2, 8)
    assert ": assumed 2 nodes like pcie-l40s, with 8 devices each, " in assumed_nodes(whole)[0]
    assert load_cluster("rtx-4090", whole_nodes=True) == whole.with_nodes(1)
    assert [part.num_devices for part in load_cluster("rtx-4090+rtx-4090:1x2+dgx-a100:2").parts] == [1, 2, 16]


def test_more_devices_than_the_usual_node_has_are_refused_with_its_name() -> None:
    with pytest.raises(RequestError, match="pcie-l40s, the usual node of rtx-4090, has 8; ask for more nodes"):
        load_cluster("rtx-4090:1x9")


def test_a_name_like_that_of_a_device_is_answered_with_devices() -> None:
    with pytest.raises(UnknownNameError, match=r"did you mean .*rtx-4090"):
        load_cluster("rtx4090")


def test_the_usual_node_of_a_4090_is_a_pcie_server() -> None:
    cluster, usual = load_cluster("rtx-4090:1x4"), load_cluster("pcie-l40s:1x4")
    assert (cluster.intra_node, cluster.inter_node) == (usual.intra_node, usual.inter_node)
    assert cluster.price_per_node_hour == 4 * 0.69
    assert assumed_nodes(usual) == []


def test_trays_of_an_nvl72_rack_share_one_domain() -> None:
    assert load_cluster("dgx-gb200").domain_devices == 4
    assert load_cluster("dgx-gb200:2").domain_devices == 8
    assert load_cluster("dgx-gb200:36").domain_devices == 72
    assert load_cluster("gb200-nvl72:2").domain_devices == 72
    assert load_cluster("dgx-h100:4").domain_devices == 8


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_file_changes_only_what_it_says(tmp_path: Path) -> None:
    text = 'extends = "dgx-h100"\n[cluster]\nnum_nodes = 16\noversubscription = 2\n[node]\nlaunch_s = 3e-6\n'
    mine, plain = load_cluster(write(tmp_path / "my.toml", text)), load_cluster("dgx-h100")
    assert (mine.name, mine.num_nodes, mine.oversubscription, mine.launch_s) == ("my", 16, 2.0, 3e-6)
    assert mine.source == plain.source
    assert mine == dataclasses.replace(plain, name="my", num_nodes=16, oversubscription=2.0, launch_s=3e-6)
    assert load_cluster(f"{tmp_path / 'my.toml'}:3").num_nodes == 3


def test_a_changed_device_has_a_name_of_its_own(tmp_path: Path) -> None:
    text = 'extends = "dgx-h100"\n[device]\nmemory_bandwidth = 3e12\n[device.peak_flops]\nbf16 = 900e12\n'
    device = load_cluster(write(tmp_path / "slow.toml", text)).device
    assert device.name == "h100-sxm5-80gb~slow"
    assert (device.memory_bandwidth, device.peak("bf16"), device.peak("fp8")) == (3e12, 900e12, 1978.9e12)
    priced = 'extends = "dgx-h100"\n[device]\nprice_per_hour = 2\n[device.achievable]\ngemm = 0.7\n'
    cluster = load_cluster(write(tmp_path / "cheap.toml", priced))
    assert (cluster.device.name, cluster.price_per_node_hour) == ("h100-sxm5-80gb", 16.0)
    assert cluster.device.achievable["gemm"] == 0.7


def test_fewer_devices_do_not_keep_the_price_and_power_of_the_whole_node(tmp_path: Path) -> None:
    half = load_cluster(write(tmp_path / "half.toml", '[node]\nextends = "dgx-h100"\ndevices_per_node = 4\n'))
    assert half.price_per_node_hour == 4 * half.device.price_per_hour
    assert half.node_power_w < load_cluster("dgx-h100").node_power_w


def test_files_may_name_devices_and_nodes_of_other_files(tmp_path: Path) -> None:
    write(tmp_path / "chip.toml", '[device]\nextends = "a100-sxm4-80gb"\nname = "chip"\nclock_hz = 1.2e9\n')
    write(tmp_path / "box.toml", '[node]\nextends = "dgx-a100"\ndevice = "chip.toml"\ndevices_per_node = 4\n')
    top = write(tmp_path / "top.toml", '[cluster]\nnode = "box.toml"\nnum_nodes = 5\ninter_topology = "torus"\n')
    cluster = load_cluster(top)
    assert (cluster.name, cluster.device.name, cluster.num_devices) == ("top", "chip", 20)
    assert (cluster.inter_topology, cluster.device.clock_hz) == ("torus", 1.2e9)
    assert load_device(str(tmp_path / "chip.toml")) == cluster.device
    named = load_cluster(write(tmp_path / "n.toml", 'node = "dgx-a100"\ndevice = "chip.toml"\n'))
    assert (named.device.name, named.devices_per_node) == ("chip", 8)


def test_a_catalog_file_is_itself_a_valid_file_of_a_user() -> None:
    from traincast.cluster.catalog import DATA

    assert load_cluster(str(DATA / "nodes" / "dgx-h100.toml")).device.name == "h100-sxm5-80gb"


@pytest.mark.parametrize(
    "spec",
    [
        "",
        ":",
        ":4",
        "dgx-h100:",
        "dgx-h100:0",
        "dgx-h100:-1",
        "dgx-h100:4.5",
        "dgx-h100:1e3",
        "dgx-h100:nan",
        "dgx-h100:1000001",
        "dgx-h100:99999999999999999999",
        "dgx-h100:٣",
        "dgx-h100:4:2",
        "dgx-h1000",
        "no-such",
        "../secrets",
        "x" * 10_000,
        "missing.toml",
        "/",
        "/dev/null",
        "a\0b.toml",
        "devices/h100.toml:4",
    ],
)
def test_a_bad_request_for_a_cluster_is_refused_in_one_line(spec: str) -> None:
    with pytest.raises(RequestError) as caught:
        load_cluster(spec)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


BASE = 'extends = "dgx-h100"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("[node", "is not valid TOML"),
        ("a = 1\na = 2\n", "is not valid TOML"),
        ("a = " + "[" * 100_000, "is not valid TOML"),
        (BASE + "speed = 3\n", "known are calibration, cluster, device, extends, node"),
        (BASE + "[node]\nnics = 3\n", "unknown key 'nics': did you mean nics_per_node"),
        (BASE + "[device]\nbandwidth = 3\n", "unknown key 'bandwidth'"),
        (BASE + "[cluster]\nnodes = 3\n", "unknown key 'nodes'.*num_nodes"),
        (BASE + "[device.peak_flops]\nfp12 = 3e12\n", "unknown key 'fp12'"),
        (BASE + "[node.inter_node]\nspeed = 3e12\n", "known are bandwidth, latency_s, name"),
        (BASE + "[device]\nmemory_bandwidth = nan\n", "memory_bandwidth is nan"),
        (BASE + "[device]\nmemory_bandwidth = inf\n", "memory_bandwidth is inf"),
        (BASE + "[device]\nmemory_bandwidth = 0\n", "memory_bandwidth is 0"),
        (BASE + "[device]\nmemory_bandwidth = -1e12\n", "memory_bandwidth is -1"),
        (BASE + "[device]\nmemory_bandwidth = 1e30\n", r"expected a number from 1000000 to 1e\+15 \(bytes/s\)"),
        (BASE + "[device]\nmemory_bandwidth = '3e12'\n", "expected a number"),
        (BASE + "[device]\nmemory_bandwidth = true\n", "expected a number"),
        (BASE + "[device]\nnum_sms = 1.5\n", "expected a whole number"),
        (BASE + "[device]\nname = ''\n", "expected a text"),
        (BASE + "[device]\npeak_flops = 3\n", "expected a table"),
        (BASE + "[device.peak_flops]\nbf16 = 0\n", "peak_flops.bf16 is 0"),
        (BASE + "[device.achievable]\ngemm = -0.5\n", "achievable.gemm"),
        (BASE + "[node]\ndevices_per_node = 0\n", "devices_per_node is 0"),
        (BASE + "[node]\nlaunch_s = -1e-6\n", "launch_s"),
        (BASE + "[node]\nintra_topology = 'mesh'\n", "expected one of nvswitch"),
        (BASE + "[node]\nsubset_bandwidth = 5\n", "expected a list of numbers"),
        (BASE + "[node]\nsubset_bandwidth = [0]\n", r"subset_bandwidth\[0\] is 0"),
        (BASE + "[node]\nintra_node = 'NVLink'\n", "expected a table"),
        (BASE + "[cluster]\nnum_nodes = 0\n", "num_nodes is 0"),
        (BASE + "[cluster]\nnum_nodes = 2.0\n", "num_nodes is 2.0"),
        (BASE + "[cluster]\nnum_nodes = 1000001\n", "num_nodes is 1000001"),
        (BASE + "[cluster]\noversubscription = 0.5\n", "oversubscription is 0.5"),
        ("node = 3\n", "expected a table"),
        ("extends = 3\n", "expected a text"),
        ('extends = "dgx-h1000"\n', "did you mean dgx-h100"),
        ('extends = "other.toml"\n', "does not exist"),
        ('extends = "bad.toml"\n', "extend one another in a circle"),
        ('device = "h100"\n', "unknown device 'h100': did you mean"),
        ('device = "h100-sxm5-80gb"\n', "describes no node"),
        ("[cluster]\nnum_nodes = 2\n", "describes no node"),
        ('[node]\ndevice = "t4"\ndevices_per_node = 2\n', "intra_node is missing"),
        ("[node]\ndevices_per_node = 2\n", r"\[node\]\.device is missing"),
    ],
)
def test_a_bad_file_is_refused_in_one_line_that_says_what_to_do(tmp_path: Path, text: str, message: str) -> None:
    spec = write(tmp_path / "bad.toml", text)
    with pytest.raises(RequestError, match=message) as caught:
        load_cluster(spec)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 700


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileFormatError, match="is not valid TOML"):
        load_cluster(str(tmp_path / "bad.toml"))
    (tmp_path / "big.toml").write_bytes(b"#" * 2_000_000)
    with pytest.raises(FileFormatError, match="larger than"):
        load_cluster(str(tmp_path / "big.toml"))


def test_loading_a_cluster_needs_no_heavy_package() -> None:
    code = (
        "import sys, traincast.cluster as c; c.load_cluster('dgx-h100:4'); c.find_device('A100'); "
        "sys.exit(any(m in sys.modules for m in ('numpy', 'torch', 'pandas', 'pyarrow', 'numba')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_part_of_a_node_has_its_share_of_everything() -> None:
    whole, part = load_cluster("dgx-h100:2"), load_cluster("dgx-h100:2x4")
    assert (part.num_nodes, part.devices_per_node, part.num_devices) == (2, 4, 8)
    assert part.nics_per_node == whole.nics_per_node // 2
    assert part.intra_node == whole.intra_node
    assert part.price_per_node_hour == pytest.approx(4 * whole.device.price_per_hour)
    assert load_cluster("dgx-1-v100:1x2").intra_node.bandwidth < load_cluster("dgx-1-v100").intra_node.bandwidth


@pytest.mark.parametrize("spec", ["dgx-h100:1x9", "dgx-h100:1x0", "dgx-h100:1x", "dgx-h100:x4", "dgx-h100:1x2x3"])
def test_a_part_that_a_node_does_not_have_is_refused(spec: str) -> None:
    with pytest.raises(RequestError, match=r"devices in a node|nodes: expected") as caught:
        load_cluster(spec)
    assert "\n" not in str(caught.value)
