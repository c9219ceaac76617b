"""The features of collectives for a learned model: the route of the ranks, the software, and the physical baseline.

A *route* is the hardware between ranks: the device, its links inside a node, and the NICs if the group leaves its
domain of intra-node links. A request is matched with measurements by its route, never by the name of a machine, because
clusters with the same route behave in the same way. A *condition* is the software that moves the bytes: library,
version and dtype.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from traincast.cluster import Cluster, effective_intra_bandwidth, find_device, find_node, load_device
from traincast.cluster.hardware import PROCESSOR
from traincast.cluster.match import GENERIC, is_processor, measured_name
from traincast.errors import RequestError
from traincast.estimate.collectives.laws import collective_seconds, islands_of, nic_bandwidth, transfer_seconds
from traincast.tables import dtype_in
from traincast.work import Collective, CollectiveKind, Transfer

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Message: TypeAlias = Collective | Transfer

KINDS: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "p2p")
_COLLECTIVES: Final[dict[str, CollectiveKind]] = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_to_all": "all_to_all",
    "broadcast": "broadcast",
}
_BYTES: Final = ("char", "uint8")
"""What NCCL's tests call int8 beside its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The hardware between the ranks of a group: links inside an island of ``per_node`` ranks, NICs between islands.

    ``inside`` is ``switch``, ``direct`` (a mesh or a bridge), ``pcie``, ``host`` (processes of one processor) or
    ``none`` (one rank in each node). ``intra_bandwidth`` is what one rank can send inside its island, and
    ``nic_bandwidth`` the group's share of a node's NICs, both in bytes/s per direction. ``intra_bandwidth`` is 0 if
    ``inside`` is ``host``, because no datasheet states it; ``nic_bandwidth`` is 0 if the group lies within one node.
    """

    device: str
    architecture: str
    inside: str
    intra_bandwidth: float
    network: str
    nic_bandwidth: float
    per_node: int

    @property
    def crosses(self) -> bool:
        """Whether the group leaves its island."""
        return bool(self.network)

    @property
    def key(self) -> str:
        """The route as a text that is equal for equal hardware; bandwidths to two digits."""
        inside = f"{self.inside} {self.intra_bandwidth:.1e}" if self.intra_bandwidth else self.inside
        between = f" | {self.per_node} on {self.network} {self.nic_bandwidth:.1e}" if self.crosses else ""
        return f"{self.device} | {inside}{between}"

    def likeness(self, other: Route) -> float:
        """Distance of ``other`` from this route: 0 for equal links on a similar device, infinite for other links.

        Siblings have the same architecture and kinds of links; their distance is that of the bandwidths, in octaves.
        """
        kind = (self.architecture, self.inside, self.network, self.per_node)
        if kind != (other.architecture, other.inside, other.network, other.per_node):
            return math.inf
        pairs = ((self.intra_bandwidth, other.intra_bandwidth), (self.nic_bandwidth, other.nic_bandwidth))
        return sum(abs(math.log2(a / b)) for a, b in pairs if a and b)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Condition:
    """The software of a measurement (library family, version, dtype of the elements) and what ran at the same time.

    Settings of a collective library are no part of it: what a job meets is the median over them. Kernels that a
    framework brings along (``custom``) are families of their own, one for each way they are launched; frameworks that
    bring the same kernel are versions of it. ``beside_compute`` says that the ranks computed during the collective,
    ``concurrent_groups`` how many groups ran the same collective at once, this one included.
    """

    family: str
    version: str = ""
    dtype: str = ""
    beside_compute: bool = False
    concurrent_groups: int = 1

    @property
    def is_library(self) -> bool:
        """Whether this is a general collective library rather than a framework's own kernel."""
        return "custom" not in self.family

    @property
    def pattern(self) -> str:
        """What ran at the same time, as a text: empty for a collective measured in isolation.

        >>> Condition(family="gloo", beside_compute=True, concurrent_groups=2).pattern
        'beside compute, 2 groups'
        """
        groups = f"{self.concurrent_groups} groups" if self.concurrent_groups > 1 else ""
        return ", ".join(filter(None, ("beside compute" if self.beside_compute else "", groups)))

    @property
    def preference(self) -> tuple[object, ...]:
        """Sorts isolated measurements first, then what training most likely runs: libraries, wide dtypes, newest."""
        numbers = tuple(-int(n) for n in re.findall(r"\d+", self.version)[:4])
        software = (not self.is_library, self.dtype == "int8", not numbers, numbers)
        return (self.beside_compute, self.concurrent_groups, *software, self.family, self.version, self.dtype)


@lru_cache(maxsize=4096)
def condition_of(
    library: str, variant: str = "", dtype: str = "", beside_compute: bool = False, concurrent_groups: int = 1
) -> Condition:
    """The condition that a row's ``library`` (``NCCL 2.27.3``), ``variant``, ``dtype`` and pattern describe."""
    words = library.replace("(", " ").replace(")", " ").split() or ["unknown"]
    split = next((i for i, word in enumerate(words) if i and (word[0].isdigit() or "." in word)), len(words))
    family, version = " ".join(words[:split]), " ".join(words[split:])
    if "custom" in family and variant:
        family, version = f"custom {variant.partition('/')[0]}", f"{words[0]} {version}"
    name = dtype_in(dtype)
    return Condition(
        family=family,
        version=version,
        dtype="int8" if name in _BYTES else name,
        beside_compute=beside_compute,
        concurrent_groups=concurrent_groups,
    )


