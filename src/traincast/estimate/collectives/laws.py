"""Seconds of collectives and transfers: one function per algorithm, and the choice that NCCL would make.

The algorithms are pure functions of bytes, ranks, bandwidth (bytes/s per direction of one rank, or of one
node between nodes) and latency (seconds per message). They take numbers or columns, cost nothing for a
group of one, and never get cheaper with more bytes or more ranks.

Papers: Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH" (2005);
Sanders, Speck, Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (2009);
Hu et al., "Demystifying NCCL" (2025) for protocols.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from traincast.cluster import Cluster
from traincast.cluster.architecture import load_architecture
from traincast.cluster.topology import effective_inter_bandwidth, effective_intra_bandwidth, hops, nics_of_group
from traincast.cluster.torus import box_of, torus_bandwidth, torus_exchange_bandwidth
from traincast.work import Collective, CollectiveKind, Transfer

Column: TypeAlias = npt.NDArray[np.float64]
Amount: TypeAlias = float | Column


def ring_all_reduce(nbytes: Amount, ranks: Amount, bandwidth: Amount, latency: Amount) -> Amount:
    """Reduce-scatter, then all-gather, around a ring: 2(n−1)/n · S/B + 2(n−1) · α (Thakur et al. 2005)."""
    return 2.0 * ring_all_gather(nbytes, ranks, bandwidth, latency)


def ring_all_gather(nbytes: Amount, ranks: Amount, bandwidth: Amount, latency: Amount) -> Amount:
    """Each rank passes on what it received, n−1 times: (n−1)/n · S/B + (n−1) · α, S the whole output."""
    steps = ranks - 1.0
    return steps / ranks * nbytes / bandwidth + steps * latency


def ring_reduce_scatter(nbytes: Amount, ranks: Amount, bandwidth: Amount, latency: Amount) -> Amount:
    """The all-gather run backwards, with additions: (n−1)/n · S/B + (n−1) · α, S the whole input."""
    return ring_all_gather(nbytes, ranks, bandwidth, latency)


def tree_all_reduce(nbytes: Amount, ranks: Amount, bandwidth: Amount, latency: Amount) -> Amount:
    """Up and down two binary trees, each with half of the bytes: min(2, n−1) · S/B + 2 ⌈log₂ n⌉ · α.

    Every rank is an inner node of one tree only, so full bandwidth is kept (Sanders et al. 2009); two ranks
    send each byte once.
    """
    sent = np.minimum(2.0, ranks - 1.0)
    return sent * nbytes / bandwidth + 2.0 * np.ceil(np.log2(ranks)) * latency


def halving_doubling_all_reduce(nbytes: Amount, ranks: Amount, bandwidth: Amount, latency: Amount) -> Amount:
    """Recursive halving, then doubling: 2(n−1)/n · S/B + 2 ⌈log₂ n⌉ · α (Rabenseifner 2004)."""
    return 2.0 * (ranks - 1.0) / ranks * nbytes / bandwidth + 2.0 * np.ceil(np.log2(ranks)) * latency


def multicast_all_reduce(nbytes: Amount, ranks: Amount, bandwidth: Amount, latency: Amount) -> Amount:
    """The switch adds and copies (NVLink SHARP): each rank sends every byte once, S/B + 2α for n > 1."""
    several = np.minimum(1.0, ranks - 1.0)
    return several * (nbytes / bandwidth + 2.0 * latency)


def pairwise_all_to_all(nbytes: Amount, ranks: Amount, bandwidth: Amount, latency: Amount) -> Amount:
    """All n−1 messages of S/n posted at once: (n−1)/n · S/B + ⌈log₂ n⌉ · α.

    The bytes are those of the pairwise exchange (Thakur et al. 2005); its n−1 latencies overlap in NCCL's
    grouped sends and receives, and what is left grows as the logarithm in measurements.
    """
    return (ranks - 1.0) / ranks * nbytes / bandwidth + np.ceil(np.log2(ranks)) * latency


def ring_broadcast(nbytes: Amount, ranks: Amount, bandwidth: Amount, latency: Amount) -> Amount:
    """A pipeline along a chain, one of a series: S/B + ⌈log₂ n⌉ · α for n > 1.

    The root begins the next broadcast while the last ranks still receive this one, so the chain's n−1 latencies are
    hidden but for a few; NCCL's tuner counts one. A broadcast on its own along a binomial tree has ⌈log₂ n⌉ of them
    (Thakur et al. 2005).
    """
    return np.minimum(1.0, ranks - 1.0) * nbytes / bandwidth + np.ceil(np.log2(ranks)) * latency


def point_to_point(nbytes: Amount, bandwidth: Amount, latency: Amount) -> Amount:
    """One message: S/B + α."""
    return nbytes / bandwidth + latency


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """How NCCL moves a chunk: seconds to begin, share of the bandwidth, and latency as multiples of a link's.

    Between nodes, hops of a ring (``inter_latency``) and of a tree (``tree_latency``) differ.
    """

    base_s: float
    share: float
    intra_latency: float
    inter_latency: float
    tree_latency: float


PROTOCOLS: Final = {
    "ll": Protocol(base_s=6.8e-6, share=0.05, intra_latency=0.75, inter_latency=0.9, tree_latency=1.5),
    "ll128": Protocol(base_s=8.8e-6, share=0.6, intra_latency=0.6, inter_latency=1.33, tree_latency=2.5),
    "simple": Protocol(base_s=19e-6, share=1.0, intra_latency=0.5, inter_latency=4.7, tree_latency=4.7),
}
"""LL flags every 8 bytes, LL128 every 128; Simple synchronises per chunk. Fitted on NCCL 2.23–2.29, one node. Latencies
between nodes are near those that NCCL's tuner assumes: 2.7, 4 and 14 µs in a ring, 5, 8.5 and 14 µs in a tree."""

