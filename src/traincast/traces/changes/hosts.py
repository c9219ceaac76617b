"""Changes of hosts, links, launches and waits that a what-if question makes to a recording; see ``change``."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import numpy as np

from traincast.traces.changes.change import (
    NO_COMMUNICATION,
    UPDATE,
    device_tasks,
    needs_peers,
    updating,
    without_device,
)
from traincast.traces.changes.edit import scale, select
from traincast.traces.files.kineto import Kind
from traincast.traces.files.trace import Flags, Ints
from traincast.traces.recording.calls import DEVICE_SYNC, GRAPH_LAUNCH, STREAM_SYNC, matching
from traincast.traces.recording.device import device_work
from traincast.traces.recording.recording import Recording, TaskRole

HOST: Final = (TaskRole.HOST, TaskRole.CALL)
LOADER: Final = r"^enumerate\(DataLoader\).*__next__"

_HANDOVER_NS: Final = 500_000
"""Time in which the training receives a batch of another process."""
_PAGE_BYTES: Final = 4096
_PAGE_NS: Final = 200
"""Memory of another process is mapped page by page when it is first read: that is when the batch is copied."""
_FROM_HOST: Final = re.compile(r"HtoD \(Pageable")
_BATCH_BYTES: Final = 1_000_000
_CROWDED: Final = 1.25
"""How much slower hosts may be beside workers that use the same caches and memory."""
_LATENCY_NS: Final = 10_000
"""Part of a collective that more bandwidth does not shorten, in the slowest plausible answer."""
_FUSED_TRAFFIC: Final[dict[str, float]] = {"SGD": 5 / 11, "Adam": 7 / 27, "AdamW": 7 / 27, "Adagrad": 5 / 14}
"""Bytes that a fused update moves, over those of one kernel per operation and tensor."""
_FUSED_HOST: Final = (0.1, 0.3, 0.03)
_FUSED_SURE: Final = (1.0, 2.0, 0.7)
_FUSED_SURE_PROCESSOR: Final = (1.0, 1.8, 0.3)
"""The host's time of a fused update over that of many kernels, and factors of the traffic: expected, slow and fast.

