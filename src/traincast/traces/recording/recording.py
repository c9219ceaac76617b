"""A recording: a trace as tasks with their recorded times and what each waits for.

A thread of the host is a chain of tasks: its calls, and the time between them. An operation of the device waits for its
launch, for the operation before it on its stream, and for operations of other streams. What the dependencies leave
unexplained of an operation's start is kept as a task of its own, of role ``OPAQUE``. Times are in nanoseconds.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.traces.files.trace import Flags, Ints, ProfilerTrace
from traincast.traces.recording.steps import TraceStep

NOWHERE: Final = -1
"""The lane of a task that only lets time pass."""


class TaskRole(enum.IntEnum):
    """What a task is."""

    HOST = 0  # time of a thread between calls
    CALL = 1  # a call of the driver, without the time in which it waits
    DEVICE = 2  # a kernel, copy or fill
    LATENCY = 3  # from a launch to its kernel, and from a kernel to the next: the same everywhere in a trace
    OPAQUE = 4  # a delay that nothing recorded explains


@dataclass(frozen=True, slots=True)
class Lane:
    """A thread of the host or a stream of a device, of one rank."""

    rank: int
    name: str
    on_device: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Tasks as columns, in no order; ``edges`` are rows (task, task that it waits for).

    ``launched`` is the recorded time at which an operation of the device was launched, or −1. ``trace`` and ``event``
    say where a task was recorded (event −1: nowhere). ``lane`` is a number into ``lanes``, or :data:`NOWHERE`.
    ``others`` are further lanes that a task holds: a collective of several ranks. ``marks`` has, for each step of each
    trace, the task whose end begins it and the one whose end ends it (−1: none). ``clocks`` is when each trace begins.
    """

    traces: tuple[ProfilerTrace, ...]
    steps: tuple[tuple[TraceStep, ...], ...]
    lanes: tuple[Lane, ...]
    role: npt.NDArray[np.int8]
    trace: npt.NDArray[np.int32]
    event: Ints
    lane: npt.NDArray[np.int32]
    start: Ints
    duration: Ints
    launched: Ints
    edges: Ints
    communicates: Flags
    marks: tuple[tuple[tuple[int, int], ...], ...]
    clocks: tuple[int, ...]
    others: dict[int, tuple[int, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.start)

    @property
    def end(self) -> Ints:
        """The recorded end of each task."""
        return self.start + self.duration

    def with_durations(self, duration: Ints) -> Recording:
        """The same tasks with other durations."""
        return replace(self, duration=duration)

    def strict(self) -> Recording:
        """The same tasks without the delays that nothing explains, except the first on each lane."""
        opaque = (self.role == TaskRole.OPAQUE) & (self.event >= 0)
        return self.with_durations(np.where(opaque, 0, self.duration))

    def step_bounds(self, number: int) -> Ints:
        """When the steps of a trace begin and end, as recorded: one row for each."""
        bounds = np.array([(step.start, step.end) for step in self.steps[number]], dtype=np.int64)
        return bounds + self.clocks[number]


class TaskTable:
    """Collects tasks and edges."""

    def __init__(self) -> None:
        self.role: list[int] = []
        self.event: list[int] = []
        self.lane: list[int] = []
        self.start: list[int] = []
        self.end: list[int] = []
        self.edges: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self.role)

    def add(self, role: TaskRole, *, event: int, lane: int, start: int, end: int) -> int:
        """Add a task and return its number."""
        self.role.append(int(role))
        self.event.append(event)
        self.lane.append(lane)
        self.start.append(start)
        self.end.append(end)
        return len(self.role) - 1