INTRA_RAMP_S: Final = 2.8e-6
INTER_RAMP_S: Final = 10e-6
"""Seconds of traffic lost while links fill, as in :func:`traincast.estimate.operators.roofline.memory_seconds`."""
LINK_SHARE: Final = {"nvswitch": 0.73, "nvlink-mesh": 0.75, "pcie-tree": 0.70, "torus": 0.90, "none": 0.75}
"""Share of a link's stated bandwidth that rings reach inside a node, by topology."""
HOST_BRIDGE_SHARE: Final = 0.62
"""What is left of that when more than two devices without NVLink bridges share the host's PCIe bridges."""
NIC_SHARE: Final = 0.95
"""Share of the NICs' bandwidth that rings and trees reach between nodes."""
MULTICAST_SHARE: Final = 0.64
"""Bytes/s that each rank feeds to reductions in the switch, over what a ring reaches."""
MESSAGE_S: Final = 5e-6
"""Seconds to begin a send and its receive."""
MESSAGE_LINK_SHARE: Final = 0.80
MESSAGE_NIC_SHARE: Final = 0.72
"""Shares of the bandwidth that one pair of ranks reaches, inside a node and through one NIC."""
STAGED_SHARE: Final = {"Omni-Path": 0.5}
"""What is left of that on networks whose messages between devices pass through the host's memory (Omni-Path's PSM2
library leaves the transport to the processor)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """The links that groups of ranks use in a cluster, as columns; an island is a node or an NVLink domain.

    ``intra`` and ``inter`` are achievable bytes/s of one rank inside its island and of the group's share of
    an island's NICs; latencies are seconds per message.
    """

    nbytes: Column
    ranks: Column
    islands: Column
    per_island: Column
    intra: Column
    inter: Column
    intra_latency: Column
    inter_latency: Column


def crosses_nics(num_nodes: int, cluster: Cluster) -> bool:
    """Whether a group over ``num_nodes`` nodes leaves its domain of intra-node links."""
    return num_nodes > max(1, cluster.domain_nodes)


def islands_of(num_nodes: int, cluster: Cluster) -> int:
    """Domains of intra-node links that ``num_nodes`` nodes make up."""
    return -(-max(1, num_nodes) // max(1, cluster.domain_nodes))


def paths(works: Sequence[Collective], cluster: Cluster) -> Paths:
    """The columns of ``works``: the links that they cross, and their share of the bandwidth."""
    link_share = cluster.device.achievable.get("intra_link", LINK_SHARE[cluster.intra_topology])
    nic_share = cluster.device.achievable.get("inter_link", NIC_SHARE)
    known: dict[tuple[int, int, int], tuple[float, ...]] = {}
    rows = []
    for work in works:
        key = (work.num_ranks, work.num_nodes, work.sharing)
        if key not in known:
            known[key] = _path(work, cluster, link_share, nic_share)
        rows.append((max(0.0, work.nbytes), *known[key]))
    columns = np.array(rows, dtype=np.float64).reshape(-1, 8).T
    return Paths(**dict(zip(Paths.__slots__, columns, strict=True)))


def _path(work: Collective, cluster: Cluster, link_share: float, nic_share: float) -> tuple[float, ...]:
    ranks = max(1, work.num_ranks)
    nodes = min(max(1, work.num_nodes), ranks)
    islands = min(ranks, islands_of(work.num_nodes, cluster))
    per_island = -(-ranks // islands)
    per_node = -(-ranks // nodes)
    together = per_island if cluster.intra_topology == "torus" else per_node
    intra = link_share * effective_intra_bandwidth(cluster, together)
    if cluster.intra_topology == "pcie-tree" and per_node > 2 and not cluster.subset_bandwidth:
        intra *= HOST_BRIDGE_SHARE
    nics = nic_bandwidth(cluster, nodes, ranks_per_node=per_node, sharing=work.sharing)
    inter = nic_share * nics * (nodes / islands)
    inter_latency = cluster.inter_node.latency_s * hops(cluster, nodes)
    intra_latency = cluster.intra_node.latency_s * load_architecture(cluster.device.architecture).collective_overhead
    return ranks, islands, per_island, intra, inter, intra_latency, inter_latency


def nic_bandwidth(cluster: Cluster, nodes: int, *, ranks_per_node: int, sharing: int) -> float:
    """Bytes/s of the NICs of a node that one of ``sharing`` groups has, if its ranks can drive as many."""
    whole = cluster.nics_per_node, cluster.devices_per_node
    return nics_of_group(*whole, ranks_per_node=ranks_per_node, sharing=sharing) * effective_inter_bandwidth(
        cluster, nodes
    )


def _filling(p: Paths, sent: Column, bandwidth: Column) -> Column:
    """Seconds lost while links of ``bandwidth`` fill: √(sent · τ / B)."""
    ramp = np.where(p.islands > 1, INTER_RAMP_S, INTRA_RAMP_S)
    seconds: Column = np.sqrt(sent * ramp / bandwidth)
    return seconds


def _narrowest(p: Paths) -> Column:
    """Bytes/s of the narrowest link of a chain through all ranks."""
    crossing = np.where(p.per_island > 1, np.minimum(p.intra, p.inter), p.inter)
    return np.where(p.islands > 1, crossing, p.intra)


def _chain_latency(p: Paths, protocol: Protocol) -> Column:
    """Mean seconds per hop of a ring that enters every island once."""
    crossings = np.where(p.islands > 1, p.islands, 0.0)
    inside = (p.ranks - crossings) * p.intra_latency * protocol.intra_latency
    latency: Column = (crossings * p.inter_latency * protocol.inter_latency + inside) / p.ranks
    return latency


def _ring(p: Paths, protocol: Protocol, kind: CollectiveKind) -> Column:
    """A flat ring through all ranks, island after island."""
    bandwidth = _narrowest(p)
    algorithm = ALGORITHMS[f"ring_{kind}"]
    seconds = algorithm(p.nbytes, p.ranks, bandwidth * protocol.share, _chain_latency(p, protocol))
    sent = (2.0 if kind == "all_reduce" else 1.0) * p.nbytes * (p.ranks - 1.0) / p.ranks
    return np.asarray(seconds + _filling(p, sent, bandwidth))


def _tree(p: Paths, protocol: Protocol, kind: CollectiveKind) -> Column:
    """Two trees over the islands and a chain inside each: up, then down."""
    intra_latency = p.intra_latency * protocol.intra_latency
    between = tree_all_reduce(p.nbytes, p.islands, p.inter * protocol.share, p.inter_latency * protocol.tree_latency)
    chain = 2.0 * (p.per_island - 1.0) * intra_latency
    inside = np.where(p.per_island > 1, 2.0 * p.nbytes / (p.intra * protocol.share), 0.0)
    latency = 2.0 * np.ceil(np.log2(p.islands)) * p.inter_latency * protocol.tree_latency
    seconds = chain + np.maximum(between, inside + latency)
    return np.asarray(seconds + _filling(p, 2.0 * p.nbytes, _narrowest(p)))


def _multicast(p: Paths, protocol: Protocol, kind: CollectiveKind) -> Column:
    """Reduction in the switch, then a tree between islands on what each rail holds."""
    inside = multicast_all_reduce(
        p.nbytes, p.per_island, MULTICAST_SHARE * p.intra, p.intra_latency * protocol.intra_latency
    )
    between = tree_all_reduce(p.nbytes, p.islands, p.inter, p.inter_latency * protocol.tree_latency)
    return np.asarray(np.maximum(inside, between) + _filling(p, 2.0 * p.nbytes, _narrowest(p)))


def _exchange(p: Paths, protocol: Protocol, kind: CollectiveKind) -> Column:
    """All to all: what stays in the island and what leaves it go at the same time."""
    staying = p.nbytes * p.per_island / p.ranks
    inside = pairwise_all_to_all(staying, p.per_island, p.intra * protocol.share, p.intra_latency)
    leaving = p.nbytes * p.per_island
    latency = p.inter_latency * protocol.tree_latency
    outside = pairwise_all_to_all(leaving, p.islands, p.inter * protocol.share, latency)
    filling = np.maximum(_filling(p, staying, p.intra), _filling(p, leaving * (p.islands - 1.0) / p.islands, p.inter))
    return np.asarray(np.maximum(inside, outside) + filling)


ALGORITHMS: Final = {
    "ring_all_reduce": ring_all_reduce,
    "ring_all_gather": ring_all_gather,
    "ring_reduce_scatter": ring_reduce_scatter,
    "ring_broadcast": ring_broadcast,
    "tree_all_reduce": tree_all_reduce,
    "halving_doubling_all_reduce": halving_doubling_all_reduce,
    "multicast_all_reduce": multicast_all_reduce,
    "pairwise_all_to_all": pairwise_all_to_all,
}
"""The flat algorithms: functions of (bytes, ranks, bandwidth, latency)."""

CHOICES: Final[dict[CollectiveKind, tuple[Callable[[Paths, Protocol, CollectiveKind], Column], ...]]] = {
    "all_reduce": (_ring, _tree, _multicast),
    "all_gather": (_ring,),
    "reduce_scatter": (_ring,),
    "broadcast": (_ring,),
    "all_to_all": (_exchange,),
}
"""What NCCL's tuner chooses from, per collective."""


