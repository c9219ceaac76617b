"""Doubt: how much of the interval of a step each unknown causes.

On a cluster that is not calibrated, each part of the works (products, attention, memory-bound operators, messages
within and between nodes, the host) is taken to the high end of its own interval while all others stay. How much longer
the critical path becomes is what the part causes alone. The interval has causes that no work knows of: what differs
between machines, frameworks and publishers, and more devices than most measured runs have
(:mod:`traincast.report.uncertainty`). They are independent, so widths add as squares; the share of the works is divided
among their parts in proportion to what they cause alone. All shares add up to 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.estimate import Estimates
from traincast.graph import Operator, OpKind
from traincast.graph.vocabulary import MATRIX_KINDS
from traincast.strategy import Plan
from traincast.work import Collective, Transfer, Work

Ints = npt.NDArray[np.int64]

PARTS: Final = ("products", "attention", "memory_bound", "within_nodes", "between_nodes", "host")
"""Parts of the works that may be uncertain."""
BETWEEN: Final = "between_sources"
"""What differs between machines, frameworks and publishers, and no work knows of."""
SCALE: Final = "scale"
"""More devices than most measured runs have."""


def part_of(work: Work) -> str:
    """Return the part of :data:`PARTS` that a work belongs to."""
    match work:
        case Operator(kind=OpKind.ATTENTION | OpKind.SCAN):
            return "attention"
        case Operator():
            return "products" if work.kind in MATRIX_KINDS else "memory_bound"
        case Collective():
            return "between_nodes" if work.num_nodes > 1 else "within_nodes"
        case Transfer():
            return "between_nodes" if work.crosses_nodes else "within_nodes"
        case _:
            return "host"


def caused(plan: Plan, estimates: Estimates, on_path: Ints) -> dict[str, float]:
    """Return what each part of the works of ``plan`` causes alone: the seconds that its high end adds.

    ``on_path`` says how often each cost of the plan occurs on its critical path.
    """
    parts = np.array([PARTS.index(part_of(work)) for work in plan.works])
    step = float(on_path @ plan.costs(estimates.seconds))
    found = {}
    for number, name in enumerate(PARTS):
        own: npt.NDArray[np.bool_] = parts == number
        if own.any():
            longer = float(on_path @ plan.costs(np.where(own, estimates.high, estimates.seconds)))
            found[name] = max(0.0, longer - step)
    return found


def doubt_of(plan: Plan, estimates: Estimates, on_path: Ints, *, others: Mapping[str, float]) -> dict[str, float]:
    """Return the share of each unknown in the log-width of an interval, the largest first; they add up to 1.

    ``on_path`` is that of :func:`caused`, ``others`` has the shares of causes that are not works.
    """
    alone = caused(plan, estimates, on_path)
    known, total = sum(others.values()), sum(alone.values())
    if total > 0.0:
        shares = {**others, **{name: (1.0 - known) * value / total for name, value in alone.items()}}
    else:
        shares = {name: value / known for name, value in others.items()}
    return dict(sorted(shares.items(), key=lambda share: -share[1]))
