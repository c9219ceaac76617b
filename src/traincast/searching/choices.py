"""The clusters to choose from: numbers of nodes, and devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from traincast.cluster import Cluster, find_device, find_node, load_cluster, node_names
from traincast.errors import RequestError, expect

_MOST_CLUSTERS: Final = 64


def clusters_to_try(cluster: str | Cluster, nodes: Sequence[int], devices: Sequence[str]) -> list[Cluster]:
    """Return the cluster with each number of ``nodes`` and each of ``devices``; unchanged if both are empty."""
    expect("cluster", cluster, (str, Cluster), "a name such as dgx-h100:4, or a Cluster")
    given = load_cluster(cluster, whole_nodes=bool(nodes)) if isinstance(cluster, str) else cluster
    if given.parts and (nodes or devices):
        raise RequestError(
            f"{given.name} has nodes of several kinds: neither their number nor their device can vary; "
            "omit nodes and devices"
        )
    kinds = [_with_device(given, name) for name in devices] or [given]
    found = [replace(kind, num_nodes=count) for kind in kinds for count in nodes or (given.num_nodes,)]
    if len(found) > _MOST_CLUSTERS:
        raise RequestError(f"{len(found)} clusters to choose from: at most {_MOST_CLUSTERS} are searched; name fewer")
    return found


def _with_device(given: Cluster, name: str) -> Cluster:
    """Return the node type ``name``, or the usual node type of the device ``name`` with the same number per node."""
    if name in node_names():
        return load_cluster(name)
    device = find_device(name)
    return given if device.name == given.device.name else find_node(device, given.devices_per_node)
