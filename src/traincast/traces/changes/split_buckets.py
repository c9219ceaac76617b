"""Cuts recorded collectives into smaller ones that begin while gradients are still being computed.

A trace does not say when the parts of a bucket were ready. Gradients of a bucket become ready while the kernels between
the bucket before it (or the begin of the backward pass) and the bucket itself run; the parts are taken to become ready
evenly over that time.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from traincast.strategy.plan import Category
from traincast.traces.files.trace import Ints
from traincast.traces.recording.labels import phases_of
from traincast.traces.recording.recording import Recording, TaskRole


def split_buckets(
    recording: Recording, tasks: Ints, parts: Ints, part_ns: Ints, *, step: Ints, early: float
) -> Recording:
    """Return the recording with each collective of ``tasks`` as ``parts`` ones of ``part_ns`` each.

    ``step`` numbers the step of each task. ``early`` shifts when parts are ready: 0 evenly over the time of the bucket,
    1 all but the last at its begin, −1 all at its end.
    """
    compute = np.flatnonzero((recording.role == TaskRole.DEVICE) & ~recording.communicates)
    compute = compute[np.argsort(recording.end[compute], kind="stable")]
    ends, rank = recording.end[compute], recording.trace[compute]
    begins = _backward_begins(recording, tasks, step)
    duration = recording.duration.copy()
    added: list[tuple[int, int, int, list[int]]] = []
    for at, (task, count, took) in enumerate(zip(tasks.tolist(), parts.tolist(), part_ns.tolist(), strict=True)):
        if count < 2:
            continue
        duration[task] = took
        ready = int(recording.start[task])
        begin = begins[at] if at == 0 or step[at] != step[at - 1] else int(recording.start[tasks[at - 1]])
        for part in range(1, count):
            share = part / count
            share = share * (1 - early) if early >= 0 else share + (1 - share) * -early
            when = begin + round((ready - begin) * share)
            last = np.searchsorted(ends, when, side="right")
            sources = [int(compute[:last][rank[:last] == r][-1]) for r in np.unique(rank[:last]).tolist()]
            added.append((task, max(begin, min(when, ready - 1)), took, sources))
    return _with_parts(replace(recording, duration=duration), added)


def _backward_begins(recording: Recording, tasks: Ints, step: Ints) -> list[int]:
    """Return, for each task, when the backward pass of its step began, or the task itself if that is not known."""
    backward = np.flatnonzero((phases_of(recording) == Category.BACKWARD) & (recording.role == TaskRole.DEVICE))
    starts = np.sort(recording.start[backward])
    found = []
    for at, task in enumerate(tasks.tolist()):
        earlier = tasks[step < step[at]]
        after = int(recording.end[earlier].max()) if len(earlier) else -1
        place = int(np.searchsorted(starts, after, side="left"))
        own = int(recording.start[task])
        found.append(min(int(starts[place]), own) if place < len(starts) else own)
    return found


def _with_parts(recording: Recording, added: list[tuple[int, int, int, list[int]]]) -> Recording:
    """Add collectives like ``task`` that begin at a time, last a time, and wait for other tasks."""
    if not added:
        return recording
    like = np.array([task for task, *_ in added], dtype=np.int64)
    first = len(recording)
    edges = [(first + i, source) for i, (*_, sources) in enumerate(added) for source in sources]
    edges += [(task, first + i) for i, (task, *_) in enumerate(added)]
    others = {first + i: recording.others[task] for i, (task, *_) in enumerate(added) if task in recording.others}
    return replace(
        recording,
        role=np.append(recording.role, recording.role[like]),
        trace=np.append(recording.trace, recording.trace[like]),
        event=np.append(recording.event, recording.event[like]),
        lane=np.append(recording.lane, recording.lane[like]),
        start=np.append(recording.start, [start for _, start, _, _ in added]),
        duration=np.append(recording.duration, [took for _, _, took, _ in added]),
        launched=np.append(recording.launched, recording.launched[like]),
        edges=np.concatenate([recording.edges, np.array(edges, dtype=np.int64).reshape(-1, 2)]),
        communicates=np.append(recording.communicates, np.ones(len(added), dtype=bool)),
        others={**recording.others, **others},
    )
