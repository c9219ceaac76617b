"""Cluster files with nodes that differ: parts, rates of links, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documents import fences
from traincast import FileFormatError, RequestError, load_cluster, load_device

NODE = """
[node]
device = "v100-sxm2-32gb"
devices_per_node = 1
nics_per_node = 1
intra_topology = "none"
inter_topology = "none"
intra_node = { name = "none", bandwidth = 10e9, latency_s = 1e-6 }
inter_node = { name = "Ethernet", bandwidth = 125e6, latency_s = 50e-6 }
"""


def written(folder: Path, text: str, name: str = "bench.toml") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_the_files_of_the_page_describe_what_it_says(tmp_path: Path) -> None:
    bench, slow = fences("docs/mixed.md", "toml")
    cluster = load_cluster(written(tmp_path, bench))
    assert (cluster.name, cluster.num_nodes, cluster.num_devices) == ("bench", 4, 4)
    told = [(p.num_nodes, p.device.name, p.inter_node.bandwidth, p.inter_node.latency_s) for p in cluster.parts]
    v100, h100 = "v100-sxm2-32gb", "h100-sxm5-80gb"
    assert told == [(2, v100, 125e6, 50e-6), (1, h100, 25e6, 50e-6), (1, h100, 1.25e9, 50e-6)]
    assert [part.price_per_node_hour for part in cluster.parts[1:]] == [load_device(h100).price_per_hour] * 2
    a100 = load_cluster(written(tmp_path, slow))
    assert [(p.num_nodes, p.inter_node.bandwidth) for p in a100.parts] == [(2, 25e9), (1, 6.25e9), (1, 25e9)]
    assert a100.num_devices == 32


def test_rates_of_the_cluster_list_the_nodes_of_all_parts(tmp_path: Path) -> None:
    text = f'{NODE}\n[cluster]\nlink_rates = ["1 Gbit/s", "200Mbps", 125e6]\n[[parts]]\nnum_nodes = 2\n[[parts]]\n'
    cluster = load_cluster(written(tmp_path, text + 'device = "t4"\n'))
    assert [(p.num_nodes, p.device.name, p.inter_node.bandwidth) for p in cluster.parts] == [
        (1, "v100-sxm2-32gb", 125e6), (1, "v100-sxm2-32gb", 25e6), (1, "t4", 125e6),
    ]  # fmt: skip


def test_nodes_that_turn_out_equal_are_a_plain_cluster(tmp_path: Path) -> None:
    plain = load_cluster(written(tmp_path, f"{NODE}\n[cluster]\nnum_nodes = 3\n"))
    parts = load_cluster(written(tmp_path, f"{NODE}\n[[parts]]\nnum_nodes = 2\n[[parts]]\n"))
    rates = load_cluster(written(tmp_path, f"{NODE}\n[cluster]\nlink_rates = [125e6, 125e6, '1 Gbit/s']\n"))
    assert parts == plain == rates
    assert not plain.parts


def test_a_file_with_parts_joins_other_nodes(tmp_path: Path) -> None:
    path = written(tmp_path, f"{NODE}\n[[parts]]\n[[parts]]\ndevice = 't4'\n")
    both = load_cluster(f"{path}+dgx-1-v100:2x4")
    assert (both.size_text, both.num_devices, both.name) == ("2 × 1 + 2 × 4", 10, "bench+dgx-1-v100")
    hosts = load_cluster(f"{path}+cpu-server:2", hosts=True)
    assert (hosts.num_devices, [host.name for host in hosts.hosts]) == (2, ["cpu-server"])


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[cluster]\nlink_rates = [1e9]\nnum_nodes = 2", r"link_rates lists 1 rates for 2 nodes: list one for each"),
        ("[[parts]]\nlink_rates = [1e9, 1e9]\nnum_nodes = 3", r"link_rates lists 2 rates for 3 nodes"),
        ('[cluster]\nlink_rates = ["fast"]', r"link_rates\[0\] is 'fast': expected a data rate above zero"),
        ("[cluster]\nlink_rates = [1.0]", r"link_rates\[0\] is 1.0: expected a number from 1000000 to 1e\+15"),
        ("[cluster]\nlink_rates = [true]", r"link_rates\[0\] is True: expected a number or a text"),
        ("[[parts]]\nspeed = 2", r"\[\[parts\]\] 1 has unknown key 'speed'"),
        ("[[parts]]\n[[parts]]\nnum_nodes = 0", r"\[\[parts\]\] 2.num_nodes is 0: expected a whole number from 1"),
        ("[[parts]]\ndevice = 'h1000'", "unknown device 'h1000'"),
        ("[parts]\nnum_nodes = 2", r"expected one or more \[\[parts\]\] tables"),
    ],
)  # fmt: skip
def test_wrong_parts_are_refused_with_one_line(tmp_path: Path, text: str, line: str) -> None:
    with pytest.raises((FileFormatError, RequestError), match=line) as error:
        load_cluster(written(tmp_path, f"{NODE}\n{text}\n"))
    assert "\n" not in str(error.value)


def test_a_file_that_lists_its_nodes_has_a_fixed_number_and_is_not_extended(tmp_path: Path) -> None:
    path = written(tmp_path, f"{NODE}\n[[parts]]\n[[parts]]\ndevice = 't4'\n")
    with pytest.raises(RequestError, match="lists its nodes one by one; leave out :4"):
        load_cluster(f"{path}:4")
    other = written(tmp_path, 'extends = "bench.toml"\n[cluster]\noversubscription = 2.0\n', "other.toml")
    with pytest.raises(FileFormatError, match=r"other\.toml extends bench\.toml, which lists its nodes one by one"):
        load_cluster(other)