On a processor, results of single operations that are larger than its caches are mapped page by page: without them, an
update can take a tenth of the time.
"""
_FUSED_OPERATOR: Final = re.compile(r"^aten::_fused_")
_FUSED_FROM: Final = 20
"""Kernels of an update from which fusing them pays."""


@dataclass(frozen=True, slots=True)
class FasterHost:
    """Hosts that are ``factor`` times as fast."""

    factor: float
    assumption: ClassVar[str] = "all time of threads scales, in the driver as well; devices and links stay as they are"

    @property
    def text(self) -> str:
        """What is asked, in words."""
        return f"hosts {self.factor:g} times as fast"

    def refusal(self, recording: Recording) -> str | None:
        """Never refuses."""
        return None

    def apply(self, recording: Recording, level: int = 0) -> Recording:
        """Scale threads and calls; in the slowest answer, calls of the driver stay as they are."""
        roles = (TaskRole.HOST,) if level > 0 and self.factor > 1 else HOST
        return scale(recording, select(recording, roles=roles), 1 / self.factor)


@dataclass(frozen=True, slots=True)
class FasterNetwork:
    """Links that are ``factor`` times as fast."""

    factor: float
    assumption: ClassVar[str] = (
        "only the time scales in which all ranks of a collective take part; waiting follows from the ranks"
    )

    @property
    def text(self) -> str:
        """What is asked, in words."""
        return f"a network {self.factor:g} times as fast"

    def refusal(self, recording: Recording) -> str | None:
        """Refuses a rank alone: its kernels do not tell transfer from waiting."""
        return needs_peers(recording)

    def apply(self, recording: Recording, level: int = 0) -> Recording:
        """Scale transfers."""
        talks = recording.communicates & (recording.role == TaskRole.DEVICE)
        floor = np.minimum(recording.duration, _LATENCY_NS if level > 0 and self.factor > 1 else 0)
        changed = np.maximum(floor, np.rint(recording.duration / self.factor).astype(np.int64))
        return recording.with_durations(np.where(talks, changed, recording.duration))


@dataclass(frozen=True, slots=True)
class NoCommunication:
    """Ranks that neither exchange anything nor wait for one another."""

    text: ClassVar[str] = "no communication"
    assumption: ClassVar[str] = "kernels of collectives take no time; their launches stay"

    def refusal(self, recording: Recording) -> str | None:
        """Refuses a trace without communication."""
        return None if recording.communicates.any() else NO_COMMUNICATION

    def apply(self, recording: Recording, level: int = 0) -> Recording:
        """Let collectives take no time."""
        return recording.with_durations(np.where(recording.communicates, 0, recording.duration))


@dataclass(frozen=True, slots=True)
class LoaderWorkers:
    """Batches that ``workers`` processes of the data loader prepare beside the training."""

    workers: int
    assumption: ClassVar[str] = (
        "each worker prepares a batch in the recorded time, on processors that the training leaves free"
    )

    @property
    def text(self) -> str:
        """What is asked, in words."""
        return f"{self.workers} workers of the data loader"

    def refusal(self, recording: Recording) -> str | None:
        """Refuses a trace whose loader does not show, or has workers already."""
        inside = select(recording, within=LOADER, roles=HOST)
        if not inside.any():
            return "the trace shows no data loader (no range enumerate(DataLoader)…__next__)"
        names = {name for trace in recording.traces for name in trace.names}
        if not any("_SingleProcess" in n or (re.match(LOADER, n) and "_MultiProcessing" not in n) for n in names):
            return "the data loader has workers already: how long they take for a batch is not recorded"
        return None

    def apply(self, recording: Recording, level: int = 0) -> Recording:
        """Shorten the wait for a batch to what the workers do not hide."""
        inside = select(recording, within=LOADER, roles=HOST)
        count = sum(len(steps) for steps in recording.steps)
        batch = float(recording.duration[inside].sum()) / max(count, 1)
        step = float(np.mean([s.end - s.start for steps in recording.steps for s in steps]))
        late = max(0.0, batch / self.workers - (step - batch))
        left = late + (0 if level < 0 else _HANDOVER_NS * (1 + max(level, 0)))
        changed = scale(recording, inside, min(1.0, left / max(batch, 1.0)))
        if level < 0:
            return changed
        if level > 0:
            changed = scale(changed, select(recording, roles=HOST) & ~inside, _CROWDED)
        return changed.with_durations(changed.duration + self._mapped_ns(recording))

    @staticmethod
    def _mapped_ns(recording: Recording) -> Ints:
        """Return the nanoseconds by which copies of batches become longer."""
        more = np.zeros(len(recording), dtype=np.int64)
        for trace, tasks, events in device_tasks(recording):
            copies = matching(trace, _FROM_HOST) & (trace.kind == Kind.COPY) & (trace.nbytes >= _BATCH_BYTES)
            chosen = copies[events]
            more[tasks[chosen]] = trace.nbytes[events[chosen]] // _PAGE_BYTES * _PAGE_NS
        return more


@dataclass(frozen=True, slots=True)
class FusedOptimizer:
    """An update of all weights in few kernels."""

    text: ClassVar[str] = "a fused optimizer"
    assumption: ClassVar[str] = "a fused update reads and writes every state once, and takes a tenth of the host's time"

    def refusal(self, recording: Recording) -> str | None:
        """Refuses a trace without updates, or with few kernels in them."""
        names = {name for trace in recording.traces for name in trace.names}
        kernels = int(updating(recording).sum())
        steps = sum(len(s) for s in recording.steps)
        if not kernels and not (without_device(recording) and any(re.match(UPDATE, name) for name in names)):
            return "the trace shows no update of an optimizer (no range Optimizer.step)"
        if without_device(recording):
            fused = next((name for name in sorted(names) if _FUSED_OPERATOR.match(name)), None)
            return f"the update is fused already ({fused})" if fused else None
        if kernels < _FUSED_FROM * steps:
            return f"the update has {kernels / steps:.0f} kernels per step: it is fused already"
        return None

    def apply(self, recording: Recording, level: int = 0) -> Recording:
        """Scale the kernels, drop the delays between them, and shorten the host's time.

        On a processor, the whole update takes the time of its traffic: operators that only start others move nothing.
        """
        chosen = updating(recording)
        name = next((n for t in recording.traces for n in t.names if re.match(UPDATE, n)), "")
        kind = name.removeprefix("Optimizer.step#").partition(".")[0]
        traffic = _FUSED_TRAFFIC.get(kind, 0.4)
        if without_device(recording):
            left = min(1.0, traffic * _FUSED_SURE_PROCESSOR[level])
            return scale(recording, select(recording, within=UPDATE, roles=HOST), left)
        changed = scale(recording, chosen, min(1.0, traffic * _FUSED_SURE[level]))
        changed = scale(changed, select(recording, within=UPDATE, roles=HOST), _FUSED_HOST[level])
        delays = np.isin(recording.role, (TaskRole.LATENCY, TaskRole.OPAQUE))
        for number in range(len(recording.traces)):
            mine = recording.trace == number
            updated = recording.event[chosen & mine]
            delays_here = delays & mine & np.isin(recording.event, updated)
            changed = changed.with_durations(np.where(delays_here, 0, changed.duration))
        return changed


@dataclass(frozen=True, slots=True)
class GraphLaunch:
    """Steps that are launched as one graph."""

    text: ClassVar[str] = "steps launched as one graph"
    assumption: ClassVar[str] = (
        "forward, backward and update are one graph that is launched at once; loading batches stays"
    )

    def refusal(self, recording: Recording) -> str | None:
        """Refuses graphs whose kernels are missing, and steps in which the host waits for the device."""
        if without_device(recording):
            return "the trace has no kernels: nothing is launched on a device"
        for trace in recording.traces:
            work = device_work(trace)
            calls = trace.of_kind(Kind.CALL)
            graphs = calls[matching(trace, GRAPH_LAUNCH)[calls]]
            bare = int((~np.isin(graphs, work.call)).sum())
            if bare:
                return f"{bare} launches of graphs have no kernels in the trace: what they ran is not known"
            if len(graphs):
                return "the steps are launched as graphs already"
        waits = self._waits_within(recording)
        if waits:
            return f"the host waits for the device within a step ({waits}): a graph cannot contain that"
        return None

    @staticmethod
    def _waits_within(recording: Recording) -> str:
        """Return the name of a call that waits between the kernels of a step, or nothing.

        What waits before the first or after the last twentieth of a step's kernels can stay outside of the graph.
        """
        for trace, steps in zip(recording.traces, recording.steps, strict=True):
            work = device_work(trace)
            calls = trace.of_kind(Kind.CALL)
            waits = calls[(matching(trace, DEVICE_SYNC) | matching(trace, STREAM_SYNC))[calls]]
            for step in steps:
                launched = np.sort(work.launched[(work.launched >= step.start) & (work.launched < step.end)])
                if len(launched) < _FUSED_FROM:
                    continue
                first, last = launched[len(launched) // 20], launched[-1 - len(launched) // 20]
                inside = waits[(trace.start[waits] > first) & (trace.start[waits] < last)]
                if len(inside):
                    return trace.name_of(int(inside[0]))
        return ""

    def apply(self, recording: Recording, level: int = 0) -> Recording:
        """Let launches take no time, except what the loader and waits need."""
        inside = np.zeros(len(recording), dtype=bool)
        loading = select(recording, within=LOADER, roles=HOST)
        host = np.isin(recording.role, HOST)
        for number in range(len(recording.traces)):
            mine = host & (recording.trace == number)
            for start, end in recording.step_bounds(number).tolist():
                inside |= mine & (recording.start >= start) & (recording.end <= end)
        waiting = np.isin(np.arange(len(recording)), recording.edges[:, 0]) & (recording.role == TaskRole.CALL)
        return scale(recording, inside & ~loading & ~waiting, (0.02, 0.15, 0.0)[level])


@dataclass(frozen=True, slots=True)
class Overlapped:
    """Communication that compute does not wait for until the step ends."""

    text: ClassVar[str] = "communication overlapped with compute"
    assumption: ClassVar[str] = (
        "no kernel before the update needs a collective's result; each collective takes as long as before"
    )

    def refusal(self, recording: Recording) -> str | None:
        """Refuses a trace in which compute does not wait for communication."""
        if not recording.communicates.any():
            return NO_COMMUNICATION
        return None if self._waits(recording).any() else "no kernel waits for communication in this trace"

    def apply(self, recording: Recording, level: int = 0) -> Recording:
        """Drop the waits of compute for communication; in the slowest answer they stay."""
        if level > 0:
            return recording
        return replace(recording, edges=recording.edges[~self._waits(recording)])

    @staticmethod
    def _waits(recording: Recording) -> Flags:
        """Return the edges by which compute waits for communication on another stream."""
        target, source = recording.edges[:, 0], recording.edges[:, 1]
        device = np.isin(recording.role, (TaskRole.DEVICE, TaskRole.OPAQUE))
        crosses: Flags = (
            recording.communicates[source] & device[target] & ~recording.communicates[target]
            & (recording.lane[target] != recording.lane[source])
        )  # fmt: skip
        return crosses
