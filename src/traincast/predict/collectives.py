"""Seconds of collectives and transfers (first version; see module docstring later)."""

from __future__ import annotations

import math

from traincast.cluster import Cluster
from traincast.work import Collective, Transfer


def collective_seconds(work: Collective, cluster: Cluster) -> float:
    """Expected seconds of a collective on a cluster: a flat ring over the slowest link it crosses."""
    n = work.num_ranks
    if n <= 1 or work.nbytes <= 0:
        return 0.0
    if work.num_nodes > 1:
        nics = cluster.nics_per_node * cluster.inter_node.bandwidth / max(1, work.sharing)
        per_rank = nics / (1 if work.kind != "all_to_all" else work.ranks_per_node)
        bandwidth = 0.85 * min(cluster.intra_node.bandwidth, per_rank)
        latency = cluster.inter_node.latency_s
    else:
        bandwidth, latency = 0.8 * cluster.intra_node.bandwidth, cluster.intra_node.latency_s
    share = (n - 1) / n * work.nbytes / bandwidth
    steps = math.log2(n) + 1
    if work.kind == "all_reduce":
        return 2 * share + 2 * steps * latency + 10e-6
    if work.kind == "broadcast":
        return work.nbytes / bandwidth + steps * latency + 10e-6
    return share + steps * latency + 10e-6


def transfer_seconds(work: Transfer, cluster: Cluster) -> float:
    """Expected seconds of a message from one rank to another."""
    if work.nbytes <= 0:
        return 0.0
    if work.crosses_nodes:
        fair = cluster.nics_per_node * cluster.inter_node.bandwidth / max(1, work.sharing)
        bandwidth, latency = 0.85 * min(cluster.inter_node.bandwidth, fair), cluster.inter_node.latency_s
    else:
        bandwidth, latency = 0.8 * cluster.intra_node.bandwidth, cluster.intra_node.latency_s
    return work.nbytes / bandwidth + latency + 5e-6
