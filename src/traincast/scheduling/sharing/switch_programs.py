"""What a job sends through the uplinks of the leaf switches that its nodes are below.

If g of its n nodes are below one switch, a node sends (n − g)/(n − 1) of its bytes through the uplink, as in
:func:`traincast.cluster.topology.inter_bandwidth_factor`. So a job that uses the share w of the NICs of all its nodes
uses w · g · B · (n − g)/(n − 1) / U of an uplink of U bytes/s, where a node has NICs of B bytes/s.

Long messages do not reach the rate of a NIC, and an uplink that is the bottleneck is no better: two jobs whose messages
it bounds take twice as long each. So weights count from what long messages reach.
"""

from __future__ import annotations

from typing import Final

from traincast.cluster import Cluster
from traincast.cluster.topology import inter_bandwidth_factor
from traincast.estimate import CostModel
from traincast.forecast import Forecast
from traincast.scheduling.sharing.programs import node_program
from traincast.scheduling.sharing.together import StepProgram
from traincast.work import Collective

_LONG: Final = float(1 << 30)
"""Bytes of a message whose time is all bandwidth."""


def switch_program(forecast: Forecast, uplink: float) -> StepProgram:
    """Return the step of a forecast as a program that shares uplinks of ``uplink`` bytes/s, and nothing else.

    ``group_nodes`` nodes of the forecast's cluster are below one switch.
    """
    cluster = forecast.request.cluster
    n, g = cluster.num_nodes, cluster.group_nodes
    if n <= g:
        return node_program(forecast).only()
    demand = g * cluster.inter_node.bandwidth * cluster.nics_per_node * (n - g) / (n - 1) / uplink
    reached = reached_share(cluster, forecast.cost_model)
    return node_program(forecast).below_switches(demand / reached).only("switch_receive", "switch_send")


def reached_share(cluster: Cluster, cost_model: CostModel) -> float:
    """Return the share of its NICs, or of what uplinks leave of them, that a long all_reduce of all nodes reaches."""
    n = cluster.num_nodes
    work = Collective(kind="all_reduce", nbytes=_LONG, num_ranks=n * cluster.devices_per_node, num_nodes=n)
    seconds = float(cost_model.estimate([work], cluster).seconds[0])
    rate = 2.0 * (n - 1) / n * _LONG / seconds
    links = cluster.inter_node.bandwidth * cluster.nics_per_node * inter_bandwidth_factor(cluster, n)
    return min(1.0, rate / links)
