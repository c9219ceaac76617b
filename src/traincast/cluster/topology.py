"""The effect of a network's topology on bandwidth and latency, as pure functions of a cluster.

``g`` is ``cluster.group_nodes`` (nodes below one leaf switch or in one dragonfly group), ``n`` the nodes that
take part, ``s`` the oversubscription, ``d`` = 3 the dims of a torus and ``k`` = n^(1/d) its side.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from traincast.cluster.hardware import Cluster, Device, IntraTopology
from traincast.cluster.torus import torus_bandwidth

_TORUS_DIMS: Final = 3
_BRIDGE_LATENCY_S: Final = 1.5e-6
_SWITCH_SHARE: Final = 0.1
"""Latency of one more switch, as a share of ``inter_node.latency_s``: 0.2 to 0.4 µs of 3."""


def effective_intra_bandwidth(cluster: Cluster, num_devices: int) -> float:
    """Bytes/s per direction that each of the first ``num_devices`` of a node can send to the others.

    In a torus, ``num_devices`` counts devices of a domain (:func:`traincast.cluster.torus.torus_bandwidth`). Elsewhere
    it is ``subset_bandwidth[num_devices - 2]`` if the node states it (meshes, NVLink bridges), otherwise
    ``intra_node.bandwidth``.
    """
    if cluster.intra_topology == "torus":
        return torus_bandwidth(cluster, num_devices)
    index = num_devices - 2
    if 0 <= index < len(cluster.subset_bandwidth):
        return cluster.subset_bandwidth[index]
    return cluster.intra_node.bandwidth


def inter_bandwidth_factor(cluster: Cluster, num_nodes_spanned: int) -> float:
    """Share of a NIC's bandwidth that is left when all of ``n`` nodes send to all others, in (0, 1].

    Fat tree, rail-optimized and dragonfly: a node sends (n − g)/(n − 1) of its bytes out of its group,
    through links with 1/s of the bandwidth: min(1, (n − 1) / (s (n − g))) for n > g, else 1.
    Torus: bisection over demand, min(1, 4 / (d k)). None: 1.
    """
    n = num_nodes_spanned
    if n <= 1 or cluster.inter_topology == "none":
        return 1.0
    if cluster.inter_topology == "torus":
        return min(1.0, 4.0 / (_TORUS_DIMS * math.pow(n, 1 / _TORUS_DIMS)))
    beyond = n - cluster.group_nodes
    return 1.0 if beyond <= 0 else min(1.0, (n - 1) / (cluster.oversubscription * beyond))


def effective_inter_bandwidth(cluster: Cluster, num_nodes_spanned: int) -> float:
    """Bytes/s per direction that one NIC keeps when ``num_nodes_spanned`` nodes exchange all with all."""
    return cluster.inter_node.bandwidth * inter_bandwidth_factor(cluster, num_nodes_spanned)


def nics_of_group(nics: int, devices: int, *, ranks_per_node: int, sharing: int) -> float:
    """NICs that one of ``sharing`` groups can use on a node, if ``ranks_per_node`` of its ranks are there.

    The node has ``nics`` NICs and ``devices`` devices.

    A rank drives the NICs next to it: max(1, NICs · ranks / devices) of them; beyond that, groups share all evenly.
    """
    driven = max(1.0, nics * ranks_per_node / devices)
    return min(driven, nics / max(1, sharing), nics)


def hops(cluster: Cluster, nodes: int) -> float:
    """The factor on ``inter_node.latency_s`` between two distant nodes out of ``nodes``; 1 within a group.

    1 + 0.1 (switches − 1). Fat tree and rail-optimized: 2 t − 1 switches for t = ⌈log_g n⌉ tiers, at most
    three tiers; dragonfly: 3 between groups; torus: d k / 4 on average.
    """
    if nodes <= 1 or cluster.inter_topology == "none":
        return 1.0
    if cluster.inter_topology == "torus":
        switches = max(1.0, _TORUS_DIMS * math.pow(nodes, 1 / _TORUS_DIMS) / 4)
    elif nodes <= cluster.group_nodes:
        switches = 1.0
    elif cluster.inter_topology == "dragonfly":
        switches = 3.0
    else:
        tiers = math.log(nodes) / math.log(max(cluster.group_nodes, 16))
        switches = 2.0 * min(3, max(2, math.ceil(tiers))) - 1.0
    return 1.0 + _SWITCH_SHARE * (switches - 1.0)


def part_of_node(base: Cluster, device: Device, count: int) -> Cluster:
    """Returns ``base`` with ``count`` devices per node and their share of links, NICs, host memory, price and power."""
    share = count / base.devices_per_node
    topology: IntraTopology = base.intra_topology
    link = base.intra_node
    if topology != "torus":  # a torus has the same links, however many devices take part
        link = replace(link, bandwidth=effective_intra_bandwidth(base, count))
    if link.bandwidth > base.intra_node.bandwidth:
        topology, link = "nvlink-mesh", replace(link, name="NVLink bridge", latency_s=_BRIDGE_LATENCY_S)
    elif topology == "none" and count > 1:
        topology = "pcie-tree"
    return replace(
        base,
        device=device,
        devices_per_node=count,
        nics_per_node=max(1, round(base.nics_per_node * share)),
        intra_node=link,
        subset_bandwidth=base.subset_bandwidth[: max(0, count - 2)],
        intra_topology=topology,
        price_per_node_hour=device.price_per_hour * count,
        host_memory_bytes=base.host_memory_bytes * share,
        node_power_w=base.node_power_w * share,
    )
