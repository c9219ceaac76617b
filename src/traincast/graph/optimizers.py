"""Optimizers: the number of states that each keeps per weight, and a graph whose weights are updated by another one."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from traincast.errors import UnknownNameError
from traincast.graph.operator import Operator, OperatorGraph, Phase

STATES: Final[dict[str, int]] = {
    "adamw": 2,
    "adam": 2,
    "lamb": 2,
    "sgd": 1,
    "sgd-plain": 0,
    "adamw8bit": 2,
    "paged-adamw": 2,
    "paged-adamw8bit": 2,
}
"""States per weight of each optimizer."""
BYTE_OPTIMIZERS: Final = frozenset({"adamw8bit", "paged-adamw8bit"})
"""Optimizers that keep each state in a byte (Dettmers et al. 2021, arXiv:2110.02861)."""
PAGED_OPTIMIZERS: Final = frozenset({"paged-adamw", "paged-adamw8bit"})
"""Optimizers whose states are in managed memory, outside of the framework's allocator."""


def with_optimizer(graph: OperatorGraph, name: str) -> OperatorGraph:
    """``graph`` with the optimizer called ``name``; raises :class:`UnknownNameError` if there is none."""
    if name not in STATES:
        raise UnknownNameError("optimizer", name, STATES)

    def changed(op: Operator) -> Operator:
        if op.phase is not Phase.OPTIMIZER:
            return op
        weight, states = op.parameters[0], STATES[name]
        return replace(op, name=name, inputs=(weight,) * (2 + states), outputs=(weight,) * (1 + states))

    return replace(graph, operators=tuple(map(changed, graph.operators)))
