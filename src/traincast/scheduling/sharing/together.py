"""Runs the steps of jobs that share a node's network or a device together, event by event, to see their slowdowns.

A :class:`StepProgram` is one step of a job as its node sees it: stretches of computation on one lane, messages beside
it, and who waits for whom. Steps repeat. Programs that run together put weights on shared resources, which serve them
max-min fairly, as links share their bandwidth among flows and devices their time among processes. So a message that was
hidden behind computation may become longer without any loss, until it is no longer hidden.

The nodes of most jobs are alike, and one of them stands for all. Those of a job with parameter servers are not:
:class:`traincast.scheduling.sharing.server_programs.ServerProgram` has all its workers and servers, each on its own
node.

Nothing makes jobs keep the phase in which they started, and fair links do not push them apart: two equal jobs stay as
far apart as they began. So slowdowns are means over several phases.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, Self

import numpy as np
import numpy.typing as npt

from traincast.errors import RequestError
from traincast.simulate.event_queue import Uses, execute_queue
from traincast.strategy.costs import ragged, starts_of

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

SHARED: Final = ("device", "memory", "receive", "send", "switch_receive", "switch_send")
"""Resources that jobs can share: the time of a device, its memory's bandwidth, both directions of a node's NICs, and
both directions of the uplink of a leaf switch."""
_PHASES: Final = 4
"""Phases between two jobs over which a slowdown is averaged."""
_LONGEST_STEPS: Final = 8
"""Steps of the program with the longest step that are simulated."""
_MOST_TASKS: Final = 6000
"""Most tasks of one program; if its steps would be more, fewer and longer ones stand for them."""
_WARM_UP: Final = 0.25
_GOLDEN: Final = (math.sqrt(5.0) - 1.0) / 2.0


class Program(Protocol):
    """A step that can run together with others."""

    @property
    def step_s(self) -> float:
        """The seconds of a step that runs alone."""

    @property
    def num_tasks(self) -> int:
        """The tasks of one step."""

    @property
    def draws(self) -> bool:
        """Whether it puts any weight on a resource that can be shared."""

    def most(self, resource: str) -> float:
        """The largest weight that it puts on a resource; one that is not known in advance counts as all of it."""

    def only(self, *resources: str) -> Self:
        """The program with the weights on these resources only."""

    def slowed(self, times: int) -> Self:
        """The program with steps ``times`` as long; beside a much slower program, it has the same effect."""

    def repeated(self, steps: int, *, begin_s: float, nodes: Sequence[int]) -> RepeatedSteps:
        """Return the tasks of ``steps`` steps from ``begin_s`` on; ``nodes`` are the nodes where it meets others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedSteps:
    """Some steps of a program as columns of the event engine.

    ``resources`` are the kind and the place of each resource. A resource whose kind is in :data:`SHARED` is shared by
    all programs; any other is the program's own. ``ends``: the tasks with which every step ends, [steps, tasks]; a step
    ends at the mean of their ends.
    """

    duration: Floats
    lane_start: Ints
    lanes: Ints
    by_arrival: Bools
    predecessor_start: Ints
    predecessors: Ints
    release: Floats
    use_start: Ints
    use_resource: Ints
    use_weight: Floats
    resources: tuple[tuple[str, int], ...]
    fair: Bools
    ends: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProgram:
    """One step as tasks: seconds alone, a lane (−1: none), the tasks that each waits for, and its weights.

    Tasks of a lane run in the order in which they stand. ``weights``
    has, for some of :data:`SHARED`, the share of the resource that each task uses while it runs alone. The next step
    begins when all tasks have ended.
    """

    duration: Floats
    lane: Ints
    after: tuple[tuple[int, ...], ...]
    weights: dict[str, Floats] = field(hash=False)

    def __post_init__(self) -> None:
        unknown = sorted(set(self.weights) - set(SHARED))
        if unknown:
            raise RequestError(f"resource {unknown[0]!r} cannot be shared: expected one of {', '.join(SHARED)}")

    @property
    def step_s(self) -> float:
        """The seconds of a step that runs alone."""
        return float(run_steps([self], [1])[0][-1])

    @property
    def num_tasks(self) -> int:
        """The tasks of one step."""
        return len(self.duration)

    @property
    def draws(self) -> bool:
        """Whether it puts any weight on a resource that can be shared."""
        return bool(self.weights)

    def most(self, resource: str) -> float:
        """The largest weight that it puts on a resource."""
        return float(self.weights[resource].max(initial=0.0)) if resource in self.weights else 0.0

    def only(self, *resources: str) -> StepProgram:
        """The program with the weights on these resources only."""
        kept = {name: weight for name, weight in self.weights.items() if name in resources}
        return StepProgram(duration=self.duration, lane=self.lane, after=self.after, weights=kept)

    def scaled(self, share: float) -> StepProgram:
        """The program with its network weights times ``share``: what its node's share of NICs is of all NICs."""
        weights = {n: w * share if n in ("receive", "send") else w for n, w in self.weights.items()}
        return StepProgram(duration=self.duration, lane=self.lane, after=self.after, weights=weights)

    def below_switches(self, demand: float) -> StepProgram:
        """The program with weights on the uplinks of its switches: ``demand`` times those on the NICs of a node."""
        weights = {
            f"switch_{n}": np.minimum(1.0, self.weights[n] * demand) for n in ("receive", "send") if self.most(n)
        }
        return StepProgram(
            duration=self.duration, lane=self.lane, after=self.after, weights={**self.weights, **weights}
        )

    def slowed(self, times: int) -> StepProgram:
        """The program with steps ``times`` as long; beside a much slower program, it has the same effect."""
        return StepProgram(duration=self.duration * times, lane=self.lane, after=self.after, weights=self.weights)

    def repeated(self, steps: int, *, begin_s: float, nodes: Sequence[int] = (0,)) -> RepeatedSteps:
        """Return the tasks of ``steps`` steps from ``begin_s`` on; they put their weights on each of ``nodes``."""
        size, names = len(self.duration), [name for name in SHARED if name in self.weights]
        resources = tuple((name, node) for name in names for node in nodes)
        columns = [(number, self.weights[name].tolist()) for number, (name, _) in enumerate(resources)]
        drawn = [[(number, weight[task]) for number, weight in columns if weight[task] > 0.0] for task in range(size)]
        waited = set().union(*map(set, self.after)) if size else set()
        sinks = [task for task in range(size) if task not in waited]
        after: list[tuple[int, ...]] = []
        for step in range(steps):
            base = len(after)
            before = () if not step else (base - 1,)
            after += [tuple(base + n for n in own) or before for own in self.after]
            after.append(tuple(base + task for task in sinks))  # the end of the step, which takes no time
        uses = [*drawn, []] * steps
        lane_start, lanes = ragged([*(() if lane < 0 else (lane,) for lane in self.lane.tolist()), ()] * steps)
        predecessor_start, predecessors = ragged(after)
        return RepeatedSteps(
            duration=np.tile(np.append(self.duration, 0.0), steps),
            lane_start=lane_start,
            lanes=lanes,
            by_arrival=np.zeros(int(self.lane.max(initial=-1)) + 1, dtype=np.bool_),
            predecessor_start=predecessor_start,
            predecessors=predecessors,
            release=np.full(steps * (size + 1), begin_s),
            use_start=starts_of(np.array([len(each) for each in uses], dtype=np.int64)),
            use_resource=np.array([resource for each in uses for resource, _ in each], dtype=np.int64),
            use_weight=np.array([weight for each in uses for _, weight in each], dtype=np.float64),
            resources=resources,
            fair=np.ones(len(resources), dtype=np.bool_),
            ends=np.arange(1, steps + 1)[:, None] * (size + 1) - 1,
        )


