"""Asynchronous fluid communities: divides a graph into connected groups of similar size, the same at every call.

Parés et al., "Fluid Communities: A Competitive, Scalable and Diverse Community Detection Algorithm" (2017). Every
community is a fluid of total density 1, shared evenly by its vertices. A vertex joins the community with the highest
density among itself and its neighbours. No community can vanish: the only vertex of a community has density 1, and no
other community can exceed that.

Three things differ from the paper. Vertices are the operators of a program, so the first vertex of each community is
taken evenly along the program instead of at random. The order of visits comes from a fixed hash. A community that was
cut in two while it flowed gives up its smaller parts.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traincast.compiled import Compiled

Ints = npt.NDArray[np.int64]

_ROUNDS: Final = 40
"""Rounds over all vertices after which fluids that still move are stopped."""
_SETTLED: Final = 200
"""Communities have settled when at most one vertex in this many moved in a round."""
_COMPILE_FROM: Final = 3000
"""Vertices from which it pays to load the compiler."""
_SPREAD: Final = 2654435761
"""Knuth's multiplier: consecutive numbers are mapped far from one another."""


def communities(edges: Ints, *, vertices: int, groups: int) -> Ints:
    """Return the community of each vertex of an undirected graph, numbered by their first vertices.

    ``edges`` [edges, 2] are pairs of vertices; directions, repeats and loops do not matter. There are ``groups``
    communities, or one per vertex if there are fewer vertices. Parts of the graph that no edge joins are joined in the
    order of their first vertices, so that every community is connected by edges or by these.
    """
    if groups >= vertices:
        return np.arange(vertices, dtype=np.int64)
    start, near = _neighbours(_joined(edges, vertices), vertices)
    label = np.full(vertices, -1, dtype=np.int64)
    label[(np.arange(groups) * vertices + vertices // 2) // groups] = np.arange(groups)
    run = _settle_compiled if _settle_compiled.pays(vertices) else _settle
    if run is _settle:
        found = np.array(_settle(start.tolist(), near.tolist(), label.tolist(), groups), dtype=np.int64)
    else:
        found = np.asarray(run(start, near, label, groups), dtype=np.int64)
    first = np.full(groups, vertices, dtype=np.int64)
    np.minimum.at(first, found, np.arange(vertices))
    rank: Ints = np.argsort(np.argsort(first))
    return rank[found]


def components(edges: Ints, vertices: int) -> Ints:
    """Return the connected part that each vertex belongs to, numbered by their first vertices."""
    above = list(range(vertices))

    def root(vertex: int) -> int:
        while above[vertex] != vertex:
            above[vertex] = above[above[vertex]]
            vertex = above[vertex]
        return vertex

    for one, other in edges.tolist():
        a, b = root(one), root(other)
        if a < b:
            above[b] = a
        else:
            above[a] = b
    roots = np.array([root(vertex) for vertex in range(vertices)], dtype=np.int64)  # the first vertex of each part
    number: Ints = np.cumsum(roots == np.arange(vertices)) - 1
    return number[roots]


def _joined(edges: Ints, vertices: int) -> Ints:
    """The edges, and one from each connected part to the vertex before its first one."""
    part = components(edges, vertices)
    first = 1 + np.flatnonzero(np.diff(np.maximum.accumulate(part)))  # parts are numbered by their first vertices
    return np.concatenate([edges.reshape(-1, 2), np.stack([first - 1, first], axis=1)])


def _neighbours(edges: Ints, vertices: int) -> tuple[Ints, Ints]:
    """The neighbours of vertex i are ``near[start[i] : start[i + 1]]``, in order."""
    both = np.concatenate([edges, edges[:, ::-1]])
    both = both[both[:, 0] != both[:, 1]]
    pairs = np.sort(both[:, 0] * vertices + both[:, 1])
    vertex, near = np.divmod(pairs[np.diff(pairs, prepend=-1) > 0], vertices)
    start = np.concatenate([[0], np.cumsum(np.bincount(vertex, minlength=vertices))])
    return start.astype(np.int64), near.astype(np.int64)


def _settle(start: Any, near: Any, label: Any, groups: int) -> Any:
    """Let the communities flow from their first vertices until none moves, and give away parts that were cut off."""
    _flow(start, near, label, groups)
    _keep_largest(start, near, label, groups)
    _fill(start, near, label)
    return label


def _flow(start: Any, near: Any, label: Any, groups: int) -> None:
    vertices = len(label)
    size = [1 for _ in range(groups)]
    heard = [0.0 for _ in range(groups)]
    strangers = [0 for _ in range(vertices)]  # neighbours of each vertex that belong to another community
    for vertex in range(vertices):
        if label[vertex] >= 0:
            _announce((start, near), label, strangers, vertex, -1)
    for turn in range(_ROUNDS):
        moved = 0
        stride = _coprime(_SPREAD % vertices + turn, vertices)
        for number in range(vertices):
            vertex = (number * stride + turn) % vertices
            own = label[vertex]
            if not strangers[vertex]:  # as for most vertices: no neighbour is of another community
                continue
            if own >= 0:
                heard[own] += 1.0 / size[own]
            for at in range(start[vertex], start[vertex + 1]):
                other = label[near[at]]
                if other >= 0:
                    heard[other] += 1.0 / size[other]
            best, most = own, heard[own] + 1e-9 if own >= 0 else 0.0
            for at in range(start[vertex], start[vertex + 1]):
                other = label[near[at]]
                if other >= 0 and (heard[other] > most or (heard[other] == most and best != own and other < best)):
                    best, most = other, heard[other]
            for at in range(start[vertex], start[vertex + 1]):
                other = label[near[at]]
                if other >= 0:
                    heard[other] = 0.0
            if own >= 0:
                heard[own] = 0.0
            if best != own:
                moved += 1
                label[vertex] = best
                _announce((start, near), label, strangers, vertex, own)
                size[best] += 1
                if own >= 0:
                    size[own] -= 1
        if moved * _SETTLED <= vertices:
            break


def _announce(graph: Any, label: Any, strangers: Any, vertex: int, before: int) -> None:
    """Count anew who has strangers as neighbours, after a vertex has left the community ``before`` (-1: none)."""
    start, near = graph
    own, found = label[vertex], 0
    for at in range(start[vertex], start[vertex + 1]):
        other = near[at]
        beside = label[other]
        if beside >= 0 and beside != own:
            found += 1
        if beside != own:
            strangers[other] += 1
        if before >= 0 and beside != before:
            strangers[other] -= 1
    strangers[vertex] = found


def _coprime(number: int, other: int) -> int:
    """The first number from ``number`` on that has no divisor in common with ``other``."""
    number = max(1, number)
    while True:
        a, b = number, other
        while b:
            a, b = b, a % b
        if a == 1:
            return number
        number += 1


def _keep_largest(start: Any, near: Any, label: Any, groups: int) -> None:
    """Take the label from every vertex outside the largest connected part of its community."""
    vertices = len(label)
    part = [-1 for _ in range(vertices)]
    best_part = [-1 for _ in range(groups)]
    best_size = [0 for _ in range(groups)]
    waiting = [0 for _ in range(vertices)]
    for first in range(vertices):
        if part[first] >= 0 or label[first] < 0:
            continue
        waiting[0], head, tail = first, 0, 1
        part[first] = first
        while head < tail:
            vertex = waiting[head]
            head += 1
            for at in range(start[vertex], start[vertex + 1]):
                other = near[at]
                if part[other] < 0 and label[other] == label[first]:
                    part[other] = first
                    waiting[tail] = other
                    tail += 1
        if tail > best_size[label[first]]:
            best_part[label[first]], best_size[label[first]] = first, tail
    for vertex in range(vertices):
        if label[vertex] >= 0 and part[vertex] != best_part[label[vertex]]:
            label[vertex] = -1


def _fill(start: Any, near: Any, label: Any) -> None:
    """Give every vertex without a community that of its first neighbour with one, until all have one."""
    left = True
    while left:
        left = False
        for vertex in range(len(label)):
            if label[vertex] >= 0:
                continue
            for at in range(start[vertex], start[vertex + 1]):
                if label[near[at]] >= 0:
                    label[vertex] = label[near[at]]
                    break
            if label[vertex] < 0:
                left = True


_settle_compiled = Compiled(_settle, pays_from=_COMPILE_FROM)
