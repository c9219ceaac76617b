"""Compares two traces, or a trace with a forecast: by part of the step, and operator by operator; and its page."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np

from traincast.graph.vocabulary import Phase
from traincast.pages import page_text
from traincast.simulate import Timeline
from traincast.strategy.plan import Category, Stream
from traincast.traces.files.kineto import Kind
from traincast.traces.files.trace import ProfilerTrace
from traincast.traces.operators.launches import operator_times
from traincast.traces.recording.device import device_work
from traincast.traces.recording.labels import BACKWARD, OPTIMIZER, launched_within
from traincast.traces.recording.pace import launched_in, windows_of
from traincast.traces.recording.processor import on_processor, own_times, processor_times
from traincast.traces.recording.steps import TraceStep, steps_of
from traincast.traces.replay import unexplained
from traincast.traces.show import TraceSummary, summarize_traces

_MOST_OPERATORS: Final = 200


def diff_page(found: TraceDiff) -> str:
    """Return the page of ``found``; of its operators, those with the largest changes."""
    data = asdict(found)
    data["left_out"] = max(0, len(found.operators) - _MOST_OPERATORS)
    data["operators"] = data["operators"][:_MOST_OPERATORS]
    return page_text("trace_diff", data)


_STREAMS: Final = (Stream.COMPUTE, Stream.COMMUNICATION, Stream.DATA, Stream.SEND_FORWARD, Stream.SEND_BACKWARD)
"""Lanes of a forecast that a device has kernels on."""
_SPELLINGS: Final = (
    (re.compile(r"^aten::(cudnn|miopen|_?native|thnn)_"), "aten::"),
    (re.compile(r"_$"), ""),
)
"""Parts of operators' names that differ between releases and back ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Seconds per step of one thing before and after; ``count_before`` and ``count_after`` are kernels per step."""

    name: str
    before_s: float
    after_s: float
    count_before: float = 0.0
    count_after: float = 0.0

    @property
    def change_s(self) -> float:
        """Seconds per step that came on top."""
        return self.after_s - self.before_s


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceDiff:
    """What differs between two runs: the step, its parts, and operators by time on the device or a ``processor``."""

    before: str
    after: str
    step: Difference
    parts: tuple[Difference, ...]
    operators: tuple[Difference, ...] = field(repr=False)
    notes: tuple[str, ...] = ()
    processor: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Everything, as ``trace diff --json`` prints it."""
        return asdict(self)


def compare_traces(
    before: Sequence[ProfilerTrace], after: Sequence[ProfilerTrace], *, named: str | None = None
) -> TraceDiff:
    """Compare the traces of two jobs; operators are the outermost around each launch, of the first rank."""
    one, other = (summarize_traces(traces, named=named) for traces in (before, after))
    notes = [f"{found.ranks[0].path}: {text}" for found in (one, other) for text in unexplained(found.opaque_share)]
    if one.ranks[0].device != other.ranks[0].device:
        notes.append(f"the devices differ: {one.ranks[0].device} and {other.ranks[0].device}")
    return TraceDiff(
        before=one.ranks[0].path,
        after=other.ranks[0].path,
        step=Difference(name="step", before_s=one.step_s, after_s=other.step_s),
        parts=tuple(_parts(one, other)),
        operators=tuple(_operators(before[0], after[0], named)),
        notes=tuple(notes),
        processor=on_processor(before[0]) and on_processor(after[0]),
    )


def _parts(one: TraceSummary, other: TraceSummary) -> list[Difference]:
    names = ("compute_s", "exposed_communication_s", "bubble_s", "copies_s", "host_s", "idle_s")
    return [
        Difference(
            name=name.removesuffix("_s").replace("_", " "),
            before_s=getattr(one.breakdown, name),
            after_s=getattr(other.breakdown, name),
        )
        for name in names
    ]


def _operators(before: ProfilerTrace, after: ProfilerTrace, named: str | None) -> list[Difference]:
    """Return the device time per step of every operator in either trace, the largest change first."""
    found: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0, 0.0])
    for side, trace in enumerate((before, after)):
        steps = steps_of(trace, named=named)
        times = (
            processor_times(trace, steps, whole=True)
            if on_processor(trace)
            else operator_times(trace, device_work(trace), steps, whole=True)
        )
        for entry in times:
            row = found[plain_name(entry.name)]
            row[side] += entry.seconds
            row[2 + side] += entry.kernels
    rows = [
        Difference(name=name, before_s=a, after_s=b, count_before=n, count_after=m)
        for name, (a, b, n, m) in found.items()
    ]
    return sorted(rows, key=lambda row: -abs(row.change_s))


def plain_name(name: str) -> str:
    """Return an operator's name as all releases and back ends would spell it."""
    for pattern, text in _SPELLINGS:
        name = pattern.sub(text, name)
    return name


