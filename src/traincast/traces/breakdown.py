"""Where the recorded time of a rank went, in the words of a forecast's report.

Every instant of the steps belongs to one part: ``compute`` (a kernel that is no communication runs), ``exposed
communication`` (only communication runs), ``bubble`` (only communication runs, and it waits for another rank; known
if the other ranks are given), ``copies`` (only copies and fills run), ``host`` (nothing runs, and what runs next was
not launched yet), and ``idle`` (nothing runs, for another reason).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traincast.traces.files.kineto import Kind
from traincast.traces.files.trace import Flags, Ints, ProfilerTrace
from traincast.traces.recording.device import DeviceWork
from traincast.traces.recording.pace import StepWindow
from traincast.traces.recording.recording import Recording, TaskRole


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceBreakdown:
    """Seconds of an average step by part; they add up to the step."""

    compute_s: float
    exposed_communication_s: float
    bubble_s: float
    copies_s: float
    host_s: float
    idle_s: float

    @property
    def total_s(self) -> float:
        """The sum of all parts."""
        parts = (self.compute_s, self.exposed_communication_s, self.bubble_s, self.copies_s, self.host_s, self.idle_s)
        return sum(parts)


def breakdown(
    trace: ProfilerTrace,
    work: DeviceWork,
    windows: Sequence[StepWindow],
    *,
    num_steps: int,
    transfers: tuple[Ints, Ints] | None = None,
) -> TraceBreakdown:
    """Return the breakdown of one rank's steps, which ran in ``windows``.

    ``transfers``: begin and end of the transfers of its collectives.
    """
    bounds = np.array([(w.begin, w.end) for w in windows], dtype=np.int64)
    begin, end = int(bounds.min()), int(bounds.max())
    kernel = trace.kind[work.event] == Kind.KERNEL
    talks = work.communicates
    times = [work.start, work.end, bounds.reshape(-1)]
    if transfers is not None:
        times += list(transfers)
    edge = np.unique(np.concatenate(times))
    edge = edge[(edge >= begin) & (edge <= end)]
    width = np.where(covered(edge, bounds[:, 0], bounds[:, 1]), np.diff(edge), 0)
    computes = covered(edge, work.start[kernel & ~talks], work.end[kernel & ~talks])
    sends = covered(edge, work.start[talks], work.end[talks])
    moves = sends if transfers is None else covered(edge, *transfers)
    copies = covered(edge, work.start[~kernel], work.end[~kernel])
    exposed = sends & ~computes & moves
    waits = sends & ~computes & ~moves
    copying = copies & ~computes & ~sends
    nothing = ~(computes | sends | copies)
    host = _before_launch(trace, work, edge, nothing & (width > 0))
    count = num_steps * 1e9
    return TraceBreakdown(
        compute_s=float(width[computes].sum()) / count,
        exposed_communication_s=float(width[exposed].sum()) / count,
        bubble_s=float(width[waits].sum()) / count,
        copies_s=float(width[copying].sum()) / count,
        host_s=host / count,
        idle_s=(float(width[nothing].sum()) - host) / count,
    )


def transfers_of(recording: Recording, number: int) -> tuple[Ints, Ints] | None:
    """Return when the collectives of one rank moved data, on the clock of its trace; ``None`` if that is not known."""
    if not recording.others:
        return None
    own = {i for i, lane in enumerate(recording.lanes) if lane.rank == recording.traces[number].rank}
    talks = np.flatnonzero(recording.communicates & (recording.role == TaskRole.DEVICE))
    mine = [task for task in talks.tolist() if own & {int(recording.lane[task]), *recording.others.get(task, ())}]
    shift = recording.clocks[number]
    return recording.start[mine] - shift, recording.end[mine] - shift


def covered(edge: Ints, start: Ints, end: Ints) -> Flags:
    """Return for each stretch between two edges whether any interval covers it."""
    change = np.zeros(len(edge) + 1, dtype=np.int64)
    np.add.at(change, np.searchsorted(edge, start, side="left"), 1)
    np.add.at(change, np.searchsorted(edge, end, side="left"), -1)
    depth = np.cumsum(change[: max(len(edge) - 1, 0)])
    covered: Flags = depth > 0
    return covered


def _before_launch(trace: ProfilerTrace, work: DeviceWork, edge: Ints, nothing: Flags) -> float:
    """Return the nanoseconds in which nothing ran because the next operation had not been launched."""
    if not len(work):
        return float(np.diff(edge)[nothing].sum())
    total = 0.0
    order = np.argsort(work.start, kind="stable")
    launched = np.where(work.call >= 0, trace.end[work.call], 0)[order]
    for at in np.flatnonzero(nothing).tolist():
        begin, end = int(edge[at]), int(edge[at + 1])
        following = int(np.searchsorted(work.start[order], end, side="left"))
        if following >= len(order):
            total += end - begin
        else:
            total += max(0, min(end, int(launched[following])) - begin)
    return total
