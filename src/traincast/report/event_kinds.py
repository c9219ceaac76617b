"""Names and arguments of the events in a trace, by kind of task.

HolisticTraceAnalysis (HTA) distinguishes communication from computation by these names.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final

from traincast.graph import Operator
from traincast.strategy.plan import Category, Plan
from traincast.work import Collective, Launch, Transfer, Work

_KERNELS: Final[dict[str, str]] = {
    "all_reduce": "AllReduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "all_to_all": "AllToAll",
    "broadcast": "Broadcast",
}
_RESERVED: Final = re.compile(r"^nccl|^dma|Sync|Memcpy|Memset")
"""Words in a kernel's name that keep HTA from counting it as compute; HTA is case-sensitive."""


@dataclass(frozen=True, slots=True)
class EventKind:
    """Name, label and arguments of an event, as JSON; tasks with the same cost, label and category share them."""

    name: str
    label: str
    args: str


def event_kind(plan: Plan, task: int) -> EventKind:
    """Return the kind of event that shows ``task``."""
    cost, category = int(plan.cost[task]), Category(int(plan.category[task]))
    work = plan.work_of(cost)
    text = plan.labels[plan.label[task]]
    args = {"label": text, "category": category.name.lower(), **_amounts(work)}
    return EventKind(name=json.dumps(_name(work, text, category)), label=json.dumps(text), args=json.dumps(args)[1:-1])


def _name(work: Work | None, label: str, category: Category) -> str:
    """Return a kernel name that HTA counts as communication or computation, as this report does."""
    if category is not Category.COMMUNICATION:
        return _RESERVED.sub(lambda match: match[0].upper(), label)
    kernel = "SendRecv" if isinstance(work, Transfer) else _KERNELS[work.kind] if isinstance(work, Collective) else ""
    return f"ncclDevKernel_{kernel}({label})"


def _amounts(work: Work | None) -> dict[str, float | str]:
    """Return the event arguments that describe the work, such as its bytes and FLOPs."""
    match work:
        case Operator():
            return {"kind": work.kind.value, "flops": work.flops, "bytes": work.nbytes}
        case Collective():
            return {
                "Collective name": work.kind.replace("_", ""),
                "Group size": work.num_ranks,
                "bytes": work.nbytes,
            }
        case Transfer():
            return {"bytes": work.nbytes}
        case Launch():
            return {"kernels": work.kernels}
        case _:
            return {}
