"""A trace: the events of one rank as columns, in order of their start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.traces.files.kineto import DEVICE_KINDS, UNSTATED, DeviceProperties, Kind

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

NONE: Final = UNSTATED
"""Value of a column where an event does not state it."""


@dataclass(frozen=True, slots=True)
class RecordedMessage:
    """What a collective's event says of it: its name, elements in and out, ranks, type and group."""

    name: str
    in_elements: int = NONE
    out_elements: int = NONE
    group_size: int = NONE
    dtype: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class RecordedShape:
    """What an event says of an operator's inputs or a kernel's launch, as JSON text."""

    dims: str = ""
    types: str = ""
    concrete: str = ""
    grid: str = ""
    block: str = ""
    strides: str = ""


@dataclass(frozen=True, slots=True)
class SyncFacts:
    """What a recorded wait says: its kind, the stream it waits on, and the call that recorded the awaited event."""

    kind: str
    stream: int = NONE
    record: int = NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilerTrace:
    """The events of one rank, as columns sorted by start; the enclosing one of two that start together comes first.

    ``start`` and ``duration`` are in nanoseconds, ``start`` from :attr:`origin`. ``lane`` is a number into ``lanes``,
    which has the process and thread (or device and stream) as text. ``name`` and ``shape`` are numbers into ``names``
    and ``shapes``. Other columns are :data:`NONE` where an event does not state them. ``notes`` say what was done to
    the trace after it was loaded.
    """

    path: Path
    rank: int
    world_size: int
    devices: tuple[DeviceProperties, ...]
    origin: int
    kind: npt.NDArray[np.int8]
    name: npt.NDArray[np.int32]
    lane: npt.NDArray[np.int32]
    start: Ints
    duration: Ints
    correlation: Ints
    external: Ints
    stream: Ints
    device: Ints
    nbytes: Ints
    sequence: Ints
    record: Ints
    shape: npt.NDArray[np.int32]
    names: tuple[str, ...]
    lanes: tuple[tuple[str, str], ...]
    shapes: tuple[RecordedShape, ...]
    messages: Mapping[int, RecordedMessage] = field(default_factory=dict)
    syncs: Mapping[int, SyncFacts] = field(default_factory=dict)
    skipped: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.start)

    @property
    def end(self) -> Ints:
        """The end of each event, in nanoseconds."""
        return self.start + self.duration

    def of_kind(self, *kinds: Kind) -> Ints:
        """Numbers of the events of these kinds, in order of start."""
        return np.flatnonzero(np.isin(self.kind, [int(kind) for kind in kinds]))

    def on_device(self) -> Ints:
        """Numbers of the kernels, copies and fills, in order of start."""
        return self.of_kind(*DEVICE_KINDS)

    def name_of(self, event: int) -> str:
        """The name of an event."""
        return self.names[int(self.name[event])]

    def shape_of(self, event: int) -> RecordedShape:
        """The shape of an event; empty if it states none."""
        number = int(self.shape[event])
        return self.shapes[number] if number >= 0 else RecordedShape()

    def named(self, predicate: Flags) -> Flags:
        """For each event whether ``predicate``, which has one value per name, is true for its name."""
        chosen: Flags = predicate[self.name]
        return chosen
