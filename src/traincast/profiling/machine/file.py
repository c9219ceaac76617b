"""Write what was measured on this machine as a cluster file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from traincast import files
from traincast.cluster.architecture import architecture_names, load_architecture
from traincast.cluster.catalog import load_cluster, load_device
from traincast.cluster.hardware import PROCESSOR
from traincast.cluster.match import GENERIC, find_device, own_name
from traincast.cluster.schema import read_file
from traincast.errors import FileFormatError, RequestError, TraincastError
from traincast.estimate.operators.efficiency import INTERVALS
from traincast.profiling.machine.figures import MachineFigures

_REACHED: Final = INTERVALS["gemm"][0]
"""What the best timed product reaches of the rate that the file calls the peak.

No forecast is faster than the peak. Products of a model may be faster than the square ones that were timed, by as much
as the lower end of their interval says. So the peak lies there, and not at the best of a few sizes: a forecast at the
measured rate then keeps an interval on both sides.
"""
_SHORTEST_S: Final = 1e-6
"""Least ``kernel_floor_s`` that a file may state."""


def check_cluster_file(path: Path) -> None:
    """Refuse an output that cannot be written, or that exists and is not a cluster file."""
    if path.suffix != ".toml":
        raise RequestError(f"cannot write {path}: a cluster file is TOML, so its name must end in .toml")
    if path.exists():
        try:
            read_file(path)
        except TraincastError as error:
            raise FileFormatError(
                f"{path} exists and is not a cluster file: move it away, or choose another name ({error})"
            ) from error
    files.check_output(path)


def machine_toml(found: MachineFigures, *, name: str) -> str:
    """Return the cluster file; ``found.assumed`` grows by what had to be taken from the catalog."""
    lines = [
        "# Written by `traincast profile machine`. Every figure was measured here unless its comment says otherwise."
    ]
    known = _known_device(found)
    lines += _device_lines(found) if known is None else _known_device_lines(found, known)
    return "\n".join([*lines, *_node_lines(found), "", "[cluster]", f"name = {json.dumps(name)}", "num_nodes = 1", ""])


def save_machine(text: str, path: Path) -> None:
    """Write a cluster file, and check that it can be read."""
    files.write_text(path, text)
    load_cluster(str(path))


def _known_device(found: MachineFigures) -> str | None:
    """The GPU's name in the catalog, if it has one: then datasheet rates and learned times stay in use."""
    if found.device == "cpu":
        return None
    try:
        return find_device(found.facts["name"]).name
    except TraincastError:
        return None


def _known_device_lines(found: MachineFigures, name: str) -> list[str]:
    device = load_device(name)
    fractions = {f"gemm_{dtype}": rate / device.peak(dtype) for dtype, rate in found.rates.items()}
    fractions["memory"] = found.value("memory bandwidth") / device.memory_bandwidth
    return ["", "[device]", f'extends = "{name}"', "", "[device.achievable]", *_numbers(fractions)]


def _device_lines(found: MachineFigures) -> list[str]:
    facts, rates = found.facts, {dtype: rate / _REACHED for dtype, rate in found.rates.items()}
    peak = rates["fp32"]
    generic = load_device(GENERIC)
    architecture, vendor, watts = PROCESSOR, "generic", generic.tdp_w / generic.num_sms * facts["num_sms"]
    if found.device == "cuda":
        capability = facts["capability"]
        major = capability.partition(".")[0]
        known = {text: name for name in architecture_names() for text in load_architecture(name).capabilities}
        architecture = known.get(capability, known.get(major, "unknown"))
        vendor, watts = "gpu", 300.0
    found.assumed.append(f"tdp_w = {watts:.0f}: not measured, so energy is only an order of magnitude")
    cache = found.value("cache in effect") if found.has("cache in effect") else facts["cache_bytes"] or 1 << 20
    fractions = {
        "gemm": _REACHED,
        "conv": found.value("convolution fp32") / peak,
        "attention": found.value("attention") / rates.get("fp16" if found.device == "cuda" else "fp32", peak),
        "attention_backward": found.value("attention backward") / peak,
        "memory": 1.0,
        "kernel_floor_s": max(_SHORTEST_S, found.value("shortest operator")),
    }
    return [
        "",
        "[device]  # one process" if found.device == "cpu" else "[device]",
        f"name = {json.dumps(own_name(facts['name']))}",
        f'vendor = "{vendor}"',
        f'architecture = "{architecture}"',
        f"memory_bytes = {facts['memory_bytes']:.4g}  # stated by the system",
        f"memory_bandwidth = {found.value('memory bandwidth'):.4g}",
        f"l2_bytes = {cache:.4g}",
        f"num_sms = {facts['num_sms']}  # threads of a process"
        if found.device == "cpu"
        else f"num_sms = {facts['num_sms']}",
        f"clock_hz = {facts['clock_hz']:.4g}  # stated by the system",
        f"tdp_w = {watts:.1f}  # from the catalog, not measured",
        'source = "traincast profile machine"',
        "",
        f"[device.peak_flops]  # best rate of square products, which reach {_REACHED:g} of the peak",
        *(f"{dtype} = {rate:.4g}" for dtype, rate in rates.items()),
        "",
        "[device.achievable]  # fractions of these rates",
        *_numbers({name: min(10.0, value) for name, value in fractions.items()}),
    ]


def _node_lines(found: MachineFigures) -> list[str]:
    server = load_cluster("cpu-server")
    cpu = found.device == "cpu"
    latency, bandwidth, name = server.intra_node.latency_s, server.intra_node.bandwidth, server.intra_node.name
    if found.has("link latency"):
        latency, bandwidth = found.value("link latency"), found.value("link bandwidth")
        name = "gloo over loopback" if cpu else "nccl"
    network = server.inter_node
    found.assumed.append(f"inter_node = {network.name}: one machine cannot measure a network; replace it")
    lines = [
        "",
        "[node]",
        f"devices_per_node = {found.facts['devices']}" + ("  # processes with a core for each thread" if cpu else ""),
        f'intra_topology = "{"none" if found.facts["devices"] == 1 else "pcie-tree"}"',
        f'intra_node = {{ name = "{name}", bandwidth = {bandwidth:.4g}, latency_s = {latency:.4g} }}',
        "nics_per_node = 1",
        f'inter_node = {{ name = "{network.name}", bandwidth = {network.bandwidth:.4g}, '
        f"latency_s = {network.latency_s:.4g} }}  # from the catalog, not measured: replace it",
        'inter_topology = "fat-tree"',
        f"launch_s = {found.value('launch'):.4g}",
        f"host_memory_bytes = {found.facts['host_memory_bytes']:.4g}  # stated by the system",
    ]
    if cpu:
        lines.append(f"host_memory_bandwidth = {found.value('memory bandwidth'):.4g}")
    return lines


def _numbers(values: dict[str, float]) -> list[str]:
    return [f"{name} = {value:.4g}" for name, value in values.items()]
