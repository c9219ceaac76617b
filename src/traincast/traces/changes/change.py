"""What changes of a recording have in common: their protocol, and which tasks they look for.

A change is a value with four members: ``text`` names it, ``assumption`` says what its answer rests on, ``refusal``
says why a recording cannot answer it (or returns ``None``), and ``apply`` returns the changed recording. The level of
``apply`` is 0 for the expected answer, −1 for the fastest that is plausible and 1 for the slowest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Protocol

import numpy as np

from traincast.traces.files.trace import Flags, Ints, ProfilerTrace
from traincast.traces.recording.labels import launched_within
from traincast.traces.recording.recording import Recording, TaskRole

UPDATE: Final = r"^Optimizer\.step#"
"""Ranges of PyTorch's optimizers."""
NO_COMMUNICATION: Final = "the trace has no communication"


class TraceChange(Protocol):
    """See the text of the module."""

    @property
    def text(self) -> str:
        """What is asked, in words."""

    @property
    def assumption(self) -> str:
        """What the answer rests on."""

    def refusal(self, recording: Recording) -> str | None:
        """Why this recording cannot answer; ``None`` if it can."""

    def apply(self, recording: Recording, level: int = 0) -> Recording:
        """The changed recording."""


def device_tasks(recording: Recording) -> Iterator[tuple[ProfilerTrace, Ints, Ints]]:
    """Yield each trace with its tasks of the device and the events that these were recorded as."""
    for number, trace in enumerate(recording.traces):
        tasks = np.flatnonzero((recording.role == TaskRole.DEVICE) & (recording.trace == number))
        yield trace, tasks, recording.event[tasks]


def updating(recording: Recording) -> Flags:
    """Return which tasks of the device an optimizer launched, without communication."""
    found = np.zeros(len(recording), dtype=bool)
    for trace, tasks, events in device_tasks(recording):
        found[tasks] = launched_within(trace, events, re.compile(UPDATE))
    return found & ~recording.communicates


def without_device(recording: Recording) -> bool:
    """Whether a processor ran all operators itself."""
    return not (recording.role == TaskRole.DEVICE).any()


def needs_peers(recording: Recording) -> str | None:
    """Return why transfers of this recording are not known: it has none, or one rank alone; else ``None``."""
    if not recording.communicates.any():
        return NO_COMMUNICATION
    if not recording.others:
        return (
            "one rank alone cannot tell transfer from waiting for other ranks: give the traces of all ranks of the job"
        )
    return None