def compare_forecast(
    trace: ProfilerTrace, timeline: Timeline, *, named: str | None = None, notes: Sequence[str] = ()
) -> TraceDiff:
    """Compare a forecast's step (before) with a trace (after): the device's time by phase, and the step.

    ``timeline`` is that of a forecast, of which the first row is compared. ``notes`` come before those of the
    comparison itself.
    """
    spans = timeline.spans()
    forecast = dict.fromkeys(Category, 0.0)
    for stream in _STREAMS:
        lane = spans.on(0, stream)
        category = timeline.plan.category[lane.task]
        for c in Category if stream is Stream.COMPUTE else (Category.COMMUNICATION,):
            forecast[c] += float((lane.end - lane.start)[category == c].sum())
    steps, processor = steps_of(trace, named=named), on_processor(trace)
    measured = _phases_of_processor(trace, steps) if processor else _phases(trace, steps)
    what = "operators" if processor else "kernels"
    names = {
        Category.FORWARD: f"forward {what}",
        Category.BACKWARD: f"backward {what}",
        Category.OPTIMIZER: f"update {what}",
        Category.COMMUNICATION: f"communication {what}",
    }
    parts = [Difference(name=text, before_s=forecast[c], after_s=measured[c]) for c, text in names.items()]
    step = sum(one.length for one in windows_of(device_work(trace), steps)) / 1e9 / len(steps)
    between = timeline.step_s - sum(forecast[c] for c in names), step - sum(measured[c] for c in names)
    parts.append(Difference(name=f"between {what}, or beside them", before_s=between[0], after_s=between[1]))
    if measured[Category.COMMUNICATION]:
        notes = (*notes, "communication of a trace includes waiting for other ranks")
    return TraceDiff(
        before="forecast",
        after=str(trace.path),
        step=Difference(name="step", before_s=timeline.step_s, after_s=step),
        parts=tuple(parts),
        operators=(),
        notes=tuple(notes),
        processor=processor,
    )


def _phases(trace: ProfilerTrace, steps: Sequence[TraceStep]) -> dict[Category, float]:
    """Return the seconds per step on the device by phase."""
    work = device_work(trace)
    took = np.where(launched_in(work, steps), work.end - work.start, 0) / 1e9 / len(steps)
    kernel = np.isin(trace.kind[work.event], (Kind.KERNEL, Kind.FILL))
    backward = launched_within(trace, work.event, BACKWARD)
    update = launched_within(trace, work.event, OPTIMIZER)
    talks = work.communicates
    return {
        Category.FORWARD: float(took[kernel & ~backward & ~update & ~talks].sum()),
        Category.BACKWARD: float(took[kernel & backward & ~update & ~talks].sum()),
        Category.OPTIMIZER: float(took[kernel & update & ~talks].sum()),
        Category.COMMUNICATION: float(took[talks].sum()),
    }


def _phases_of_processor(trace: ProfilerTrace, steps: Sequence[TraceStep]) -> dict[Category, float]:
    """Return the seconds per step of a processor's operators by phase."""
    category = {
        Phase.FORWARD: Category.FORWARD,
        Phase.BACKWARD: Category.BACKWARD,
        Phase.OPTIMIZER: Category.OPTIMIZER,
        None: Category.COMMUNICATION,
    }
    took = dict.fromkeys(category.values(), 0.0)
    for one in own_times(trace, steps):
        took[category[one.phase]] += one.ns / 1e9 / len(steps)
    return took
