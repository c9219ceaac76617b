"""What the works of a plan draw from a machine while they run, in seconds of each resource's peak.

A work that moves b bytes over a link of B bytes/s draws b/B seconds of the link, however long it takes. Divided by the
duration of the work, that is the share of the link that it uses meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.cluster import Cluster
from traincast.estimate.collectives.laws import crosses_nics, islands_of
from traincast.graph import Operator
from traincast.strategy.plan import Plan
from traincast.work import Collective, HostCopy, Transfer, Work

Floats = npt.NDArray[np.float64]

AMOUNTS: Final = ("flops", "memory", "exchanged", "transferred", "host")
"""Amounts of a work: products, memory traffic, bytes that a rank both sends and receives, bytes that it sends to one
receiver, and bytes between a device and its host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedLinks:
    """The links whose use counts as received and sent.

    ``leaves_node``: those of the nodes to the network; otherwise those of each device within its node.
    ``through_host``: messages go through the host, as those of parameter servers do.
    """

    leaves_node: bool
    through_host: bool = False


def network_of(works: Sequence[Work], cluster: Cluster, *, through_host: bool = False) -> WatchedLinks:
    """Returns the links to watch: the NICs of the nodes if any message leaves its node, else the links inside it."""
    return WatchedLinks(leaves_node=any(_crosses(work, cluster) for work in works), through_host=through_host)


def _crosses(work: Work, cluster: Cluster) -> bool:
    match work:
        case Transfer():
            return work.crosses_nodes and work.nbytes > 0.0
        case Collective():
            return crosses_nics(work.num_nodes, cluster) and work.nbytes > 0.0
        case _:
            return False


def draws_of(plan: Plan, cluster: Cluster, network: WatchedLinks, *, on_device: bool) -> dict[str, Floats]:
    """Returns, for each of :data:`AMOUNTS` and for ``kernel``, the amount of every cost of ``plan``.

    Amounts are seconds of the peak on one rank of ``cluster``. ``kernel`` is 1 where the device runs a kernel and 0
    elsewhere. ``on_device``: messages are moved by kernels, and through the device's memory (NCCL); otherwise hosts
    move them (gloo, parameter servers).
    """
    found = {name: np.zeros(plan.num_costs) for name in (*AMOUNTS, "kernel")}
    of_works = _of_works(plan.works, cluster, network, on_device=on_device)
    behind = [overlap.work if overlap.waited else -1 for overlap in plan.overlaps]
    for name, table in found.items():
        amounts = np.append(of_works[name], 0.0)
        leaves = np.concatenate([amounts[:-1], amounts[np.array(behind, dtype=np.int64)]])
        table[: len(leaves)] = leaves
        for number, segment in enumerate(plan.segments):
            at = plan.num_leaves + 3 * number + 1
            table[at] = 1.0 if name == "kernel" else leaves[segment.works].sum()
    slowed = plan.num_leaves - len(behind) + np.flatnonzero(np.array(behind, dtype=np.int64) < 0)
    found["kernel"][slowed] = 1.0  # the time by which kernels are slowed down
    return found


def _of_works(works: Sequence[Work], cluster: Cluster, network: WatchedLinks, *, on_device: bool) -> dict[str, Floats]:
    """The amounts of works, as columns."""
    device = cluster.device
    nics = cluster.inter_node.bandwidth * cluster.nics_per_node * max(1, cluster.domain_nodes)
    links = max(cluster.intra_node.bandwidth, *cluster.subset_bandwidth, 1.0)
    links = cluster.host_bandwidth if network.through_host else links
    rows = np.zeros((len(works), len(AMOUNTS) + 1))
    for number, work in enumerate(works):
        match work:
            case Operator():
                rows[number, [0, 1, 5]] = (
                    work.flops / device.peak(work.dtype.value),
                    work.nbytes / device.memory_bandwidth,
                    1.0,
                )
            case Collective() | Transfer():
                outside, inside = sent_bytes(work, cluster)
                seen = outside / nics if network.leaves_node else inside / links
                rows[number, 2 if isinstance(work, Collective) else 3] = seen
                if network.through_host:
                    rows[number, 4] = work.nbytes / cluster.host_bandwidth
                if on_device:
                    rows[number, [1, 5]] = 2.0 * (outside + inside) / device.memory_bandwidth, 1.0
            case HostCopy():
                rows[number, 4] = work.nbytes / cluster.host_bandwidth
                rows[number, 1] = work.nbytes / device.memory_bandwidth
            case _:
                pass
    return dict(zip((*AMOUNTS, "kernel"), rows.T, strict=True))


def sent_bytes(work: Collective | Transfer, cluster: Cluster) -> tuple[float, float]:
    """Returns the bytes that one rank sends out of its node, and those that it sends to others inside its node.

    A collective sends what hierarchical rings send: among m members, an all_reduce of S bytes sends 2(m−1)/m · S, any
    other collective (m−1)/m · S. Between nodes, the ranks of a node share what leaves it.
    """
    if isinstance(work, Transfer):
        return (work.nbytes, 0.0) if work.crosses_nodes else (0.0, work.nbytes)
    rounds = 2.0 if work.kind == "all_reduce" else 1.0
    if not crosses_nics(work.num_nodes, cluster):
        return 0.0, rounds * work.nbytes * _others(work.num_ranks)
    islands = islands_of(work.num_nodes, cluster)
    members = -(-work.num_ranks // islands)
    if work.kind == "all_to_all":  # every rank sends its own buffer, in equal parts to all
        return work.nbytes * _others(islands), work.nbytes * _others(members) / islands
    return rounds * work.nbytes * _others(islands) / members, rounds * work.nbytes * _others(members)


def _others(members: int) -> float:
    return (members - 1) / members if members > 1 else 0.0
