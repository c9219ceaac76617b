"""The machines that rows of measured steps name: devices, nodes and the network between them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from traincast.cluster import Cluster, Device, find_device, find_node
from traincast.cluster.interconnect import says_adapters, says_network, usual_count
from traincast.cluster.match import open_variants, stated_memory
from traincast.cluster.topology import part_of_node
from traincast.errors import TraincastError, UnknownNameError
from traincast.measured.dialect import Said, vocabulary
from traincast.measured.run import contradiction, unstated
from traincast.tables import Row, RowError, figure, text, whole
from traincast.units import GIB

_SAME_POWER: Final = 0.05
_SAME_MEMORY: Final = 0.1
"""How far stated memory may be from that of the catalog: usable and whole memory differ."""
_NETWORK: Final = "network between nodes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """What rows say of their machines; comments in ``machines.toml`` explain each entry."""

    power: Said
    slices: tuple[Said, ...]
    with_processor: tuple[str, ...]
    nvlink: Said
    memory_in_use: Said
    saves_memory: Said
    padded_lengths: tuple[int, ...]
    padded_encoders: tuple[str, ...]


def part_of(cluster: Cluster, devices: int) -> Cluster:
    """Return the part of ``cluster`` with this many devices: whole nodes, or part of one node."""
    if devices % cluster.devices_per_node == 0:
        return cluster.with_nodes(devices // cluster.devices_per_node)
    if devices < cluster.devices_per_node:
        return part_of_node(cluster, cluster.device, devices).with_nodes(1)
    raise RowError(f"{devices} GPUs do not fill nodes of {cluster.devices_per_node}")


def cluster_of(row: Row, assumed: list[str], *, instead: str = "") -> Cluster:
    """Return the nodes that a row ran on, by its own columns; ``instead`` says what helps if its device is unknown."""
    gpu, system, network = (text(row, key) for key in ("gpu", "hardware", "interconnect"))
    if not gpu:
        raise RowError("gpu is not stated")
    words, memory = vocabulary(Machines), figure(row, "gpu_mem_gb")
    form = f"{system} sxm" if words.nvlink(row) else system
    try:
        device = find_device(gpu, memory, form)
    except UnknownNameError:
        raise RowError(f"device {gpu[:60]!r} is not in the catalog{instead}") from None
    device = _with_memory(device, memory or stated_memory(gpu) or stated_memory(system), assumed)
    devices, nodes, stated = whole(row, "n_gpus"), whole(row, "n_nodes", 0), whole(row, "gpus_per_node", 0)
    if nodes and (devices % nodes or (stated and nodes * min(stated, devices) != devices)):
        raise RowError(f"n_gpus={devices}, n_nodes={nodes} and {stated} GPUs per node contradict each other")
    most = min(devices, stated or (devices // nodes if nodes else usual_count(device)))
    per_node = next(d for d in range(most, 0, -1) if devices % d == 0)
    if len(open_variants(gpu, memory, form)) > 1:
        assumed.append(unstated("GPU variant", device.name))
    if devices > 1 and not stated and not nodes:
        assumed.append(unstated("GPUs per node", per_node))
    elif per_node < most:
        assumed.append(contradiction("gpus_per_node", "n_gpus", f"{per_node}, since {devices} do not fill {stated}"))
    place = in_slices(row, _nodes(device, devices, per_node, network, system, assumed))
    power = words.power.find(row)
    if power is None or abs(float(power[1]) / device.tdp_w - 1) <= _SAME_POWER:
        return place
    return place.with_power_limit(float(power[1]))


def in_slices(row: Row, place: Cluster) -> Cluster:
    """Return the nodes of a torus in as many slices as a row states; other nodes, and nodes without a count, as is."""
    if place.intra_topology != "torus":
        return place
    found = next(filter(None, (said.find(row) for said in vocabulary(Machines).slices)), None)
    slices = int(found[1]) if found else 0
    if slices < 1 or place.num_nodes % slices:
        return place
    return replace(place, domain_nodes=place.num_nodes // slices)


def _nodes(  # noqa: PLR0917
    device: Device, devices: int, per_node: int, network: str, system: str, assumed: list[str]
) -> Cluster:
    """Return the nodes that hold ``devices``; a network that the texts do not tell is assumed."""
    node = find_node(device, per_node, network or None, system=system or None)
    usual = f"{node.nics_per_node} × {node.inter_node.name}"
    if devices > per_node and not says_network(device, network, system=system):
        assumed.append(f"network {network[:40]!r} not known: {usual}" if network else unstated(_NETWORK, usual))
    elif devices > per_node and not says_adapters(device, network, system=system):
        assumed.append(unstated("network adapters of a node", usual))
    return node.with_nodes(devices // per_node)


def check_device(written: str, cluster: Cluster) -> None:
    """Refuse a row whose device, as ``written``, has another architecture than that of ``cluster``."""
    try:
        device = find_device(written)
    except TraincastError:
        return  # not in the catalog: the cluster's own file describes it
    if device.architecture != cluster.device.architecture:
        raise RowError(f"ran on {device.name}, but {cluster.name} has {cluster.device.name}")


def _with_memory(device: Device, stated_gb: float | None, assumed: list[str]) -> Device:
    """Return ``device`` with the memory that a row states, if no variant of it in the catalog has as much."""
    if not stated_gb or abs(stated_gb * GIB / device.memory_bytes - 1) <= _SAME_MEMORY:
        return device
    if device.name.startswith(vocabulary(Machines).with_processor):
        return device
    assumed.append(f"{device.name} has another memory in the catalog: {stated_gb:g} GiB as stated")
    return replace(device, memory_bytes=stated_gb * GIB)
