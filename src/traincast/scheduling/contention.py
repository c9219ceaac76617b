"""Jobs that share a node slow one another down by what they draw at once.

Jobs that span nodes share the NICs of each node on which they meet; jobs on shares of one GPU share its time and its
memory's bandwidth. How long a step then takes follows from the forecast steps of all jobs that meet, run together
(:mod:`traincast.resources.sharing`). A job that meets others on several nodes is as slow as on the worst of them.

Racks need no rule of their own: a forecast across racks already has only the job's own part of their uplinks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from traincast.errors import RequestError, UnknownNameError
from traincast.scheduling.forecasts import ask_of, is_described
from traincast.scheduling.job import Job
from traincast.scheduling.placement_rule import Placement
from traincast.scheduling.run import JobRun
from traincast.scheduling.space import UNIT, Allocation
from traincast.scheduling.speeds import PlacedGpus
from traincast.scheduling.step_times import StepTimes, What, Where
from traincast.scheduling.traces import Trace

if TYPE_CHECKING:
    from traincast.resources.sharing import StepProgram

SHARES: Final = {"exclusive": "exclusive", "blind": "consolidated", "complementary": "complementary"}
"""How jobs share nodes, each with its placement: not at all, as it comes, or with neighbours that suit them best."""
_MOST_TOGETHER: Final = 6
"""Most jobs that are run together; of more, those that are alike count as one group of this size."""


class Guest(NamedTuple):
    """A job where it is placed, as far as it matters to those it meets."""

    what: What
    where: Where


class Contention(Protocol):
    """Tells how much slower jobs are that meet on a node."""

    def guest(self, job: Job, placed: PlacedGpus) -> Guest | None:
        """Return what others notice of the job; ``None`` if nothing is known of what it draws."""

    def slowdowns(self, guests: tuple[Guest, ...], *, on_device: bool) -> tuple[float, ...]:
        """Return how many times longer the steps of jobs take that share a GPU (``on_device``), or else a node."""


class ForecastContention:
    """Slowdowns from the forecast steps of jobs; each group of jobs that meet is simulated once."""

    def __init__(self, steps: StepTimes) -> None:
        self.steps = steps
        self._known: dict[tuple[tuple[Guest, ...], bool], tuple[float, ...]] = {}

    def guest(self, job: Job, placed: PlacedGpus) -> Guest | None:
        """Return the job's model, batch and strategy, and its GPUs."""
        if not is_described(job) or not placed.nodes:
            return None
        return Guest(ask_of(job).what, self.steps.where(placed))

    def slowdowns(self, guests: tuple[Guest, ...], *, on_device: bool) -> tuple[float, ...]:
        """Return the slowdown of each guest."""
        order = sorted(range(len(guests)), key=lambda n: guests[n])
        key = (tuple(guests[n] for n in order), on_device)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._simulated(key[0], on_device)
        by_guest = dict(zip(order, found, strict=True))
        return tuple(by_guest[n] for n in range(len(guests)))

    def _simulated(self, guests: tuple[Guest, ...], on_device: bool) -> tuple[float, ...]:
        from traincast.resources.sharing import slowdowns

        programs = [self._program(guest, on_device) for guest in guests]
        drawing = [n for n, program in enumerate(programs) if program is not None and program.weights]
        found = [1.0] * len(guests)
        chosen = drawing[:_MOST_TOGETHER]
        together = slowdowns([program for n in chosen if (program := programs[n]) is not None])
        for n, slowdown in zip(chosen, together, strict=True):
            found[n] = slowdown
        for n in drawing[_MOST_TOGETHER:]:
            found[n] = max(together)
        return tuple(found)

    def _program(self, guest: Guest, on_device: bool) -> StepProgram | None:
        program = self.steps.program(guest.what, guest.where)
        if program is None:
            return None
        return program.only("device", "memory") if on_device else program.only("receive", "send")