def collective_seconds(works: Sequence[Collective], cluster: Cluster) -> Column:
    """Seconds of each collective: the fastest algorithm and protocol of those that NCCL would try."""
    seconds = np.zeros(len(works))
    overhead = load_architecture(cluster.device.architecture).collective_overhead
    for kind, choices in CHOICES.items():
        where = np.array([i for i, work in enumerate(works) if work.kind == kind], dtype=np.intp)
        if not where.size:
            continue
        p = paths([works[i] for i in where], cluster)
        if cluster.intra_topology == "torus":
            seconds[where] = np.where((p.ranks > 1) & (p.nbytes > 0), torus_seconds(p, kind, cluster), 0.0)
            continue
        fastest = np.full(where.size, np.inf)
        for algorithm in choices:
            for protocol in _protocols(algorithm is _multicast, cluster):
                begin = overhead * protocol.base_s
                np.minimum(fastest, begin + algorithm(p, protocol, kind), out=fastest)
        seconds[where] = np.where((p.ranks > 1) & (p.nbytes > 0), fastest, 0.0)
    return seconds


TORUS_BEGIN_S: Final = 2e-6
"""Seconds to begin a collective that is part of a compiled program."""


def torus_seconds(p: Paths, kind: CollectiveKind, cluster: Cluster) -> Column:
    """Seconds of collectives in a torus, which a compiler runs along all axes of the group at once.

    Gathering inside: (n−1)/n · S/B + h · α for a box of n devices whose farthest message crosses h links
    (:mod:`traincast.cluster.torus`); between N domains, (N−1)/N · S/Bₙ + (N−1) · αₙ. Reducing is gathering backwards,
    an all-reduce is both. If all send to all, the bytes that leave a device cross several links.
    """
    boxes = [box_of(cluster, int(n)) for n in p.per_island.tolist()]
    latency = np.array([box.hops for box in boxes]) * p.intra_latency
    if kind == "all_to_all":
        share = p.intra / np.array([torus_bandwidth(cluster, int(n)) for n in p.per_island.tolist()])
        rate = share * np.array([torus_exchange_bandwidth(cluster, int(n)) for n in p.per_island.tolist()])
        inside = (p.per_island - 1.0) / p.ranks * p.nbytes / rate + latency
        outside = pairwise_all_to_all(p.nbytes * p.per_island, p.islands, p.inter, p.inter_latency)
        return np.asarray(TORUS_BEGIN_S + np.maximum(inside, outside))
    once = (p.per_island - 1.0) / p.per_island * p.nbytes / p.intra + latency
    once = once + ring_all_gather(p.nbytes, p.islands, p.inter, p.inter_latency)
    return np.asarray(TORUS_BEGIN_S + (2.0 if kind == "all_reduce" else 1.0) * once)


