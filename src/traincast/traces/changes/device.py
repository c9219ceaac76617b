"""Changes of what runs on the device: another device, half precision, larger or smaller buckets of gradients.

A trace does not say when the parts of a bucket were ready. Gradients of a bucket become ready while the kernels between
the bucket before it (or the begin of the backward pass) and the bucket itself run; the parts are taken to become ready
evenly over that time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Final

import numpy as np

from traincast.cluster.hardware import Device
from traincast.estimate import CostModel
from traincast.strategy.plan import Category
from traincast.traces.changes.change import device_tasks, needs_peers, updating, without_device
from traincast.traces.changes.edit import scale
from traincast.traces.changes.scaling import PRODUCT, DeviceScaling, device_scaling, is_half, task_factors
from traincast.traces.files.trace import Flags, Ints
from traincast.traces.recording.device import device_work
from traincast.traces.recording.labels import phases_of
from traincast.traces.recording.recording import Recording, TaskRole
from traincast.traces.show import device_of


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


_PRODUCT_GAIN: Final = (3.0, 1.5, 6.0)
"""How much faster products are in half precision: expected (Zhu et al., "Daydream", 2020), least and most."""
_OTHER_GAIN: Final = (2.0, 1.3, 2.0)
"""The same for kernels that are bound by memory."""
_SHORT_NS: Final = 4_000
"""Kernels of this length or less do not become shorter."""
_BYTES: Final[dict[str, int]] = {"Float": 4, "Half": 2, "BFloat16": 2, "Double": 8}


@dataclass(frozen=True, slots=True)
class OtherDevice:
    """The same step on another device."""

    target: Device
    cost_model: CostModel
    assumption: ClassVar[str] = (
        "the same operators run with kernels as good as on the recorded device; hosts and links stay as they are"
    )

    @property
    def text(self) -> str:
        """What is asked, in words."""
        return f"on {self.target.name}"

    def refusal(self, recording: Recording) -> str | None:
        """Refuses a trace of a device that the catalog does not know."""
        for trace in recording.traces:
            if device_of(trace) is None:
                said = trace.devices[0].name if trace.devices else "no device"
                return f"the recorded device is not in the catalog (the trace says {said!r})"
        return None

    def apply(self, recording: Recording, level: int = 0) -> Recording:
        """Scale every kernel."""
        factors = task_factors(recording, self.scalings(recording), level=level)
        return scale(recording, recording.role == TaskRole.DEVICE, factors)

    def scalings(self, recording: Recording) -> list[DeviceScaling]:
        """Return how each trace's operations change."""
        found = []
        for trace in recording.traces:
            source = device_of(trace)
            assert source is not None, "refusal() comes first"
            work = device_work(trace)
            found.append(device_scaling(trace, work, source=source, target=self.target, cost_model=self.cost_model))
        return found


@dataclass(frozen=True, slots=True)
class HalfPrecision:
    """Products and the traffic of other kernels in half precision; weights and their update stay in fp32."""

    text: ClassVar[str] = "mixed precision"
    assumption: ClassVar[str] = (
        "products become 3 times as fast and other kernels twice; casts and the loss scale are not counted"
    )

    def refusal(self, recording: Recording) -> str | None:
        """Refuses a trace whose products run in half precision already, or a device without tensor cores."""
        if without_device(recording):
            return "the trace has no kernels: what half precision takes on a processor depends on its instructions"
        took = recording.duration[self._compute(recording)].sum()
        already = self._named(recording, half=True)
        if took and recording.duration[already].sum() > 0.5 * took:
            return "most kernels run in half precision already"
        for trace in recording.traces:
            device = device_of(trace)
            if device is not None and device.peak("fp16") < 2 * device.peak("fp32"):
                return f"{device.name} multiplies in half precision less than twice as fast as in fp32"
        return None

    def apply(self, recording: Recording, level: int = 0) -> Recording:
        """Scale kernels of forward and backward that compute in fp32."""
        chosen = self._compute(recording) & ~self._named(recording, half=True) & ~updating(recording)
        products = self._named(recording, half=False)
        gain = np.where(products, _PRODUCT_GAIN[level], _OTHER_GAIN[level])
        floor = np.minimum(recording.duration, _SHORT_NS)
        changed = np.maximum(floor, np.rint(recording.duration / gain).astype(np.int64))
        return recording.with_durations(np.where(chosen, changed, recording.duration))

    @staticmethod
    def _compute(recording: Recording) -> Flags:
        computes: Flags = (recording.role == TaskRole.DEVICE) & ~recording.communicates
        return computes

    @staticmethod
    def _named(recording: Recording, *, half: bool) -> Flags:
        """Return kernels whose names say half precision, or that they are products."""
        found = np.zeros(len(recording), dtype=bool)
        for trace, tasks, events in device_tasks(recording):
            fits = [is_half(n) if half else PRODUCT.search(n) is not None for n in trace.names]
            found[tasks] = np.array(fits, dtype=bool)[trace.name[events]]
        return found


