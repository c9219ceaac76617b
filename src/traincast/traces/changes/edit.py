"""Edits of a recording: select tasks, then scale, remove, insert or move them. Every edit returns a new recording.

::

    slow = select(recording, name="nccl", rank=0)
    faster = scale(recording, slow, 0.5)
    print(run(faster).pace_s)
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from traincast.errors import RequestError
from traincast.traces.files.kineto import Kind
from traincast.traces.files.trace import Flags
from traincast.traces.operators.launches import launchers
from traincast.traces.recording.device import device_work
from traincast.traces.recording.labels import labels_of
from traincast.traces.recording.recording import NOWHERE, Lane, Recording, TaskRole


def select(
    recording: Recording,
    *,
    name: str | None = None,
    operator: str | None = None,
    within: str | None = None,
    roles: Collection[TaskRole] | None = None,
    rank: int | None = None,
    lane: str | None = None,
    communication: bool | None = None,
) -> Flags:
    """Return which tasks meet all conditions given.

    ``name``, ``operator`` and ``within`` are regular expressions: of the kernel's or call's name, of an operator around
    its launch, and of a range of the same thread that a host's task lies in. ``lane`` is the name of a lane, such as
    ``"stream 7"``.
    """
    chosen = np.ones(len(recording), dtype=bool)
    if roles is not None:
        chosen &= np.isin(recording.role, [int(role) for role in roles])
    if name is not None:
        names, label = labels_of(recording)
        pattern = _pattern(name)
        chosen &= np.array([pattern.search(text) is not None for text in names], dtype=bool)[label]
    if rank is not None:
        own = np.array([trace.rank == rank for trace in recording.traces], dtype=bool)
        chosen &= own[recording.trace]
    if lane is not None:
        named = np.array([one.name == lane for one in recording.lanes], dtype=bool)
        if not named.any():
            known = ", ".join(sorted({one.name for one in recording.lanes}))
            raise RequestError(f"no lane is named {lane!r}; known are {known}")
        chosen &= (recording.lane != NOWHERE) & named[recording.lane]
    if communication is not None:
        chosen &= recording.communicates == communication
    if operator is not None:
        chosen &= _launched_by(recording, _pattern(operator))
    if within is not None:
        chosen &= _within(recording, _pattern(within))
    return chosen


def scale(recording: Recording, chosen: Flags, factor: float | npt.NDArray[np.float64]) -> Recording:
    """Multiply the durations of the chosen tasks by ``factor``: one number, or one for each task of the recording."""
    if np.any(np.asarray(factor) < 0):
        raise RequestError(f"a duration cannot be scaled by {factor}: give 0 or more")
    scaled = np.rint(recording.duration * factor).astype(np.int64)
    return recording.with_durations(np.where(chosen, scaled, recording.duration))


def remove(recording: Recording, chosen: Flags) -> Recording:
    """Let the chosen tasks take no time, nor the delays before them; what waits for them then waits for their causes.

    A removed operation of the device takes its launch along, unless that launches others as well.
    """
    gone = chosen.copy()
    delays = np.isin(recording.role, (TaskRole.LATENCY, TaskRole.OPAQUE)) & (recording.event >= 0)
    calls = recording.role == TaskRole.CALL
    for number, trace in enumerate(recording.traces):
        mine = (recording.role == TaskRole.DEVICE) & (recording.trace == number)
        removed = np.unique(recording.event[mine & chosen])
        work = device_work(trace)
        out = np.isin(work.event, removed)
        alone = np.setdiff1d(work.call[out], work.call[~out])
        here = recording.trace == number
        gone |= here & delays & np.isin(recording.event, removed)
        gone |= here & calls & np.isin(recording.event, alone[alone >= 0])
    return recording.with_durations(np.where(gone, 0, recording.duration))


def insert(recording: Recording, *, after: int, seconds: float, lane: str | None = None) -> Recording:
    """Add a task of ``seconds`` that waits for task ``after``, on its lane or on a lane of its rank by name.

    What follows on the lane waits for the new task. An unknown name opens a new stream.
    """
    lanes = list(recording.lanes)
    where = int(recording.lane[after])
    if lane is not None:
        rank = recording.traces[int(recording.trace[after])].rank
        wanted = [i for i, one in enumerate(lanes) if one.name == lane and one.rank == rank]
        where = wanted[0] if wanted else len(lanes)
        if not wanted:
            lanes.append(Lane(rank, lane, True))
    end = int(recording.start[after] + recording.duration[after])
    return replace(
        recording,
        lanes=tuple(lanes),
        role=np.append(recording.role, np.int8(TaskRole.DEVICE)),
        trace=np.append(recording.trace, recording.trace[after]),
        event=np.append(recording.event, recording.event[after]),
        lane=np.append(recording.lane, np.int32(where)),
        start=np.append(recording.start, end),
        duration=np.append(recording.duration, round(seconds * 1e9)),
        launched=np.append(recording.launched, recording.launched[after]),
        edges=np.concatenate([recording.edges, [[len(recording), after]]]),
        communicates=np.append(recording.communicates, False),
    )


def move(recording: Recording, chosen: Flags, *, lane: str) -> Recording:
    """Move operations of the device to another stream of their rank; an unknown name opens a new one.

    A moved operation keeps its launch and its waits for other streams. It no longer waits for the operation before it
    on its old stream, and what followed there no longer waits for it: who asks for this says that neither needs the
    other.
    """
    moved = np.flatnonzero(chosen & (recording.role == TaskRole.DEVICE))
    lanes, where = list(recording.lanes), recording.lane.copy()
    for task in moved.tolist():
        rank = recording.lanes[int(recording.lane[task])].rank
        found = [i for i, one in enumerate(lanes) if one.name == lane and one.rank == rank]
        if not found:
            lanes.append(Lane(rank, lane, True))
            found = [len(lanes) - 1]
        where[task] = found[0]
    return replace(recording, lanes=tuple(lanes), lane=where, edges=_without_order(recording, moved))


def _without_order(recording: Recording, moved: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the edges without those that only say which operation came before which on a stream of the moved ones."""
    lane, role = recording.lane, recording.role
    before: dict[int, int] = {}
    last: dict[int, int] = {}
    device = np.flatnonzero(role == TaskRole.DEVICE)
    for task in device[np.lexsort((device, recording.start[device]))].tolist():
        before[task] = last.get(int(lane[task]), -1)
        last[int(lane[task])] = task
    gone = set(moved.tolist())
    behind: dict[int, list[int]] = {}
    for target, source in recording.edges.tolist():
        behind.setdefault(source, []).append(target)
    kept = []
    for target, source in recording.edges.tolist():
        if role[source] != TaskRole.DEVICE or role[target] not in (TaskRole.LATENCY, TaskRole.DEVICE):
            kept.append((target, source))
            continue
        reached = {target} if role[target] == TaskRole.DEVICE else set(behind.get(target, ()))
        along = {t for t in reached if role[t] == TaskRole.DEVICE and lane[t] == lane[source]}
        if along & gone:
            continue
        if source in gone and along:
            earlier = before[source]
            while earlier in gone:
                earlier = before[earlier]
            if earlier >= 0:
                kept.append((target, earlier))
            continue
        kept.append((target, source))
    return np.array(kept, dtype=np.int64).reshape(-1, 2)


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise RequestError(f"{text!r} is no regular expression: {error}") from None


