"""Failures and repairs of devices, nodes and switches, drawn from a law or read from a table.

The table has the columns ``time_s,kind,target,repair_s[,gpu]``.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias, get_args

import numpy as np

from traincast.errors import FileFormatError, RequestError, UnknownNameError
from traincast.scheduling.joblogs.source import open_source, printable
from traincast.scheduling.joblogs.table import Bools, Floats, need, read_table
from traincast.scheduling.space.cluster import NodeIndex
from traincast.scheduling.space.nodes import MAX_GPUS_PER_NODE

Kind: TypeAlias = Literal["device", "node", "switch"]
Gpus: TypeAlias = tuple[tuple[int, int], ...]
"""(node, bits of its GPUs) pairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureLaw:
    """How often each device, node or switch fails, and how long its repair takes.

    The time from a repair to the next failure follows a Weibull distribution with mean ``mtbf_s`` and this ``shape``.
    A shape of 1 is exponential; below 1, failures cluster; above 1, they come from wear. Repair times are exponential
    with mean ``repair_s``, or all equal to it if ``repair_is_fixed``.
    """

    kind: Kind
    mtbf_s: float
    repair_s: float
    shape: float = 1.0
    repair_is_fixed: bool = False

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise UnknownNameError("kind of failure", self.kind, get_args(Kind))
        for name, value in (("mtbf_s", self.mtbf_s), ("shape", self.shape)):
            if not (math.isfinite(value) and value > 0):
                raise RequestError(f"failures of {self.kind}s: {name}={value}: expected a number above 0")
        if not (math.isfinite(self.repair_s) and self.repair_s >= 0):
            raise RequestError(f"failures of {self.kind}s: repair_s={self.repair_s}: expected seconds from 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureEvent:
    """One known failure: its time, its target, and the time to repair (``inf``: never).

    ``target`` is the name of a node or a switch; for a device, its node, and ``gpu`` its number there.
    """

    time_s: float
    kind: Kind
    target: str
    repair_s: float
    gpu: int = 0

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise UnknownNameError("kind of failure", self.kind, get_args(Kind))
        if not (math.isfinite(self.time_s) and self.time_s >= 0):
            raise RequestError(f"failure of {self.target}: time_s={self.time_s}: expected seconds from 0")
        if not self.repair_s >= 0:
            raise RequestError(f"failure of {self.target}: repair_s={self.repair_s}: expected seconds from 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Everything that may fail during a run: laws for classes of components, and known events."""

    laws: tuple[FailureLaw, ...] = ()
    events: tuple[FailureEvent, ...] = ()

    def process(self, layout: NodeIndex, *, seed: int = 0) -> FailureProcess:
        """Return the failures of one run on a cluster."""
        return FailureProcess(self, layout, seed=seed)


_FAILS: Final = 1
_BACK: Final = 0


class FailureProcess:
    """Failures and repairs in order of time, repairs first.

    Each component draws from a random sequence of its own, so its failures depend only on the seed, and not on other
    components or on jobs.
    """

    def __init__(self, failures: Failures, layout: NodeIndex, *, seed: int) -> None:
        self._heap: list[tuple[float, int, int]] = []
        self._gpus: list[Gpus] = []
        self._laws: list[tuple[FailureLaw, random.Random] | None] = []
        self._repairs: list[float] = []
        for law in failures.laws:
            for name, gpus in _components(law.kind, layout):
                draw = random.Random(f"{seed} {law.kind} {name}")  # noqa: S311  (no secret)
                self._add(gpus, _weibull(law, draw), (law, draw), 0.0)
        for event in failures.events:
            self._add(_target(event, layout), event.time_s, None, event.repair_s)

    def _add(self, gpus: Gpus, time_s: float, law: tuple[FailureLaw, random.Random] | None, repair_s: float) -> None:
        heapq.heappush(self._heap, (time_s, _FAILS, len(self._gpus)))
        self._gpus.append(gpus)
        self._laws.append(law)
        self._repairs.append(repair_s)

    @property
    def next_s(self) -> float:
        """Time of the next failure or repair; ``inf`` if there is none."""
        return self._heap[0][0] if self._heap else math.inf

    def pop(self) -> tuple[Gpus, bool]:
        """Remove and return the next event: its target, and whether it is a repair."""
        time_s, what, number = heapq.heappop(self._heap)
        found = self._laws[number]
        if what == _FAILS:
            repair = self._repairs[number] if found is None else _repair(*found)
            if repair < math.inf:
                heapq.heappush(self._heap, (time_s + repair, _BACK, number))
        elif found is not None:
            heapq.heappush(self._heap, (time_s + _weibull(*found), _FAILS, number))
        return self._gpus[number], what == _BACK


def _weibull(law: FailureLaw, draw: random.Random) -> float:
    return draw.weibullvariate(law.mtbf_s / math.gamma(1 + 1 / law.shape), law.shape)


def _repair(law: FailureLaw, draw: random.Random) -> float:
    return law.repair_s if law.repair_is_fixed or not law.repair_s else draw.expovariate(1 / law.repair_s)


def _components(kind: Kind, layout: NodeIndex) -> list[tuple[str, Gpus]]:
    nodes = layout.cluster.nodes
    if kind == "device":
        return [(f"{n.name}/{gpu}", ((at, 1 << gpu),)) for at, n in enumerate(nodes) for gpu in range(n.num_gpus)]
    if kind == "node":
        return [(node.name, ((at, layout.full[at]),)) for at, node in enumerate(nodes)]
    switches = {node.switch: None for node in nodes if node.switch}
    if not switches:
        raise RequestError("switches may fail, but no node names its switch: add a column switch to the nodes")
    return [(name, _below(name, layout)) for name in switches]


def _below(switch: str, layout: NodeIndex) -> Gpus:
    return tuple((at, layout.full[at]) for at, node in enumerate(layout.cluster.nodes) if node.switch == switch)


def _target(event: FailureEvent, layout: NodeIndex) -> Gpus:
    nodes: Sequence[str] = [node.name for node in layout.cluster.nodes]
    if event.kind == "switch":
        gpus = _below(event.target, layout)
        if not gpus:
            raise UnknownNameError("switch", event.target, {n.switch for n in layout.cluster.nodes if n.switch})
        return gpus
    if event.target not in nodes:
        raise UnknownNameError("node", event.target, nodes)
    at = nodes.index(event.target)
    if event.kind == "node":
        return ((at, layout.full[at]),)
    if not 0 <= event.gpu < layout.sizes[at]:
        raise RequestError(f"failure of GPU {event.gpu} of {event.target}: it has {layout.sizes[at]}, from 0 on")
    return ((at, 1 << event.gpu),)


COLUMNS: Final = ("time_s", "kind", "target", "repair_s", "gpu")
_KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


def load_failure_events(path: Path | str) -> tuple[FailureEvent, ...]:
    """Read one failure per row: its time, kind, node or switch, time to repair, and the GPU of the node.

    ``time_s`` is on the clock of the jobs' ``submit_s``. An empty ``repair_s`` means no repair.
    """
    path = Path(path)
    source = open_source(path)
    need(source, COLUMNS[:4], what="a list of failures")
    table = read_table(source, COLUMNS)
    if not len(table):
        raise FileFormatError(f"{path} has no failures: expected one on each line below the header")
    unparsable: dict[str, dict[int, str]] = {}
    times, repairs, gpus = (table.numbers(name, unparsable) for name in ("time_s", "repair_s", "gpu"))
    kinds: list[str] = table.texts("kind").tolist()

    def refuse(row: int, name: str, found: str, rule: str) -> FileFormatError:
        return FileFormatError(f"{path}: {table.place} {table.lines[row]} has {found} as {name}: {rule}; correct it")

    for name, cells in unparsable.items():
        for row, text in cells.items():
            raise refuse(row, name, repr(printable(text)), "expected a number")
    for name, values, sound, rule in (
        ("time_s", times, np.isfinite(times) & (times >= 0), "expected seconds from 0"),
        ("repair_s", repairs, ~(repairs < 0), "expected seconds from 0, or nothing where it never comes back"),
        ("gpu", gpus, np.isnan(gpus) | _is_number_of_gpu(gpus), "expected the number of a GPU of its node, from 0"),
    ):
        if not np.all(sound):
            row = int(np.flatnonzero(~sound)[0])
            raise refuse(row, name, "nothing" if np.isnan(values[row]) else f"{values[row]:.15g}", rule)
    unknown = next((row for row, kind in enumerate(kinds) if kind not in _KINDS), None)
    if unknown is not None:
        raise refuse(unknown, "kind", repr(printable(kinds[unknown])), f"expected {', '.join(_KINDS)}")
    return tuple(
        FailureEvent(
            time_s=time_s,
            kind=next(known for known in _KINDS if known == kind),
            target=target,
            repair_s=math.inf if math.isnan(repair) else repair,
            gpu=0 if math.isnan(gpu) else int(gpu),
        )
        for time_s, kind, target, repair, gpu in zip(
            times.tolist(), kinds, table.texts("target").tolist(), repairs.tolist(), gpus.tolist(), strict=True
        )
    )


def _is_number_of_gpu(values: Floats) -> Bools:
    return np.asarray((values >= 0) & (values < MAX_GPUS_PER_NODE) & (values == np.floor(values)))
