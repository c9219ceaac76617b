"""The mesh of ranks: which ranks form a group along an axis, and which links that group crosses.

Ranks are numbered with the tensor axis fastest, then context, data and pipeline, so that tensor groups share a node
if possible (the order of Megatron-LM). The ranks of a stage are also divided for experts (``etp`` fastest, then
``ep``, then ``edp``: the replicas of an expert), and its replicas for sharded states (``shard`` fastest, then
``copies``).
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from traincast.cluster import Cluster
from traincast.errors import StrategyError
from traincast.strategy.strategy import Strategy
from traincast.work import Collective, CollectiveKind

Ints: TypeAlias = npt.NDArray[np.int64]
Axis: TypeAlias = Literal["tp", "cp", "dp", "pp", "etp", "ep", "edp", "shard", "copies"]


class Group(enum.IntEnum):
    """Ranks that take part in a task together: all ranks that differ only in their coordinates along ``axes``.

    ``between_replicas``: the group exchanges gradients or shards of states, on the data stream. The traffic of other
    groups is part of a block's work.
    """

    RANK = 0, ()  # one rank
    TENSOR = 1, ("tp",)
    CONTEXT = 2, ("cp",)
    EXPERT = 3, ("ep",)  # ranks that divide the experts among them
    EXPERT_TENSOR = 4, ("etp",)  # ranks that share an expert
    DATA = 5, ("dp", "cp"), True  # data and context ranks share gradients
    SHARD = 6, ("shard",), True  # replicas that share the states of one replica
    COPIES = 7, ("copies",), True  # replicas that hold the same share
    EXPERT_DATA = 8, ("edp",), True  # ranks that hold the same expert
    TABLE = 9, ("dp", "cp")  # replicas that exchange rows of embedding tables

    axes: tuple[Axis, ...]
    between_replicas: bool

    def __new__(cls, number: int, axes: tuple[Axis, ...] = (), between_replicas: bool = False) -> Self:
        """A member is an integer that also has ``axes`` and ``between_replicas``."""
        member = int.__new__(cls, number)
        member._value_ = number
        member.axes = axes
        member.between_replicas = between_replicas
        return member


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """How the groups along some axes are placed: ranks and nodes of each, and how many groups share a node's NICs.

    ``axes`` are set only if the mesh is mixed. The other figures are then those of the worst group.
    """

    num_ranks: int
    num_nodes: int
    sharing: int
    axes: tuple[Axis, ...] = ()

    def collective(self, kind: CollectiveKind, nbytes: float) -> Collective:
        """A collective of one of these groups."""
        return Collective(
            kind=kind,
            nbytes=nbytes,
            num_ranks=self.num_ranks,
            num_nodes=self.num_nodes,
            sharing=self.sharing,
            axes=self.axes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Ranks of a strategy placed on a cluster, packed node by node.

    ``devices_per_node`` is the number of devices in one domain of fast links, which spans ``domain_nodes`` nodes. The
    mesh of a mixed cluster has ``sizes``: pairs of (nodes, devices in each of them), in the order of ranks.
    """

    dp: int
    tp: int
    pp: int
    cp: int
    devices_per_node: int
    domain_nodes: int = 1
    ep: int = 1
    etp: int = 1
    shard: int = 1
    sizes: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, strategy: Strategy, cluster: Cluster) -> Mesh:
        """Places ``strategy`` on ``cluster``; raises :class:`StrategyError` unless there is one device per rank.

        Nodes that hold only parameter servers do not count.
        """
        whole, cluster = cluster, workers_of(cluster, strategy)
        if strategy.num_ranks != cluster.num_devices:
            product = f"dp·cp·tp·pp = {strategy.dp}·{strategy.cp}·{strategy.tp}·{strategy.pp} = {strategy.num_ranks}"
            others = strategy.cp * strategy.tp * strategy.pp
            remedy = (
                f"set dp={cluster.num_devices // others}"
                if cluster.num_devices % others == 0
                else f"choose degrees whose product is {cluster.num_devices}"
            )
            beside = f" beside server_nodes={strategy.server_nodes}" if strategy.server_nodes else ""
            raise StrategyError(
                f"{product} ranks, but {whole.name} has {cluster.size_text} = {cluster.num_devices} devices{beside}; "
                f"{remedy}, or another number of nodes"
            )
        return cls(
            dp=strategy.dp,
            tp=strategy.tp,
            pp=strategy.pp,
            cp=strategy.cp,
            devices_per_node=cluster.domain_devices,
            domain_nodes=cluster.domain_devices // cluster.devices_per_node,
            ep=strategy.ep,
            etp=strategy.expert_tp,
            shard=strategy.shard or strategy.dp * strategy.cp,
            sizes=tuple((part.num_nodes, part.devices_per_node) for part in cluster.parts),
        )

    def degree(self, axis: Axis) -> int:
        """Number of ranks along ``axis``."""
        match axis:
            case "edp":
                return self.dp * self.cp * self.tp // (self.ep * self.etp)
            case "copies":
                return self.dp * self.cp // self.shard
            case _:
                degree: int = getattr(self, axis)
                return degree

    def stride(self, axis: Axis) -> int:
        """Distance in rank number between neighbours along ``axis``."""
        match axis:
            case "tp" | "etp":
                return 1
            case "cp" | "shard":
                return self.tp
            case "dp":
                return self.tp * self.cp
            case "pp":
                return self.tp * self.cp * self.dp
            case "ep":
                return self.etp
            case "edp":
                return self.etp * self.ep
            case "copies":
                return self.tp * self.shard

    @property
    def num_ranks(self) -> int:
        """The number of all ranks."""
        return self.dp * self.tp * self.pp * self.cp

    def rank(self, *, tp: int = 0, cp: int = 0, dp: int = 0, pp: int = 0) -> int:
        """The rank at these coordinates."""
        return tp + self.tp * (cp + self.cp * (dp + self.dp * pp))

    def coordinate(self, rank: int, axis: Axis) -> int:
        """The coordinate of ``rank`` along ``axis``."""
        return rank // self.stride(axis) % self.degree(axis)

    def group(self, rank: int, *axes: Axis) -> npt.NDArray[np.int64]:
        """All ranks that have the coordinates of ``rank`` except along ``axes``."""
        members = np.array([rank], dtype=np.int64)
        for axis in axes:
            base = members - self.coordinate(rank, axis) * self.stride(axis)
            members = (base[:, None] + np.arange(self.degree(axis)) * self.stride(axis)).ravel()
        return np.sort(members)

    @property
    def mixed(self) -> bool:
        """Whether nodes differ, so that groups along the same axes may have links of different speeds."""
        return bool(self.sizes)

    def node_of(self, rank: int) -> int:
        """The node of ``rank``; nodes of one domain of fast links count as one."""
        if not self.sizes:
            return rank // self.devices_per_node
        return int(np.searchsorted(_first_ranks(self.sizes), rank, side="right")) - 1

    def device_of(self, rank: int) -> int:
        """The number of the device of ``rank`` within its node."""
        if not self.sizes:
            return rank % self.devices_per_node
        return rank - int(_first_ranks(self.sizes)[self.node_of(rank)])

    def nodes(self) -> Ints:
        """The node of every rank."""
        rank = np.arange(self.num_ranks)
        if not self.sizes:
            return rank // self.devices_per_node
        return np.searchsorted(_first_ranks(self.sizes), rank, side="right") - 1

    def groups(self, axes: tuple[Axis, ...]) -> Ints:
        """For every rank, the first rank of its group along ``axes``."""
        rank = np.arange(self.num_ranks)
        first = rank.copy()
        for axis in axes:
            first -= rank // self.stride(axis) % self.degree(axis) * self.stride(axis)
        return first

    def span(self, *axes: Axis) -> Span:
        """How the groups along ``axes`` are placed; the group of rank 0 represents all, unless the mesh is mixed.

        ``sharing`` is the number of these groups that have members on one node and so share its NICs.
        """
        return _span(self, axes)