def _launched_by(recording: Recording, pattern: re.Pattern[str]) -> Flags:
    found = np.zeros(len(recording), dtype=bool)
    for number, trace in enumerate(recording.traces):
        work = device_work(trace)
        around = launchers(trace, work)
        matches = np.array([pattern.search(name) is not None for name in trace.names], dtype=bool)
        hit = np.zeros(len(work), dtype=bool)
        for which in (around.inner, around.outer):
            hit |= (which >= 0) & matches[trace.name[which]]
        found |= (
            (recording.trace == number)
            & (recording.role == TaskRole.DEVICE)
            & np.isin(recording.event, work.event[hit])
        )
    return found


def _within(recording: Recording, pattern: re.Pattern[str]) -> Flags:
    """Return which tasks of the host lie in a range or operator of their thread whose name matches."""
    found = np.zeros(len(recording), dtype=bool)
    host = np.isin(recording.role, (TaskRole.HOST, TaskRole.CALL))
    for number, trace in enumerate(recording.traces):
        ranges = trace.of_kind(Kind.ANNOTATION, Kind.OPERATOR)
        matches = np.array([pattern.search(name) is not None for name in trace.names], dtype=bool)
        ranges = ranges[matches[trace.name[ranges]]]
        shift = recording.clocks[number]
        for at in np.unique(trace.lane[ranges]).tolist():
            named = f"thread {trace.lanes[at][1]}"
            lanes = [i for i, one in enumerate(recording.lanes) if one.name == named and one.rank == trace.rank]
            own = ranges[trace.lane[ranges] == at]
            start, end = trace.start[own] + shift, np.maximum.accumulate(trace.end[own]) + shift
            mine = np.flatnonzero(host & (recording.trace == number) & np.isin(recording.lane, lanes))
            middle = recording.start[mine] + recording.duration[mine] // 2
            where = np.searchsorted(start, middle, side="right") - 1
            found[mine] |= (where >= 0) & (middle < end[np.maximum(where, 0)])
    return found
