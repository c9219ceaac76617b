"""Pipeline schedules as pure functions, by name; ``package.module:function`` names a user's own schedule."""

from __future__ import annotations

from typing import Final

from traincast.errors import UnknownNameError
from traincast.imports import import_callable, refuse_code
from traincast.strategy.schedules.breadth_first import breadth_first
from traincast.strategy.schedules.dualpipe import dualpipe, paired
from traincast.strategy.schedules.one_f_one_b import gpipe, interleaved, one_forward_one_backward
from traincast.strategy.schedules.slots import (
    Order,
    Pass,
    PipelineSchedule,
    Route,
    Slot,
    both_ways,
    check,
    loop,
    merge,
    vee,
)
from traincast.strategy.schedules.zero_bubble import zb_h1, zb_h2, zb_v

SCHEDULES: Final[dict[str, PipelineSchedule]] = {
    "gpipe": PipelineSchedule(order=gpipe, differs_from=2),  # with one microbatch it is 1F1B
    "1f1b": PipelineSchedule(order=one_forward_one_backward),
    "interleaved": PipelineSchedule(order=interleaved, interleaves=True),
    "breadth-first": PipelineSchedule(order=breadth_first, interleaves=True),
    "zb-h1": PipelineSchedule(order=zb_h1, splits_backward=True),
    "zb-h2": PipelineSchedule(order=zb_h2, splits_backward=True, differs_from=3),  # with two it is ZB-H1
    "zb-v": PipelineSchedule(order=zb_v, routes=vee, chunks=2, splits_backward=True),
    "dualpipe": PipelineSchedule(order=dualpipe, routes=both_ways, chunks=2, splits_backward=True, pairs=paired),
}
"""Schedules by name; a search tries all of them."""


def check_schedule_of_data(name: str, *, allow_code: bool) -> None:
    """Refuses a schedule that a data file names and that would run Python code, unless ``allow_code``."""
    if not allow_code and name not in SCHEDULES and ":" in name:
        refuse_code(name, "schedule")


def load_schedule(name: str) -> PipelineSchedule:
    """The schedule called ``name``, or the one at ``package.module:name``; raises :class:`UnknownNameError`.

    The object at ``package.module:name`` is a :class:`PipelineSchedule`, or a function that returns an order.
    """
    if name in SCHEDULES:
        return SCHEDULES[name]
    if ":" not in name:
        raise UnknownNameError("schedule", name, SCHEDULES, hint="or give package.module:function")
    found = import_callable(name, "schedule", role="function")
    return found if isinstance(found, PipelineSchedule) else PipelineSchedule(order=found)


__all__ = [
    "SCHEDULES",
    "Order",
    "Pass",
    "PipelineSchedule",
    "Route",
    "Slot",
    "both_ways",
    "check",
    "check_schedule_of_data",
    "load_schedule",
    "loop",
    "merge",
    "vee",
]  # fmt: skip
