"""The cluster that a queue of jobs shares: nodes with GPUs, racks and switches, and virtual clusters with quotas."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from traincast.errors import RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine: its GPUs, all of one type, its rack and switch, and the virtual cluster that owns it ("": none)."""

    name: str
    num_gpus: int
    gpu_type: str = ""
    rack: str = ""
    switch: str = ""
    vc: str = ""

    def __post_init__(self) -> None:
        if self.num_gpus < 0:
            raise RequestError(f"node {self.name}: num_gpus={self.num_gpus}: expected a whole number from 0")


class Pool(NamedTuple):
    """Nodes of one GPU type that a job may use, as a set of bits. It is a group of nodes, or part of one."""

    gpu_type: str
    nodes: int
    group: int
    is_whole: bool = True

    def without(self, nodes: int) -> Pool:
        """Return the pool without some of its nodes."""
        return Pool(self.gpu_type, self.nodes & ~nodes, self.group, False) if self.nodes & nodes else self


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedCluster:
    """Nodes in the order in which they fill up, and the most GPUs that a virtual cluster may hold at a time.

    A virtual cluster that owns nodes runs only on these, and no other job does. All other jobs share the nodes without
    an owner. A job never mixes GPU types: the types it may use are tried in the order of the nodes. ``uplink`` is the
    rate of the links from each rack to the rest of the network, in bytes/s and direction; 0 if they limit nobody.
    """

    nodes: tuple[Node, ...]
    quotas: Mapping[str, float] = field(default_factory=dict)
    uplink: float = 0.0

    def __post_init__(self) -> None:
        if not sum(node.num_gpus for node in self.nodes):
            raise RequestError(f"a cluster of {len(self.nodes)} nodes without GPUs: give nodes with GPUs")
        names = {node.name for node in self.nodes}
        if len(names) < len(self.nodes):
            raise RequestError(
                f"{len(self.nodes)} nodes with {len(names)} different names: give each node a name of its own"
            )
        if not 0.0 <= self.uplink < math.inf:
            raise RequestError(f"uplinks of {self.uplink} bytes/s: expected a rate, or 0 if they limit nobody")
        if self.uplink and not any(node.rack or node.switch for node in self.nodes):
            raise RequestError("uplinks need racks: give the nodes per rack, or a list of nodes with racks")
        for vc, quota in self.quotas.items():
            if not quota > 0:
                raise RequestError(f"virtual cluster {vc!r}: quota {quota}: expected a number of GPUs above 0")

    @classmethod
    def uniform(
        cls, num_nodes: int, gpus_per_node: int, *, nodes_per_rack: int = 0, quotas: Mapping[str, float] | None = None
    ) -> SharedCluster:
        """Equal nodes; with ``nodes_per_rack`` also racks, each with its switch."""
        if num_nodes < 1 or gpus_per_node < 1:
            raise RequestError(f"{num_nodes} nodes of {gpus_per_node} GPUs: expected at least one of each")
        racks = [str(n // nodes_per_rack) if nodes_per_rack else "" for n in range(num_nodes)]
        return cls(
            nodes=tuple(
                Node(name=f"node{n}", num_gpus=gpus_per_node, rack=rack, switch=rack) for n, rack in enumerate(racks)
            ),
            quotas=dict(quotas or {}),
        )

    @property
    def num_gpus(self) -> int:
        """Return the number of GPUs of all nodes."""
        return sum(node.num_gpus for node in self.nodes)

    def doubled(self) -> SharedCluster:
        """Return a cluster with twice the nodes and twice the quotas, for what-if questions."""
        more = tuple(
            Node(
                name=f"{n.name}'",
                num_gpus=n.num_gpus,
                gpu_type=n.gpu_type,
                rack=f"{n.rack}'" if n.rack else "",
                switch=f"{n.switch}'" if n.switch else "",
                vc=n.vc,
            )
            for n in self.nodes
        )
        quotas = {vc: 2 * quota for vc, quota in self.quotas.items()}
        return SharedCluster(nodes=self.nodes + more, quotas=quotas, uplink=self.uplink)

    def leaf_switches(self) -> tuple[int, ...]:
        """Return the number of the rack of every node, by whose uplink it reaches other racks."""
        number: dict[tuple[str, str], int] = {}
        return tuple(number.setdefault((node.switch, node.rack), len(number)) for node in self.nodes)


class NodeIndex:
    """The cluster as sets of bits and numbered groups, computed once. Node n is bit n.

    A group is all nodes of one GPU type and owner. ``domains`` are the sets of nodes below one rack, then below one
    switch, then all: from near to far.
    """

    __slots__ = ("cluster", "domains", "full", "group_of", "groups", "largest", "nodes_of_size", "owners", "sizes")

    def __init__(self, cluster: SharedCluster) -> None:
        self.cluster = cluster
        self.sizes: list[int] = [node.num_gpus for node in cluster.nodes]
        self.full: list[int] = [(1 << size) - 1 for size in self.sizes]
        self.largest = max(self.sizes)
        self.nodes_of_size: dict[int, int] = _bits_by(self.sizes)
        keys = [(node.gpu_type, node.vc) for node in cluster.nodes]
        self.groups: list[tuple[str, str]] = list(dict.fromkeys(keys))
        number = {key: at for at, key in enumerate(self.groups)}
        self.group_of: list[int] = [number[key] for key in keys]
        self.owners: set[str] = {node.vc for node in cluster.nodes if node.vc}
        everything = (1 << len(cluster.nodes)) - 1
        racks = [f"{n.switch}/{n.rack}" if n.rack else f"node {n.name}" for n in cluster.nodes]
        switches = [n.switch or f"node {n.name}" for n in cluster.nodes]
        self.domains: tuple[tuple[int, ...], ...] = (
            tuple(_bits_by(racks).values()),
            tuple(_bits_by(switches).values()),
            (everything,),
        )

    def pools(self, *, vc: str, gpu_type: str) -> tuple[Pool, ...]:
        """Return where jobs of a virtual cluster that ask for a GPU type may run: one pool for each possible type."""
        owner = vc if vc in self.owners else ""
        return tuple(
            Pool(kind, _bits(node for node, of in enumerate(self.group_of) if of == group), group)
            for group, (kind, owned_by) in enumerate(self.groups)
            if owned_by == owner and gpu_type in ("", kind)
        )


def _bits(numbers: Iterable[int]) -> int:
    found = 0
    for number in numbers:
        found |= 1 << number
    return found


def _bits_by(values: Sequence[int] | Sequence[str]) -> dict[int, int]:
    """Return a set of positions, as bits, for each value. Integers number themselves, others by first appearance."""
    found: dict[int, int] = {}
    number: dict[object, int] = {}
    for at, value in enumerate(values):
        key = value if isinstance(value, int) else number.setdefault(value, len(number))
        found[key] = found.get(key, 0) | 1 << at
    return found
