"""The mesh of ranks: which ranks form a group along an axis, and which links that group crosses.

Ranks are numbered with the tensor axis fastest, then context, data and pipeline, so that tensor groups share a node
if possible (the order of Megatron-LM). The ranks of a stage are also divided for experts (``etp`` fastest, then
``ep``, then ``edp``: the replicas of an expert), and its replicas for sharded states (``shard`` fastest, then
``copies``).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from traincast.cluster import Cluster
from traincast.errors import StrategyError
from traincast.strategy.strategy import Strategy
from traincast.work import Collective, CollectiveKind

Axis: TypeAlias = Literal["tp", "cp", "dp", "pp", "etp", "ep", "edp", "shard", "copies"]
AXES: Final[tuple[Axis, ...]] = ("tp", "cp", "dp", "pp")  # fastest first


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
    """How the groups along some axes are placed: ranks and nodes of each, and how many groups share a node's NICs."""

    num_ranks: int
    num_nodes: int
    sharing: int

    def collective(self, kind: CollectiveKind, nbytes: float) -> Collective:
        """A collective of one of these groups."""
        return Collective(
            kind=kind, nbytes=nbytes, num_ranks=self.num_ranks, num_nodes=self.num_nodes, sharing=self.sharing
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Ranks of a strategy placed on a cluster, packed node by node.

    ``devices_per_node`` is the number of devices in one domain of fast links, which spans ``domain_nodes`` nodes.
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
                f"{product} ranks, but {whole.name} has {cluster.num_nodes} × {cluster.devices_per_node} = "
                f"{cluster.num_devices} devices{beside}; {remedy}, or another number of nodes"
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

    def span(self, *axes: Axis) -> Span:
        """How the groups along ``axes`` are placed; the group of rank 0 represents all.

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


@lru_cache(maxsize=4096)
def _span(mesh: Mesh, axes: tuple[Axis, ...]) -> Span:
    members = mesh.group(0, *axes)
    nodes, counts = np.unique(members // mesh.devices_per_node, return_counts=True)
    on_node = min(mesh.devices_per_node, mesh.num_ranks)
    sharing = max(1, on_node // int(counts.max()) // mesh.domain_nodes) if len(nodes) > 1 else 1
    crossed = len(nodes) * mesh.domain_nodes if len(nodes) > 1 else 1  # whole domains of nodes, or part of one
    return Span(num_ranks=len(members), num_nodes=crossed, sharing=sharing)