Nodes = Sequence[Sequence[int]]
"""For every program, the places where it meets others: its own first node is the first of these, and so on."""


def slowdowns(programs: Sequence[Program], *, nodes: Nodes | None = None) -> tuple[float, ...]:
    """Return how many times longer a step of each program takes while all run together; the mean over phases.

    By default, all programs meet on one node. ``nodes`` are as in :func:`together`.
    """
    found = over_phases(programs, nodes=nodes)
    return tuple(float(np.mean(each)) for each in zip(*found, strict=True))


def over_phases(programs: Sequence[Program], *, nodes: Nodes | None = None) -> list[tuple[float, ...]]:
    """Return the slowdowns of all programs in each of several phases between them."""
    return [
        together(
            programs,
            phases=[math.modf(_GOLDEN * number * phase / _PHASES)[0] for number in range(len(programs))]
            if len(programs) > 2
            else [0.0, phase / _PHASES][: len(programs)],
            nodes=nodes,
        )
        for phase in range(_PHASES)
    ]


def together(
    programs: Sequence[Program], *, phases: Sequence[float] | None = None, nodes: Nodes | None = None
) -> tuple[float, ...]:
    """Return the slowdown of each program while all run together; 1 is as fast as alone.

    Each program starts after the share of its own step that ``phases`` has. ``nodes`` has, for every program, the
    shared node on which each of its own nodes runs; for a program whose nodes are alike, it has all nodes on which the
    program meets others. A number below 0 is a node that no other program uses.
    """
    if len(programs) < 2 or not _contend(programs):
        return (1.0,) * len(programs)
    alone = [program.step_s for program in programs]
    horizon = _LONGEST_STEPS * max(alone)
    counts = [max(2, math.ceil(horizon / max(seconds, 1e-12))) for seconds in alone]
    run = list(programs)
    for number, program in enumerate(programs):
        if counts[number] * program.num_tasks > _MOST_TASKS:
            each = max(1, counts[number] // (4 * _LONGEST_STEPS))
            run[number], alone[number] = program.slowed(each), alone[number] * each
            counts[number] = max(2, math.ceil(horizon / alone[number]))
    begins = [0.0 if phases is None else phase * seconds for phase, seconds in zip(phases or alone, alone, strict=True)]
    ends = run_steps(run, counts, begins=begins, nodes=nodes)
    last = min(float(own[-1]) for own in ends)
    first = max(*begins, _WARM_UP * last)
    found = []
    for own, begin, seconds in zip(ends, begins, alone, strict=True):
        edges = np.append(begin, own)
        inside = edges[(edges >= first) & (edges <= last * (1.0 + 1e-12))]  # whole steps, while all programs run
        inside = inside if len(inside) > 1 else edges[:2]
        found.append(max(1.0, float(inside[-1] - inside[0]) / (len(inside) - 1) / seconds))
    return tuple(found)


def _contend(programs: Sequence[Program]) -> bool:
    """Whether the programs could ever ask for more than all of a resource."""
    return any(sum(program.most(name) for program in programs) > 1.0 + 1e-9 for name in SHARED)


def run_steps(
    programs: Sequence[Program],
    counts: Sequence[int],
    *,
    begins: Sequence[float] | None = None,
    nodes: Nodes | None = None,
) -> list[Floats]:
    """Return the ends of all steps of every program, which run ``counts`` steps from the times ``begins`` on."""
    begins = begins or [0.0] * len(programs)
    nodes = nodes or [(0,)] * len(programs)
    parts = [
        program.repeated(count, begin_s=begin, nodes=own)
        for program, count, begin, own in zip(programs, counts, begins, nodes, strict=True)
    ]
    number: dict[tuple[int, str, int], int] = {}
    fair: list[bool] = []
    resource: list[Ints] = []
    for order, part in enumerate(parts):
        names = []
        for (kind, node), is_fair in zip(part.resources, part.fair.tolist(), strict=True):
            key = (-1 if kind in SHARED and node >= 0 else order, kind, node)
            if key not in number:
                number[key] = len(number)
                fair.append(is_fair)
            names.append(number[key])
        resource.append(np.array(names, dtype=np.int64)[part.use_resource])
    tasks = starts_of(np.array([len(part.duration) for part in parts], dtype=np.int64))
    lanes = starts_of(np.array([len(part.by_arrival) for part in parts], dtype=np.int64))
    _, end = execute_queue(
        np.concatenate([part.duration for part in parts]),
        lane_start=_chained([part.lane_start for part in parts]),
        lanes=np.concatenate([part.lanes + first for part, first in zip(parts, lanes[:-1], strict=True)]),
        predecessor_start=_chained([part.predecessor_start for part in parts]),
        predecessors=np.concatenate([p.predecessors + first for p, first in zip(parts, tasks[:-1], strict=True)]),
        num_lanes=int(lanes[-1]),
        uses=Uses(
            start=_chained([part.use_start for part in parts]),
            resource=np.concatenate(resource),
            weight=np.concatenate([part.use_weight for part in parts]),
            capacity=np.ones(len(number)),
            fair=np.array(fair, dtype=np.bool_),
        ),
        release=np.concatenate([part.release for part in parts]),
        by_arrival=np.concatenate([part.by_arrival for part in parts]),
    )
    return [end[part.ends + first].mean(axis=1) for part, first in zip(parts, tasks[:-1], strict=True)]


def _chained(starts: Sequence[Ints]) -> Ints:
    """The starts of ragged columns that follow one another."""
    return starts_of(np.concatenate([np.diff(own) for own in starts]))
