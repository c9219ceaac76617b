"""Ranks that differ: the works of one plan, as each rank really does them.

A folded plan has one work for all groups along the same axes, and one for all messages to the same stage. In a mixed
cluster these groups differ: their nodes have other devices, other numbers of members, other links. This module finds
the links of every group and every pair. A cost model then estimates each work once for each distinct set of links.

A collective moves the same bytes through every node of its group, in a ring. So the node whose NICs give the group the
lowest rate bounds it, and its other nodes are as fast as that one. In an all-to-all, a node with c of n members sends
c·(n − c)/n shares, and the node that needs longest bounds it. A message has the rate of the slower of its two nodes.
A group inside one node uses no NIC.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from traincast.cluster import Cluster, Link
from traincast.cluster.topology import nics_of_group
from traincast.strategy.mesh import Axis, Mesh, group_places
from traincast.work import Collective, Transfer, Work

Ints: TypeAlias = npt.NDArray[np.int64]
_Mark: TypeAlias = tuple[str, ...] | int


@dataclass(frozen=True, slots=True, kw_only=True)
class Variants:
    """The works to estimate if ranks differ; ranks for which every work is the same are one *variant*.

    ``works[c]`` are to be estimated on ``clusters[c]``; the lists of all clusters, one after the other, are the
    *entries*. ``entry[v, w]`` is the entry of work ``w`` of the plan for variant ``v``; ``of_rank`` has the variant of
    every rank.
    """

    clusters: tuple[Cluster, ...]
    works: tuple[tuple[Work, ...], ...]
    entry: Ints
    of_rank: Ints


class _End(NamedTuple):
    """A node at the end of a connection: its NICs, the members of a group there, and the groups that share them."""

    link: Link
    nics: int
    devices: int
    members: int
    sharing: int

    def rate(self, ranks_per_node: int) -> float:
        """Bytes/s that a group with ``ranks_per_node`` members on this node gets of its NICs."""
        nics = nics_of_group(self.nics, self.devices, ranks_per_node=ranks_per_node, sharing=self.sharing)
        return nics * self.link.bandwidth


class _Links(NamedTuple):
    """The distinct ends of one connection; empty within a node. ``nodes`` is the number of nodes it spans."""

    nodes: int
    ends: tuple[_End, ...]


_INSIDE = _Links(1, ())


def variants_of(
    works: Sequence[Sequence[Work]], mesh: Mesh, cluster: Cluster, *, class_of_rank: Ints | None = None
) -> Variants:
    """The variants of ranks of ``mesh`` on ``cluster``.

    ``works[c]`` are the works of a plan for ranks of class ``c``, in the order of the plan; ``class_of_rank`` has the
    class of every rank (all 0 if it is not given).
    """
    classes = np.zeros(mesh.num_ranks, dtype=np.int64) if class_of_rank is None else class_of_rank
    kinds, kind_of = cluster.kinds(), np.array(cluster.kind_of_device(), dtype=np.int64)
    ends = _ends_of_nodes(cluster)
    marked = [(number, mark) for number, work in enumerate(works[0]) if (mark := _mark(work)) is not None]
    links: dict[_Mark, list[_Links]] = {}
    columns = [classes, kind_of]
    for mark in dict.fromkeys(mark for _, mark in marked):
        links[mark] = _of_stage(mark, mesh, ends) if isinstance(mark, int) else _of_axes(mark, mesh, ends)
        number = {each: n for n, each in enumerate(dict.fromkeys(links[mark]))}
        columns.append(np.array([number[each] for each in links[mark]], dtype=np.int64))
    _, first, of_rank = np.unique(np.stack(columns), axis=1, return_index=True, return_inverse=True)
    table = _Entries()
    unmarked: dict[tuple[int, int], list[int]] = {}
    rows = []
    for rank in first.tolist():
        own, kind = works[int(classes[rank])], kinds[int(kind_of[rank])]
        key = int(classes[rank]), int(kind_of[rank])
        if key not in unmarked:
            unmarked[key] = [table.number(work, kind) if _mark(work) is None else -1 for work in own]
        row = list(unmarked[key])
        for at, mark in marked:
            row[at] = table.number(*_as_done(own[at], kind, links[mark][rank]))
        rows.append(row)
    return table.variants(np.array(rows, dtype=np.int64).reshape(len(rows), -1), of_rank.reshape(-1))


def _mark(work: Work) -> _Mark | None:
    """What a mixed cluster marks a work with: the axes of its group, or the stage it is sent to; else ``None``."""
    if isinstance(work, Collective):
        return work.axes or None
    return work.to_stage if isinstance(work, Transfer) and work.to_stage >= 0 else None


class _Entries:
    """Collects the distinct pairs of a work and the cluster on which it is estimated."""

    def __init__(self) -> None:
        self._clusters: dict[Cluster, dict[Work, int]] = {}
        self._count = 0

    def number(self, work: Work, cluster: Cluster) -> int:
        """The number of the entry of ``work`` on ``cluster``."""
        entries = self._clusters.setdefault(cluster, {})
        if work not in entries:
            entries[work] = self._count
            self._count += 1
        return entries[work]

    def variants(self, rows: Ints, of_rank: Ints) -> Variants:
        """All entries, with those of one cluster side by side."""
        place = np.empty(self._count, dtype=np.int64)
        order = [number for entries in self._clusters.values() for number in entries.values()]
        place[order] = np.arange(self._count)
        return Variants(
            clusters=tuple(self._clusters),
            works=tuple(tuple(entries) for entries in self._clusters.values()),
            entry=place[rows],
            of_rank=of_rank,
        )


def _ends_of_nodes(cluster: Cluster) -> list[_End]:
    """For every node of a mixed cluster, its NICs."""
    return [
        _End(part.inter_node, part.nics_per_node, part.devices_per_node, 0, 0)
        for part in cluster.parts
        for _ in range(part.num_nodes)
    ]


def _of_axes(axes: tuple[str, ...], mesh: Mesh, ends: Sequence[_End]) -> list[_Links]:
    """For every rank, the links of its group along ``axes``."""
    places = group_places(mesh, cast("tuple[Axis, ...]", axes))
    found: dict[int, dict[_End, None]] = {}
    span: dict[int, int] = {}
    columns = (places.leader, places.node, places.members, places.nodes, places.sharing)
    for leader, node, members, nodes, sharing in zip(*(column.tolist() for column in columns), strict=True):
        span[leader] = nodes
        if nodes > 1:
            end = ends[node]._replace(members=members, sharing=sharing)
            found.setdefault(leader, {})[end] = None
    links = {leader: _Links(nodes, tuple(sorted(found.get(leader, {}), key=_order))) for leader, nodes in span.items()}
    return [links[leader] for leader in mesh.groups(cast("tuple[Axis, ...]", axes)).tolist()]


def _of_stage(to_stage: int, mesh: Mesh, ends: Sequence[_End]) -> list[_Links]:
    """For every rank, the links of its messages to the rank of ``to_stage`` in the same pipeline."""
    stride, node = mesh.stride("pp"), mesh.nodes()
    rank = np.arange(mesh.num_ranks)
    stage = rank // stride
    there = node[rank + (to_stage - stage) * stride]
    crosses = node != there
    sends = np.bincount((stage * len(ends) + node)[crosses], minlength=mesh.pp * len(ends))
    receives = np.bincount((stage * len(ends) + there)[crosses], minlength=mesh.pp * len(ends))
    links: list[_Links] = []
    for s, a, b, crossing in zip(stage.tolist(), node.tolist(), there.tolist(), crosses.tolist(), strict=True):
        if not crossing:
            links.append(_INSIDE)
            continue
        both = (
            ends[a]._replace(members=1, sharing=int(sends[s * len(ends) + a])),
            ends[b]._replace(members=1, sharing=int(receives[s * len(ends) + b])),
        )
        links.append(_Links(2, tuple(sorted(dict.fromkeys(both), key=_order))))
    return links


def _order(end: _End) -> tuple[object, ...]:
    return end.link.bandwidth, end.link.latency_s, end.link.name, *end[1:]


@lru_cache(maxsize=4096)
def _collective_links(kind: Cluster, links: _Links, num_ranks: int, all_to_all: bool) -> tuple[Cluster, int]:
    """``kind`` with the NICs that bound a collective over ``links``, and the number of groups that share them."""
    even = -(-num_ranks // links.nodes)

    def rate(end: _End) -> float:
        """Bytes/s of the group at this node, if every node had an even share of its members and its bytes."""
        whole = end.rate(end.members)
        sent = end.members * (num_ranks - end.members)
        return whole * (even * (num_ranks - even)) / sent if all_to_all else whole

    end = min(links.ends, key=rate)
    true, usual = rate(end), end.rate(even)
    bandwidth = end.link.bandwidth if true == usual else end.link.bandwidth * true / usual
    return _with_nics(kind, end, bandwidth, links), end.sharing


def _with_nics(kind: Cluster, end: _End, bandwidth: float, links: _Links) -> Cluster:
    latency = max(each.link.latency_s for each in links.ends)
    return replace(
        kind,
        inter_node=Link(name=end.link.name, bandwidth=bandwidth, latency_s=latency),
        nics_per_node=end.nics,
        devices_per_node=end.devices,
    )


def _as_done(work: Work, kind: Cluster, links: _Links) -> tuple[Work, Cluster]:
    """A marked work for a rank on a node of ``kind`` that uses ``links``, and the cluster to estimate it on."""
    if isinstance(work, Collective):
        return _collective(work, kind, links)
    assert isinstance(work, Transfer)
    return _transfer(work, kind, links)


def _collective(work: Collective, kind: Cluster, links: _Links) -> tuple[Collective, Cluster]:
    if not links.ends:
        return replace(work, num_nodes=1, sharing=1, axes=()), kind
    cluster, sharing = _collective_links(kind, links, work.num_ranks, work.kind == "all_to_all")
    return replace(work, num_nodes=links.nodes, sharing=sharing, axes=()), cluster


def _transfer(work: Transfer, kind: Cluster, links: _Links) -> tuple[Transfer, Cluster]:
    if not links.ends:
        return replace(work, crosses_nodes=False, sharing=1, to_stage=-1), kind
    end = min(links.ends, key=lambda each: each.rate(1))
    cluster = _with_nics(kind, end, end.link.bandwidth, links)
    return replace(work, crosses_nodes=True, sharing=end.sharing, to_stage=-1), cluster


def unmarked(works: Sequence[Work]) -> list[Work]:
    """``works`` without the marks of a mixed cluster, as cost models know them."""
    return [
        replace(work, axes=()) if isinstance(work, Collective) and work.axes
        else replace(work, to_stage=-1) if isinstance(work, Transfer) and work.to_stage >= 0
        else work
        for work in works
    ]  # fmt: skip