def workers_of(cluster: Cluster, strategy: Strategy) -> Cluster:
    """The part of ``cluster`` that runs ranks: all nodes but those that hold only parameter servers."""
    hosts = sum(host.num_nodes for host in cluster.hosts)
    if strategy.server_nodes < hosts:
        names = "+".join(f"{host.name}:{host.num_nodes}" for host in cluster.hosts)
        raise StrategyError(
            f"server_nodes={strategy.server_nodes} with {names}: only parameter servers can run on nodes without "
            f"accelerators; set servers and server_nodes={hosts}, or leave out these nodes"
        )
    if strategy.server_nodes >= cluster.num_nodes + hosts:
        raise StrategyError(
            f"server_nodes={strategy.server_nodes}, but {cluster.name} has {cluster.num_nodes + hosts} nodes in all "
            "and workers need at least one; use more nodes, or fewer server_nodes"
        )
    return cluster.split(strategy.server_nodes)[0]


@lru_cache(maxsize=256)
def _first_ranks(sizes: tuple[tuple[int, int], ...]) -> Ints:
    """The first rank of every node."""
    devices = np.repeat([size for _, size in sizes], [nodes for nodes, _ in sizes])
    return np.asarray(np.cumsum(devices) - devices, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlaces:
    """Where groups are, as columns: one entry for each pair of a group and a node that has members of it.

    ``leader`` is the first rank of the group and ``members`` the number of its ranks on ``node``. The group has members
    on ``nodes`` nodes. ``sharing`` groups send through the NICs of the node; it is 1 for a group on a single node.
    """

    leader: Ints
    node: Ints
    members: Ints
    nodes: Ints
    sharing: Ints


@lru_cache(maxsize=1024)
def group_places(mesh: Mesh, axes: tuple[Axis, ...]) -> GroupPlaces:
    """Where the groups of ``mesh`` along ``axes`` are."""
    leader, node = mesh.groups(axes), mesh.nodes()
    pairs, members = np.unique(np.stack([leader, node]), axis=1, return_counts=True)
    nodes = np.bincount(pairs[0], minlength=mesh.num_ranks)[pairs[0]]
    crossing = np.bincount(pairs[1], weights=nodes > 1)
    sharing = np.where(nodes > 1, crossing[pairs[1]], 1).astype(np.int64)
    return GroupPlaces(leader=pairs[0], node=pairs[1], members=members, nodes=nodes, sharing=sharing)


@lru_cache(maxsize=4096)
def _span(mesh: Mesh, axes: tuple[Axis, ...]) -> Span:
    if mesh.mixed:
        places = group_places(mesh, axes)
        num_ranks = math.prod(mesh.degree(axis) for axis in axes)
        return Span(
            num_ranks=num_ranks, num_nodes=int(places.nodes.max()), sharing=int(places.sharing.max()), axes=axes
        )
    members = mesh.group(0, *axes)
    nodes, counts = np.unique(members // mesh.devices_per_node, return_counts=True)
    on_node = min(mesh.devices_per_node, mesh.num_ranks)
    sharing = max(1, on_node // int(counts.max()) // mesh.domain_nodes) if len(nodes) > 1 else 1
    crossed = len(nodes) * mesh.domain_nodes if len(nodes) > 1 else 1  # whole domains of nodes, or part of one
    return Span(num_ranks=len(members), num_nodes=crossed, sharing=sharing)
