"""How long a step takes: on the host or on the device, whichever is longer.

A host runs ahead of its device. Its first recorded steps are short while the queue fills; and at their begin, the
device may still be busy with steps before them. So the steps of a rank are timed together, on both sides: on the host
from the begin of the first to the end of the last, on the device from the end of earlier work (at the earliest, the
begin of the first) until all work that was launched in them is done. The longer of the two, over their number, is the
time of a step. Ranges with gaps between them (``--range``) are timed one by one. The step of a job is the mean over its
ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from traincast.traces.files.trace import Flags
from traincast.traces.recording.device import DeviceWork
from traincast.traces.recording.steps import TraceStep

_GAP: Final = 0.01
"""Steps follow one another if the time between two is at most this share of the longer one."""


@dataclass(frozen=True, slots=True)
class StepWindow:
    """When steps that follow one another ran, in the unit of the times given: on the host or ``on_device``."""

    begin: float
    end: float
    on_device: bool

    @property
    def length(self) -> float:
        """From its begin to its end."""
        return self.end - self.begin


def stretches(steps: Sequence[TraceStep]) -> list[tuple[int, int]]:
    """Return the numbers of the first and the last step of all stretches of steps that follow one another."""
    firsts = [0]
    for number, (one, other) in enumerate(pairwise(steps), 1):
        if other.start - one.end > _GAP * max(one.end - one.start, other.end - other.start):
            firsts.append(number)
    return list(zip(firsts, [first - 1 for first in firsts[1:]] + [len(steps) - 1], strict=True))


def window(begin: float, end: float, *, free: float, done: float) -> StepWindow:
    """Return the longer of the time on the host (``begin`` to ``end``) and that on the device.

    The device was ``free`` of earlier work, and ``done`` with all that was launched in the steps.
    """
    free = max(begin, free)
    if done - free > end - begin:
        return StepWindow(free, done, on_device=True)
    return StepWindow(begin, end, on_device=False)


def windows_of(work: DeviceWork, steps: Sequence[TraceStep]) -> list[StepWindow]:
    """Return the windows of all stretches of a trace's steps, in nanoseconds."""
    found = []
    for first, last in stretches(steps):
        begin, end = steps[first].start, steps[last].end
        before, within = work.launched < begin, (work.launched >= begin) & (work.launched < end)
        found.append(
            window(begin, end, free=int(work.end[before].max(initial=0)), done=int(work.end[within].max(initial=0)))
        )
    return found


def launched_in(work: DeviceWork, steps: Sequence[TraceStep]) -> Flags:
    """Return which operations of the device belong to steps: those launched in one; all, if the trace is one step."""
    if any(step.whole for step in steps):
        return np.ones(len(work), dtype=bool)
    inside = np.zeros(len(work), dtype=bool)
    for step in steps:
        inside |= (work.launched >= step.start) & (work.launched < step.end)
    return inside