def _protocols(in_switch: bool, cluster: Cluster) -> tuple[Protocol, ...]:
    """Protocols to try; reductions in the switch know one, where the switch can reduce at all."""
    if not in_switch:
        return tuple(PROTOCOLS.values())
    able = cluster.intra_topology == "nvswitch" and load_architecture(cluster.device.architecture).multicast
    return (PROTOCOLS["simple"],) if able else ()


def transfer_seconds(works: Sequence[Transfer], cluster: Cluster) -> Column:
    """Seconds of each message; several that share a node's NICs have a fair part of them."""
    inside = cluster.num_nodes <= cluster.domain_nodes
    link = MESSAGE_LINK_SHARE * effective_intra_bandwidth(cluster, 2)
    card = MESSAGE_NIC_SHARE * STAGED_SHARE.get(cluster.inter_node.name, 1.0)
    seconds = np.zeros(len(works))
    for i, work in enumerate(works):
        if work.nbytes <= 0:
            continue
        if work.crosses_nodes and not inside:
            nics = nic_bandwidth(cluster, 2, ranks_per_node=1, sharing=work.sharing)
            message = point_to_point(work.nbytes, card * nics, 4.0 * cluster.inter_node.latency_s)
        else:
            message = point_to_point(work.nbytes, link, cluster.intra_node.latency_s)
        seconds[i] = MESSAGE_S + message
    return seconds
