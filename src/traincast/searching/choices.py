"""The clusters to choose from: numbers of nodes, and devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from traincast.cluster import Cluster, find_device, find_node, load_cluster, node_names
from traincast.errors import RequestError, expect

_MOST_CLUSTERS: Final = 64
_MOST_NODES: Final = 1_000_000


def parse_nodes(text: str) -> tuple[int, ...]:
    """Return the numbers of nodes in a list (``8,12,16``), a range (``8..128``: 8, its doublings and 128), or both."""
    found: set[int] = set()
    for part in filter(None, (p.strip() for p in text.split(","))):
        low, dots, high = part.partition("..")
        try:
            first, last = int(low), int(high) if dots else int(low)
        except ValueError:
            raise RequestError(f"nodes {part!r}: expected a number, or a range such as 8..128") from None
        if not 1 <= first <= last <= _MOST_NODES:
            raise RequestError(f"nodes {part!r}: expected numbers from 1 to {_MOST_NODES}, the smaller one first")
        found |= {first << n for n in range((last // first).bit_length())} | {last}
    if not found:
        raise RequestError(f"nodes {text!r}: expected numbers of nodes, such as 8..128")
    return tuple(sorted(found))


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
