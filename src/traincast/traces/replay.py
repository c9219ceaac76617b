"""Replays a recording with unchanged durations, and says how far it can be trusted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traincast.report.critical_path import critical_tasks
from traincast.simulate import Timeline
from traincast.traces.recording import Recording, TaskRole, clock_shift
from traincast.traces.to_plan import RecordedPlan, to_plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """A recording that has run in the simulator: the plan, its timeline, and the steps of each trace in seconds.

    ``pace_s`` is the time per step from the begin of the first step until all work of the last is done, on the hosts
    and on the devices. A single step on the host may be shorter while the queue of the device fills.
    """

    recording: Recording
    planned: RecordedPlan
    timeline: Timeline
    step_s: tuple[tuple[float, ...], ...]
    pace_s: float

    @property
    def total_s(self) -> float:
        """The time until the last task ends."""
        return self.timeline.step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """How well a replay with unchanged durations agrees with what was recorded.

    Errors are relative. ``strict_error`` is that of a replay without the delays that nothing explains;
    ``opaque_share`` the share of these delays in the time that decides the end.
    """

    measured_s: float
    replayed_s: float
    error: float
    worst_step_error: float
    strict_s: float
    strict_error: float
    strict_worst_step_error: float
    opaque_share: float
    measured_steps_s: tuple[float, ...]
    replayed_steps_s: tuple[float, ...]
    notes: tuple[str, ...]


def run(recording: Recording) -> Replayed:
    """Run a recording in the simulator."""
    planned = to_plan(recording)
    timeline = planned.run()
    end = timeline.end[planned.place]
    last = float(end.max(initial=0.0))  # a trace without threads has no task that ends its step
    bounds = [
        [(float(end[a]) if a >= 0 else 0.0, float(end[b]) if b >= 0 else last) for a, b in marks]
        for marks in recording.marks
    ]
    steps = tuple(tuple(last - first for first, last in pairs) for pairs in bounds)
    return Replayed(
        recording=recording,
        planned=planned,
        timeline=timeline,
        step_s=steps,
        pace_s=_pace(recording, end, [(pairs[0][0], pairs[-1][1]) for pairs in bounds]),
    )


def measured_pace_s(recording: Recording) -> float:
    """The recorded time per step, counted as :attr:`Replayed.pace_s` counts it."""
    end = recording.end / 1e9
    shifts = [clock_shift(recording, number) for number in range(len(recording.traces))]
    bounds = [
        ((steps[0].start + shift) / 1e9, (steps[-1].end + shift) / 1e9)
        for steps, shift in zip(recording.steps, shifts, strict=True)
    ]
    return _pace(recording, end, bounds)


def _pace(recording: Recording, end: npt.NDArray[np.float64], bounds: list[tuple[float, float]]) -> float:
    """Return the seconds per step, from the end of every task and the begin and end of the steps of every rank."""
    last = np.array(
        [steps[-1].end + clock_shift(recording, number) for number, steps in enumerate(recording.steps)], dtype=np.int64
    )
    counted = (recording.launched >= 0) & (recording.launched <= last[recording.trace])
    finish = max([float(end[counted].max(initial=0.0)), *(stop for _, stop in bounds)])
    return (finish - min(start for start, _ in bounds)) / max(len(steps) for steps in recording.steps)


def measured_total_s(recording: Recording) -> float:
    """The recorded time from the start of the first trace to the end of the last task."""
    return float(recording.end.max()) / 1e9


def replay(recording: Recording) -> ReplayReport:
    """Replay a recording as it is and without unexplained delays, and compare both with what was recorded."""
    kept, strict = run(recording), run(recording.strict())
    measured = measured_total_s(recording)
    steps = tuple(step.seconds for steps in recording.steps for step in steps)
    return ReplayReport(
        measured_s=measured,
        replayed_s=kept.total_s,
        error=kept.total_s / measured - 1,
        worst_step_error=_worst(kept, steps),
        strict_s=strict.total_s,
        strict_error=strict.total_s / measured - 1,
        strict_worst_step_error=_worst(strict, steps),
        opaque_share=_opaque_share(kept),
        measured_steps_s=steps,
        replayed_steps_s=tuple(s for steps in kept.step_s for s in steps),
        notes=recording.notes,
    )


def _worst(replayed: Replayed, measured: tuple[float, ...]) -> float:
    """Return the relative error of the step that is furthest off."""
    errors = [
        r / m - 1 for r, m in zip((s for steps in replayed.step_s for s in steps), measured, strict=True) if m > 0
    ]
    return max(errors, key=abs, default=0.0)


def _opaque_share(replayed: Replayed) -> float:
    """Return the share of unexplained delays on the critical path.

    The time at which each rank began to record, and work launched before that, are given, not delays.
    """
    place, timeline = replayed.planned.place, replayed.timeline
    opaque = np.zeros(len(place), dtype=bool)
    recording = replayed.recording
    opaque[place[np.flatnonzero((recording.role == TaskRole.OPAQUE) & (recording.event >= 0))]] = True
    path = critical_tasks(timeline)
    took = timeline.end[path] - timeline.start[path]
    return float(took[opaque[path]].sum()) / max(timeline.step_s, 1e-30)
