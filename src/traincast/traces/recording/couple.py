"""Couples the recordings of several ranks by their collectives.

A collective's kernel on one rank runs from the time that rank is ready until all are done: most of it may be waiting.
The ranks together tell the two apart. The transfer begins when the last rank is ready, and ends when the first is
done; it becomes one task that holds a stream of every rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from traincast.traces.files.trace import Ints
from traincast.traces.recording.recording import NOWHERE, Recording, TaskRole

_TOGETHER_NS: Final = 60_000
"""Kernels of one collective end together within this."""
_MOST_MISSING: Final = 4
"""Collectives by which one rank's record may begin or end before another's."""
_SKEW_NS: Final = 20_000
"""Clocks that differ by less are taken as they are."""


@dataclass(frozen=True, slots=True)
class _Member:
    """A kernel of a collective on one rank: its task, rank, begin and end."""

    task: int
    trace: int
    start: int
    end: int


def couple(recordings: Sequence[Recording]) -> Recording:
    """Return one recording of all ranks; that of a single rank is returned as it is."""
    if len(recordings) == 1:
        return recordings[0]
    joined, notes = _joined(recordings)
    groups = _groups(joined)
    if not groups:
        alone = "no collective ties the ranks together: they run side by side"
        return replace(joined, notes=(*notes, alone))
    return _coupled(joined, groups, notes)


def _joined(recordings: Sequence[Recording]) -> tuple[Recording, list[str]]:
    """Return the ranks side by side, on one clock; each begins when it was recorded to."""
    offsets, notes = _clocks(recordings)
    origins = [r.traces[0].origin - offset for r, offset in zip(recordings, offsets, strict=True)]
    tasks = np.cumsum([0, *(len(r) + 1 for r in recordings)])
    lanes = np.cumsum([0, *(len(r.lanes) for r in recordings)])
    parts: dict[str, list[Ints]] = defaultdict(list)
    for number, (recording, origin) in enumerate(zip(recordings, origins, strict=True)):
        base, shift = int(tasks[number]), origin - min(origins)
        begins = base + len(recording)
        roots = np.setdiff1d(np.arange(len(recording)), recording.edges[:, 0])
        parts["role"].append(np.append(recording.role, TaskRole.OPAQUE))
        parts["event"].append(np.append(recording.event, -1))
        parts["lane"].append(np.append(np.where(recording.lane >= 0, recording.lane + lanes[number], NOWHERE), NOWHERE))
        parts["start"].append(np.append(recording.start + shift, 0))
        parts["duration"].append(np.append(recording.duration, shift))
        parts["launched"].append(np.append(np.where(recording.launched >= 0, recording.launched + shift, -1), -1))
        parts["trace"].append(np.full(len(recording) + 1, number))
        parts["communicates"].append(np.append(recording.communicates, False))
        parts["edges"].append(recording.edges + base)
        parts["edges"].append(np.stack([roots + base, np.full(len(roots), begins)], axis=1))
    whole = {name: np.concatenate(columns) for name, columns in parts.items()}
    marks = tuple(
        tuple((a + base if a >= 0 else base + len(r), b + base if b >= 0 else -1) for a, b in r.marks[0])
        for r, base in zip(recordings, tasks.tolist(), strict=False)
    )
    joined = Recording(
        traces=tuple(r.traces[0] for r in recordings),
        steps=tuple(r.steps[0] for r in recordings),
        lanes=tuple(lane for r in recordings for lane in r.lanes),
        role=whole["role"].astype(np.int8),
        trace=whole["trace"].astype(np.int32),
        event=whole["event"],
        lane=whole["lane"].astype(np.int32),
        start=whole["start"],
        duration=whole["duration"],
        launched=whole["launched"],
        edges=whole["edges"],
        communicates=whole["communicates"].astype(bool),
        marks=marks,
        clocks=tuple(origin - min(origins) for origin in origins),
    )
    return joined, notes + list(dict.fromkeys(note for r in recordings for note in r.notes))


def _clocks(recordings: Sequence[Recording]) -> tuple[list[int], list[str]]:
    """Return by how many nanoseconds each rank's clock is ahead of the first's; collectives end at one time."""
    ends = []
    for recording in recordings:
        own = np.flatnonzero(recording.communicates)
        own = own[np.argsort(recording.start[own], kind="stable")]
        names = [recording.traces[0].name_of(e) for e in recording.event[own].tolist()]
        ends.append((names, recording.end[own] + recording.traces[0].origin))
    offsets, notes = [0], []
    for number in range(1, len(recordings)):
        offset = _ahead(*ends[0], *ends[number])
        offsets.append(offset if abs(offset) > _SKEW_NS else 0)
    if any(offsets):
        notes.append("the clocks of the ranks differ; they were set by the ends of collectives")
    return offsets, notes


def _ahead(reference: list[str], at: Ints, names: list[str], times: Ints) -> int:
    """Return by how much the second rank's collectives end later, on its own clock, than the same ones of the first.

    Either record may begin a few collectives earlier. Of the ways to lay one over the other, the steadiest counts.
    """
    best, steadiest = 0, np.inf
    for lag in range(-_MOST_MISSING, _MOST_MISSING + 1):
        first, second = max(0, -lag), max(0, lag)
        count = min(len(reference) - first, len(names) - second)
        if count < 1 or reference[first : first + count] != names[second : second + count]:
            continue
        apart = times[second : second + count] - at[first : first + count]
        middle = float(np.median(apart))
        spread = float(np.median(np.abs(apart - middle))) + _SKEW_NS * abs(lag) / max(count, 1)
        if spread < steadiest:
            best, steadiest = int(middle), spread
    return best


def _groups(joined: Recording) -> list[list[_Member]]:
    """Return the kernels that belong to one collective: of one name and group, on different ranks, ending together."""
    by_kind: dict[tuple[str, str], list[_Member]] = defaultdict(list)
    for task in np.flatnonzero(joined.communicates).tolist():
        number, event = int(joined.trace[task]), int(joined.event[task])
        trace = joined.traces[number]
        message = trace.messages.get(event)
        start = int(joined.start[task])
        member = _Member(task, number, start, start + int(joined.duration[task]))
        by_kind[trace.name_of(event), message.group if message else ""].append(member)
    found = []
    for members in by_kind.values():
        members.sort(key=lambda m: m.end)
        group: list[_Member] = []
        for member in members:
            apart = group and (member.end - group[0].end > _TOGETHER_NS or any(m.trace == member.trace for m in group))
            if apart:
                found.append(group)
                group = []
            group.append(member)
        found.append(group)
    whole = [g for g in found if len(g) > 1 and max(m.start for m in g) < min(m.end for m in g)]
    return sorted(whole, key=lambda g: g[0].end)


def _coupled(joined: Recording, groups: list[list[_Member]], notes: list[str]) -> Recording:
    """Return the ranks with one task per collective; what each rank's kernel ran on after it stays with that rank."""
    size = len(joined)
    start, duration, role = joined.start.copy(), joined.duration.copy(), joined.role.copy()
    communicates = joined.communicates.copy()
    into = np.arange(size)
    new: dict[str, list[int]] = defaultdict(list)
    others: dict[int, tuple[int, ...]] = {}
    tails = []
    for number, group in enumerate(groups):
        task = size + number
        first = group[0]
        begin, end = max(m.start for m in group), min(m.end for m in group)
        new["lane"].append(int(joined.lane[first.task]))
        new["trace"].append(first.trace)
        new["event"].append(int(joined.event[first.task]))
        new["start"].append(begin)
        new["duration"].append(end - begin)
        new["launched"].append(int(joined.launched[first.task]))
        others[task] = tuple(int(joined.lane[m.task]) for m in group[1:])
        for member in group:
            into[member.task] = task
            start[member.task], duration[member.task] = end, member.end - end
            role[member.task], communicates[member.task] = TaskRole.LATENCY, False
            tails.append((member.task, task))
    edges = joined.edges.copy()
    edges[:, 0] = into[edges[:, 0]]
    count = len(groups)
    alone = int(joined.communicates.sum()) - len(tails)
    if alone:
        notes.append(
            f"{alone} kernels of collectives have no counterpart on another rank: waiting is part of their time"
        )
    return Recording(
        traces=joined.traces,
        steps=joined.steps,
        lanes=joined.lanes,
        role=np.append(role, np.full(count, int(TaskRole.DEVICE), dtype=np.int8)).astype(np.int8),
        trace=np.append(joined.trace, new["trace"]).astype(np.int32),
        event=np.append(joined.event, new["event"]).astype(np.int64),
        lane=np.append(joined.lane, new["lane"]).astype(np.int32),
        start=np.append(start, new["start"]).astype(np.int64),
        duration=np.append(duration, new["duration"]).astype(np.int64),
        launched=np.append(joined.launched, new["launched"]).astype(np.int64),
        edges=np.concatenate([edges, np.array(tails, dtype=np.int64).reshape(-1, 2)]),
        communicates=np.append(communicates, np.ones(count, dtype=bool)),
        marks=joined.marks,
        clocks=joined.clocks,
        others=others,
        notes=tuple(notes),
    )
