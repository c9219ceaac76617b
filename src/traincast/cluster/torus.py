"""The links of a group of devices in a torus, as pure functions of a cluster.

A domain of D devices is a torus of d axes with k = D^(1/d) devices each. Every device has 2·d links, two on each axis,
of B/(2·d) each, where B is ``intra_node.bandwidth``. A group of n devices is a box that a compiler lays out along whole
axes first: f = ⌊log_k n⌋ axes are filled, and the rest, n / k^f, is part of one more axis.

TPUs are such tori (Jouppi et al., "TPU v4", ISCA 2023), and so are the chips of a Trainium server.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from traincast.cluster.hardware import Cluster

_ROUNDING = 1e-9


class Box(NamedTuple):
    """A group of devices in a torus: axes that it fills, devices on its one partly filled axis (1: none), and k."""

    filled: int
    rest: float
    side: float

    @property
    def hops(self) -> float:
        """Links that the farthest message crosses, on closed axes: k/2 on each filled axis, all of the rest."""
        return self.filled * self.side / 2.0 + max(0.0, self.rest - 1.0)


def box_of(cluster: Cluster, num_devices: int) -> Box:
    """Returns the box that ``num_devices`` devices of one domain of ``cluster`` are laid out in."""
    whole = max(2, cluster.domain_devices)
    side = math.pow(whole, 1.0 / cluster.torus_dims)
    devices = min(max(1, num_devices), whole)
    filled = min(cluster.torus_dims, int(math.log(devices) / math.log(side) + _ROUNDING))
    rest = devices / math.pow(side, filled)
    return Box(filled, 1.0 if rest < 1.0 + _ROUNDING else rest, side)


def torus_bandwidth(cluster: Cluster, num_devices: int) -> float:
    """Bytes/s per direction at which each device of a group sends and receives in a ring over all its axes.

    A filled axis that is closed gives both of its links. A line gives one: the device at its end receives everything
    over a single link. (2 f + [rest > 1]) / (2 d) · B with closed axes, (f + [rest > 1]) / (2 d) · B with lines.
    """
    box = box_of(cluster, num_devices)
    each = 2.0 if box.side >= cluster.torus_wrap * (1.0 - _ROUNDING) else 1.0
    links = max(1.0, each * box.filled + (1.0 if box.rest > 1.0 else 0.0))
    return cluster.intra_node.bandwidth * links / (2.0 * cluster.torus_dims)


def torus_exchange_bandwidth(cluster: Cluster, num_devices: int) -> float:
    """Bytes/s that each device of a group sends if all send to all: messages cross k/4 links of each axis on average.

    A line of n devices has n/3 links between two of its devices, and carries them in both directions.
    """
    box = box_of(cluster, num_devices)
    closed = box.side >= cluster.torus_wrap * (1.0 - _ROUNDING)
    longest = max(box.side / (4.0 if closed else 2.0) if box.filled else 0.0, box.rest / 2.0 if box.rest > 1.0 else 0.0)
    of_axis = cluster.intra_node.bandwidth / cluster.torus_dims
    return of_axis / max(0.5, longest)