@lru_cache(maxsize=4096)
def measured_cluster(
    device: str, *, ranks_per_node: int, nodes: int, interconnect: str = "", system: str = ""
) -> Cluster:
    """The cluster that a row of measurements ran on, from its own columns."""
    name = measured_name(device)
    known = load_device(GENERIC) if is_processor(name) else find_device(device)
    node = find_node(known, ranks_per_node, interconnect or None, system=system or None)
    if known.name == GENERIC:
        node = replace(node, device=replace(node.device, name=name))
    return node.with_nodes(nodes)


def message_of(kind: str, nbytes: float, ranks: int, nodes: int) -> Message:
    """The work that a row of measurements timed; ``kind`` is one of :data:`KINDS`."""
    if kind == "p2p":
        return Transfer(nbytes=nbytes, crosses_nodes=nodes > 1)
    if kind not in _COLLECTIVES:
        raise RequestError(f"unknown collective {kind!r}: known are {', '.join(KINDS)}")
    return Collective(kind=_COLLECTIVES[kind], nbytes=nbytes, num_ranks=ranks, num_nodes=nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """Messages on one cluster as columns: kind (index into :data:`KINDS`), bytes, ranks, islands, and route.

    An island is a node, or all nodes of one domain of intra-node links. ``route`` indexes ``routes``.
    """

    kind: Ints
    nbytes: Floats
    ranks: Ints
    islands: Ints
    route: Ints
    routes: tuple[Route, ...]


def messages(works: Sequence[Message], cluster: Cluster) -> Messages:
    """The columns of ``works``; sizes that are NaN count as zero."""
    routes: dict[Route, int] = {}
    known: dict[tuple[int, int, bool], tuple[int, int]] = {}
    rows = []
    for work in works:
        if isinstance(work, Transfer):
            kind, ranks, nodes = KINDS.index("p2p"), 2, 2 if work.crosses_nodes else 1
        else:
            ranks = max(1, work.num_ranks)
            kind, nodes = KINDS.index(work.kind), min(max(1, work.num_nodes), ranks)
        stated = nodes if isinstance(work, Transfer) else work.num_nodes
        where = (ranks, stated, isinstance(work, Transfer))
        if where not in known:
            islands = min(ranks, islands_of(stated, cluster))
            route = route_of(cluster, ranks=ranks, nodes=nodes, islands=islands)
            known[where] = islands, routes.setdefault(route, len(routes))
        rows.append((kind, ranks, *known[where]))
    columns = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    nbytes = np.array([work.nbytes if work.nbytes > 0 else 0.0 for work in works], dtype=np.float64)
    return Messages(
        kind=columns[0],
        nbytes=nbytes,
        ranks=columns[1],
        islands=columns[2],
        route=columns[3],
        routes=tuple(routes),
    )


def route_of(cluster: Cluster, *, ranks: int, nodes: int, islands: int = 0) -> Route:
    """The route of a group of ``ranks`` over ``nodes`` nodes, when no other group shares its NICs."""
    per_node = -(-ranks // nodes)
    crosses = (islands or islands_of(nodes, cluster)) > 1
    together = ranks if nodes > 1 and not crosses else per_node
    bandwidth = effective_intra_bandwidth(cluster, per_node)
    if together == 1:
        inside = "none"
    elif cluster.device.architecture == PROCESSOR:
        inside, bandwidth = "host", 0.0
    elif cluster.intra_topology == "nvswitch":
        inside = "switch"
    elif cluster.intra_topology in ("pcie-tree", "none") and bandwidth <= cluster.intra_node.bandwidth:
        inside = "pcie"
    else:
        inside = "direct"
    nics = nic_bandwidth(cluster, min(nodes, 2), ranks_per_node=per_node, sharing=1) if crosses else 0.0
    return Route(
        device=cluster.device.name,
        architecture=cluster.device.architecture,
        inside=inside,
        intra_bandwidth=0.0 if inside == "none" else bandwidth,
        network=cluster.inter_node.name if crosses else "",
        nic_bandwidth=nics,
        per_node=per_node if crosses else 0,
    )


def baseline_seconds(works: Sequence[Message], cluster: Cluster) -> Floats:
    """Seconds that latencies and bandwidths alone predict; never falls when bytes grow."""
    seconds = np.zeros(len(works))
    groups = [i for i, work in enumerate(works) if isinstance(work, Collective)]
    single = [i for i, work in enumerate(works) if isinstance(work, Transfer)]
    seconds[groups] = collective_seconds([works[i] for i in groups], cluster)  # type: ignore[misc]
    seconds[single] = transfer_seconds([works[i] for i in single], cluster)  # type: ignore[misc]
    return seconds


def link_floor_seconds(work: Message, cluster: Cluster) -> float:
    """The shortest time that the stated bandwidths allow at all, in seconds.

    A rank receives at least (n − 1)/n of the bytes, and one of N islands (N − 1)/N of them through all of its NICs.
    """
    if isinstance(work, Transfer):
        ranks, nodes, share = 2, 2 if work.crosses_nodes else 1, 1.0
    else:
        ranks, nodes = max(1, work.num_ranks), max(1, work.num_nodes)
        share = 1.0 - 1.0 / ranks
    route = route_of(cluster, ranks=ranks, nodes=nodes)
    if not route.crosses:
        return share * work.nbytes / route.intra_bandwidth if route.intra_bandwidth else 0.0
    if isinstance(work, Transfer):
        return work.nbytes / max(route.nic_bandwidth, 1.0)
    islands = min(ranks, islands_of(nodes, cluster))
    return (1.0 - 1.0 / islands) * work.nbytes / max(route.nic_bandwidth * nodes / islands, 1.0)