class Tenants:
    """Who is on which node and GPU, and how much slower each job is for it."""

    def __init__(self, contention: Contention) -> None:
        self._contention = contention
        self._guests: dict[int, Guest | None] = {}
        self._on_node: dict[int, dict[int, JobRun]] = {}

    def add(self, run: JobRun, placed: PlacedGpus) -> list[JobRun]:
        """Let a job in on its nodes; returns all jobs that may now be slower, itself included."""
        assert run.allocation is not None
        self._guests[run.order] = self._contention.guest(run.job, placed)
        for node in run.allocation.nodes:
            self._on_node.setdefault(node, {})[run.order] = run
        return self._near(run.allocation)

    def remove(self, run: JobRun) -> list[JobRun]:
        """Let a job out; returns all jobs that may now be faster."""
        assert run.allocation is not None
        del self._guests[run.order]
        for node in run.allocation.nodes:
            del self._on_node[node][run.order]
        return self._near(run.allocation)

    def _near(self, allocation: Allocation) -> list[JobRun]:
        found = {order: run for node in allocation.nodes for order, run in self._on_node.get(node, {}).items()}
        return [found[order] for order in sorted(found)]

    def factor(self, run: JobRun) -> float:
        """Return the speed of a running job over its speed alone; above 1 if its share of a GPU is all it needs."""
        guest = self._guests.get(run.order)
        allocation = run.allocation
        if guest is None or allocation is None:
            return 1.0
        if allocation.units < UNIT:
            ((node, mask),) = allocation.gpus
            others = [other for other in self._here(node, run) if _on_gpu(other, node, mask)]
            return self._slowed(guest, others, on_device=True) * UNIT / allocation.units
        return min(
            (self._slowed(guest, self._here(node, run), on_device=False) for node in allocation.nodes), default=1.0
        )

    def factor_at(self, run: JobRun, placed: PlacedGpus, nodes: Iterable[int]) -> float:
        """Return the least factor of a waiting job and of those that it would meet on ``nodes``."""
        guest = self._contention.guest(run.job, placed)
        least = 1.0
        for node in nodes:
            there = [(other, g) for other in self._on_node.get(node, {}).values() if (g := self._guests[other.order])]
            if guest is None or not there:
                continue
            slowdowns = self._contention.slowdowns((guest, *(g for _, g in there)), on_device=False)
            least = min(least, 1.0 / max(slowdowns))
        return least

    def _here(self, node: int, run: JobRun) -> list[JobRun]:
        return [other for order, other in sorted(self._on_node.get(node, {}).items()) if order != run.order]

    def _slowed(self, guest: Guest, others: Sequence[JobRun], *, on_device: bool) -> float:
        guests = [found for other in others if (found := self._guests[other.order]) is not None]
        return 1.0 / self._contention.slowdowns((guest, *guests), on_device=on_device)[0] if guests else 1.0


def _on_gpu(run: JobRun, node: int, mask: int) -> bool:
    """Whether a job holds a share of this GPU."""
    held = run.allocation
    return held is not None and held.units < UNIT and held.gpus == ((node, mask),)


def contention_of(trace: Trace, steps: StepTimes) -> tuple[ForecastContention, tuple[str, ...]]:
    """Return how the jobs of a trace slow one another down, and notes; refuses a trace that describes no job."""
    jobs = trace.jobs
    known = sum(is_described(job) for job in jobs)
    if not known:
        raise RequestError(
            f"{trace.path}: no job states what it trains, so nobody knows what it draws from its nodes; give model and "
            "batch, or leave out the sharing"
        )
    silent = len(jobs) - known
    note = f"{silent:,} jobs state no model and batch: they slow nobody down"
    return ForecastContention(steps), (note,) if silent else ()


def placement_of(share: str, placement: str | Placement) -> str | Placement:
    """Return the placement of a kind of sharing; a placement of the user's own stays if nodes are shared blindly."""
    if share not in SHARES:
        raise UnknownNameError("share", share, tuple(SHARES))
    if share == "blind" and placement != "pooled":
        return placement
    if placement not in ("pooled", SHARES[share]):
        raise RequestError(f"share {share} has a placement of its own: leave out placement {placement}")
    return SHARES[share]
