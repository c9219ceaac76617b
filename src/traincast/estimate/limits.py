"""Lower bounds: the least seconds that works can take on a device with a given datasheet.

An operator cannot compute faster than the device's peak rate in its dtype, nor move bytes faster than its memory; a
message cannot leave a device or a node faster than its links. All rates are those of the datasheet, so that nothing
real lies below: convolutions may be computed by an algorithm that needs fewer products, tensors may wait in the L2
cache, and a network may add up sums on their way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.cluster import Cluster, Device
from traincast.estimate.collectives.laws import crosses_nics, islands_of
from traincast.estimate.protocol import Estimates
from traincast.graph import Operator, OpKind
from traincast.graph.vocabulary import MATRIX_KINDS
from traincast.work import Collective, Transfer, Work

Floats = npt.NDArray[np.float64]

FEWER_PRODUCTS: Final = 4.0
"""How many times fewer products a convolution may need: Winograd's F(4 × 4, 3 × 3) (Lavin and Gray, 2016)."""


def least_seconds(works: Sequence[Work], cluster: Cluster) -> Floats:
    """The least seconds of each work; 0 for works of the host."""
    device = cluster.device
    links = link_seconds(works, cluster).sum(axis=1)
    every = zip(works, links.tolist(), strict=True)
    return np.array([_operator(work, device) if isinstance(work, Operator) else link for work, link in every])


def _operator(op: Operator, device: Device) -> float:
    beyond_cache = max(0.0, op.nbytes - 2.0 * device.l2_bytes)  # L2 may hold inputs before, and results after
    fewer = FEWER_PRODUCTS if op.kind is OpKind.CONV else 1.0
    return max(_computing(op, device) / fewer, beyond_cache / device.memory_bandwidth)


def compute_seconds(works: Sequence[Work], cluster: Cluster) -> Floats:
    """Seconds of each work's products at the peak rate of their dtype; 0 for works that are not products."""
    return np.array([_computing(work, cluster.device) if isinstance(work, Operator) else 0.0 for work in works])


def _computing(op: Operator, device: Device) -> float:
    return op.flops / device.peak(op.dtype.value) if op.kind in MATRIX_KINDS else 0.0


def link_seconds(works: Sequence[Work], cluster: Cluster) -> Floats:
    """Seconds for which each work fills a device's links within its node, and its node's NICs: one row each."""
    inside = max(cluster.intra_node.bandwidth, *cluster.subset_bandwidth, 1.0)
    outside = cluster.inter_node.bandwidth * cluster.nics_per_node
    found = np.zeros((len(works), 2))
    for i, work in enumerate(works):
        if isinstance(work, Transfer):
            nbytes = work.nbytes * (work.sharing if work.crosses_nodes else 1)
            found[i] = (0.0, nbytes / outside) if work.crosses_nodes else (nbytes / inside, 0.0)
        elif isinstance(work, Collective) and crosses_nics(work.num_nodes, cluster):
            found[i, 1] = _out_of_node(work, islands_of(work.num_nodes, cluster)) * work.sharing / outside
        elif isinstance(work, Collective):
            found[i, 0] = work.nbytes * _share(work, work.num_ranks) / inside
    return found


def _out_of_node(work: Collective, islands: int) -> float:
    """Bytes that one group sends out of a node at least."""
    senders = work.ranks_per_node if work.kind == "all_to_all" else 1
    return work.nbytes * _share(work, islands) * senders


def _share(work: Collective, members: int) -> float:
    """Share of a buffer that has to leave each of ``members``: once, where the network itself adds up or copies."""
    if members <= 1:
        return 0.0
    return 1.0 if work.kind in ("all_reduce", "broadcast") else (members - 1) / members


def above_limits(estimates: Estimates, works: Sequence[Work], cluster: Cluster) -> Estimates:
    """``estimates`` whose intervals begin at what is possible; expected times stay as they are."""
    least = np.minimum(least_seconds(works, cluster), estimates.seconds)
    return replace(estimates, low=np.maximum(estimates.low, least))