_MOST_PARTS: Final = 64
"""Parts of one recorded bucket beyond which an answer means little."""


@dataclass(frozen=True, slots=True)
class Buckets:
    """Gradients exchanged in buckets of ``nbytes``."""

    nbytes: float
    assumption: ClassVar[str] = (
        "a bucket is sent when its last gradient is ready, and takes a latency plus its bytes over a rate; parts "
        "of a recorded bucket become ready evenly while it was computed"
    )

    @property
    def text(self) -> str:
        """What is asked, in words."""
        return f"buckets of {self.nbytes / 1e6:g} MB"

    def refusal(self, recording: Recording) -> str | None:
        """Refuses what the trace does not tell: sizes and transfers."""
        if (alone := needs_peers(recording)) is not None:
            return alone
        tasks, sizes = self._buckets(recording)
        if not len(tasks):
            return "the trace does not state the sizes of all-reduces: record it with a release that writes them"
        if len(np.unique(sizes)) < 2:
            return "all recorded buckets have one size: how the time grows with size is not known"
        if sizes.max() > _MOST_PARTS * self.nbytes:
            return (
                f"the recorded buckets have up to {sizes.max() / 1e6:.0f} MB: more than {_MOST_PARTS} parts of one say "
                "nothing any more"
            )
        return None

    def apply(self, recording: Recording, level: int = 0) -> Recording:
        """Join buckets: the last of each takes the time of all, the others none. Cut those that are larger.

        The ends of the interval let the parts of a bucket be ready when the bucket began, or only when it was full.
        """
        tasks, sizes = self._buckets(recording)
        rate, latency = np.polyfit(sizes, recording.duration[tasks], 1)
        rate, latency = max(rate, 0.0), max(latency, 0.0)
        duration = recording.duration.copy()
        joined, held = 0.0, 0
        starts = np.sort(recording.step_bounds(0)[:, 0])
        step = np.searchsorted(starts, recording.start[tasks], side="right")
        for at, (task, size) in enumerate(zip(tasks.tolist(), sizes.tolist(), strict=True)):
            joined, held = joined + size, held + 1
            last = at + 1 == len(tasks) or step[at + 1] != step[at] or joined + sizes[at + 1] > self.nbytes
            if not last:
                duration[task] = 0
                continue
            if held > 1:
                duration[task] = round(latency + rate * joined)
            joined, held = 0.0, 0
        parts = np.ceil(sizes / self.nbytes).astype(np.int64)
        if parts.max() < 2:
            return recording.with_durations(duration)
        part_ns = np.rint(latency + rate * sizes / parts).astype(np.int64)
        joined_up = recording.with_durations(duration)
        return split_buckets(joined_up, tasks, parts, part_ns, step=step, early=-float(level))

    @staticmethod
    def _buckets(recording: Recording) -> tuple[Ints, Ints]:
        """Return the all-reduces of stated size, in order, and their bytes."""
        found = []
        for task in np.flatnonzero(recording.communicates & (recording.role == TaskRole.DEVICE)).tolist():
            message = recording.traces[int(recording.trace[task])].messages.get(int(recording.event[task]))
            if message and "allreduce" in message.name.replace("_", "").lower() and message.in_elements > 0:
                found.append((int(recording.start[task]), task, message.in_elements * _BYTES.get(message.dtype, 4)))
        found.sort()
        return np.array([f[1] for f in found], dtype=np.int64), np.array([f[2] for f in found], dtype=np.int64)
