"""Groups of operators: how many, which, and the directed graph that they form.

A graph network works on groups instead of operators, because graphs of thousands of nodes take long, and because the
information of a node has to travel through all of them. Driple divides them by asynchronous fluid communities, in one
of two ways. ``uniform`` makes the same number of groups M of every graph. ``proportional`` sorts graphs by size, takes
them in batches, and makes M = factor · log10(mean number of operators of the batch) groups.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, get_args

import numpy as np

from traincast.errors import RequestError
from traincast.estimate.inspector.amounts import Amounts, Floats
from traincast.estimate.inspector.communities import Ints, communities

Method = Literal["uniform", "proportional", "none"]
_MOST_GROUPS: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """How operators are grouped: ``groups`` for ``uniform``, ``factor`` for ``proportional``; ``none`` keeps them."""

    method: Method = "proportional"
    groups: int = 16
    factor: float = 4.0

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            raise RequestError(f"grouping {self.method!r}: expected one of {', '.join(get_args(Method))}")
        if not 1 <= self.groups <= _MOST_GROUPS:
            raise RequestError(f"{self.groups} groups: expected from 1 to {_MOST_GROUPS}")
        if not 0.1 <= self.factor <= 100.0:
            raise RequestError(f"a grouping factor of {self.factor:g}: expected from 0.1 to 100")

    def number(self, operators: float) -> int:
        """The number of groups for graphs that have ``operators`` operators on average."""
        if self.method == "none":
            return 10**9
        if self.method == "uniform":
            return self.groups
        return min(_MOST_GROUPS, max(2, round(self.factor * math.log10(max(10.0, operators)))))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Groups:
    """The group of each operator, and how groups feed one another.

    ``adjacency`` [groups, groups]: entry (g, h) is the share of group h in the edges that lead into g, with one edge of
    g to itself. A row adds up to 1, so multiplying by it takes a normalised mean over a group and its predecessors.
    """

    member: Ints
    adjacency: Floats

    @property
    def number(self) -> int:
        """Number of groups."""
        return len(self.adjacency)


@lru_cache(maxsize=2048)
def group(amounts: Amounts, groups: int) -> Groups:
    """Divide the operators into at most ``groups`` connected groups."""
    member = communities(amounts.edges, vertices=amounts.operators, groups=groups)
    number = int(member.max()) + 1
    sources, targets = member[amounts.edges[:, 0]], member[amounts.edges[:, 1]]
    between = sources != targets
    adjacency = np.zeros((number, number))
    np.add.at(adjacency, (targets[between], sources[between]), 1.0)
    adjacency += np.eye(number)
    return Groups(member=member, adjacency=adjacency / adjacency.sum(axis=1, keepdims=True))
