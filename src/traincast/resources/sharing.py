"""How jobs slow one another down that share a node's network or a device: their steps run together, event by event.

A :class:`StepProgram` is one step of a job as its node sees it: stretches of computation on one lane, messages beside
it, and who waits for whom. Steps repeat. Programs that run together put weights on shared resources, which serve them
max-min fairly, as links share their bandwidth among flows and devices their time among processes. A message that was
hidden behind computation may so become longer without any loss, until it is no longer hidden.

Nothing makes jobs keep the phase in which they started, and fair links do not push them apart: two equal jobs stay as
far apart as they began. So slowdowns are means over several phases.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.errors import RequestError
from traincast.simulate.event_state import Uses
from traincast.simulate.events import execute_events
from traincast.strategy.costs import ragged, starts_of

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SHARED: Final = ("device", "memory", "receive", "send")
"""Resources that jobs can share: the time of a device, its memory's bandwidth, both directions of a node's NICs."""
_PHASES: Final = 4
"""Phases between two jobs over which a slowdown is averaged."""
_LONGEST_STEPS: Final = 8
"""Steps of the program with the longest step that are simulated."""
_MOST_TASKS: Final = 6000
"""Most tasks of one program; if its steps would be more, fewer and longer ones stand for them."""
_WARM_UP: Final = 0.25
_GOLDEN: Final = (math.sqrt(5.0) - 1.0) / 2.0


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
        return float(_ends([self], [1], [0.0])[0][-1])

    def only(self, *resources: str) -> StepProgram:
        """The program with the weights on these resources only."""
        kept = {name: weight for name, weight in self.weights.items() if name in resources}
        return StepProgram(duration=self.duration, lane=self.lane, after=self.after, weights=kept)

    def scaled(self, share: float) -> StepProgram:
        """The program with its network weights times ``share``: what its node's share of NICs is of all NICs."""
        weights = {n: w * share if n in ("receive", "send") else w for n, w in self.weights.items()}
        return StepProgram(duration=self.duration, lane=self.lane, after=self.after, weights=weights)

    def slowed(self, times: int) -> StepProgram:
        """The program with steps ``times`` as long; beside a much slower program, it has the same effect."""
        return StepProgram(duration=self.duration * times, lane=self.lane, after=self.after, weights=self.weights)


def square_wave(*, busy_s: float, idle_s: float, resource: str = "send", weight: float = 1.0) -> StepProgram:
    """A program that uses ``weight`` of one resource for ``busy_s`` seconds, then nothing for ``idle_s`` seconds."""
    return StepProgram(
        duration=np.array([busy_s, idle_s]),
        lane=np.zeros(2, dtype=np.int64),
        after=((), (0,)),
        weights={resource: np.array([weight, 0.0])},
    )


def slowdowns(programs: Sequence[StepProgram]) -> tuple[float, ...]:
    """Return how many times longer a step of each program takes while all run together; the mean over phases."""
    found = [
        together(programs, phases=[math.modf(_GOLDEN * number * phase / _PHASES)[0] for number in range(len(programs))])
        if len(programs) > 2
        else together(programs, phases=[0.0, phase / _PHASES][: len(programs)])
        for phase in range(_PHASES)
    ]
    return tuple(float(np.mean(each)) for each in zip(*found, strict=True))


def together(programs: Sequence[StepProgram], *, phases: Sequence[float] | None = None) -> tuple[float, ...]:
    """Return the slowdown of each program, begun at ``phases`` of its own step; 1 is as fast as alone."""
    if len(programs) < 2 or not _contend(programs):
        return (1.0,) * len(programs)
    alone = [program.step_s for program in programs]
    horizon = _LONGEST_STEPS * max(alone)
    counts = [max(2, math.ceil(horizon / max(seconds, 1e-12))) for seconds in alone]
    run = list(programs)
    for number, program in enumerate(programs):
        if counts[number] * len(program.duration) > _MOST_TASKS:
            each = max(1, counts[number] // (4 * _LONGEST_STEPS))
            run[number], alone[number] = program.slowed(each), alone[number] * each
            counts[number] = max(2, math.ceil(horizon / alone[number]))
    begins = [0.0 if phases is None else phase * seconds for phase, seconds in zip(phases or alone, alone, strict=True)]
    ends = _ends(run, counts, begins)
    last = min(float(own[-1]) for own in ends)
    first = max(*begins, _WARM_UP * last)
    found = []
    for own, begin, seconds in zip(ends, begins, alone, strict=True):
        edges = np.append(begin, own)
        inside = edges[(edges >= first) & (edges <= last * (1.0 + 1e-12))]  # whole steps, while all programs run
        inside = inside if len(inside) > 1 else edges[:2]
        found.append(max(1.0, float(inside[-1] - inside[0]) / (len(inside) - 1) / seconds))
    return tuple(found)


def _contend(programs: Sequence[StepProgram]) -> bool:
    """Whether the programs could ever ask for more than all of a resource."""
    return any(
        sum(float(p.weights[name].max(initial=0.0)) for p in programs if name in p.weights) > 1.0 + 1e-9
        for name in SHARED
    )


def _ends(programs: Sequence[StepProgram], counts: Sequence[int], begins: Sequence[float]) -> list[Floats]:
    """The ends of all steps of every program, which run ``counts`` steps from the times ``begins`` on."""
    duration: list[Floats] = []
    lanes: list[tuple[int, ...]] = []
    after: list[tuple[int, ...]] = []
    uses: list[list[tuple[int, float]]] = []
    release: list[float] = []
    joins: list[Ints] = []
    num_lanes = 0
    for program, count, begin in zip(programs, counts, begins, strict=True):
        size, own = len(program.duration), []
        weights = [(SHARED.index(name), weight.tolist()) for name, weight in program.weights.items()]
        drawn = [[(number, weight[task]) for number, weight in weights if weight[task] > 0.0] for task in range(size)]
        held = [() if lane < 0 else (num_lanes + lane,) for lane in program.lane.tolist()]
        waited = set().union(*map(set, program.after)) if size else set()
        sinks = [task for task in range(size) if task not in waited]
        for step in range(count):
            base = len(after)
            before = () if not step else (base - 1,)
            after += [tuple(base + n for n in own_after) or before for own_after in program.after]
            lanes += held
            uses += drawn
            duration.append(program.duration)
            release += [begin if not step else 0.0] * size
            after.append(tuple(base + task for task in sinks))  # the end of the step, which takes no time
            lanes.append(())
            uses.append([])
            duration.append(np.zeros(1))
            release.append(begin)
            own.append(len(after) - 1)
        joins.append(np.array(own, dtype=np.int64))
        num_lanes += int(program.lane.max(initial=-1)) + 1
    lane_start, lane_of = ragged(lanes)
    predecessor_start, predecessors = ragged(after)
    _, end = execute_events(
        np.concatenate(duration),
        lane_start=lane_start,
        lanes=lane_of,
        predecessor_start=predecessor_start,
        predecessors=predecessors,
        num_lanes=num_lanes,
        uses=Uses(
            start=starts_of(np.array([len(each) for each in uses], dtype=np.int64)),
            resource=np.array([resource for each in uses for resource, _ in each], dtype=np.int64),
            weight=np.array([weight for each in uses for _, weight in each], dtype=np.float64),
            capacity=np.ones(len(SHARED)),
            fair=np.ones(len(SHARED), dtype=np.bool_),
        ),
        release=np.array(release),
    )
    return [end[own] for own in joins]
