"""Jobs that share a node or a switch slow one another down by what they draw at once.

Jobs that span nodes share the NICs of each node on which they meet; jobs on shares of one GPU share its time and its
memory's bandwidth. How long a step then takes follows from the forecast steps of all jobs that meet, run together
(:mod:`traincast.scheduling.sharing.together`). A job that meets others in several places is as slow as in the worst of
them.

If the cluster states the rate of its uplinks, jobs that span racks share those of every rack in which they meet.
Otherwise a forecast across racks has only the job's own part of them, and nobody else touches it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

from traincast.errors import RequestError, UnknownNameError
from traincast.scheduling.estimates.forecasts import facts_of, is_described
from traincast.scheduling.joblogs.job import Job
from traincast.scheduling.joblogs.read import JobLog
from traincast.scheduling.queue.run import JobRun
from traincast.scheduling.queue.speeds import PlacedGpus
from traincast.scheduling.sharing.step_times import StepTimes, What, Where
from traincast.scheduling.space.free import UNIT, Allocation
from traincast.scheduling.space.placement import Placement

if TYPE_CHECKING:
    from traincast.scheduling.sharing.server_programs import ServerProgram
    from traincast.scheduling.sharing.together import StepProgram

MeetingPlace = Literal["device", "node", "switch"]
"""Where jobs meet: on shares of one GPU, on a node, or below a switch whose uplink they use."""
SHARES: Final = {"exclusive": "exclusive", "blind": "consolidated", "complementary": "complementary"}
"""How jobs share nodes, each with its placement: not at all, as it comes, or with neighbours that suit them best."""
_MOST_TOGETHER: Final = 6
"""Most jobs that are simulated together. If more meet, equal jobs count as a group of at most this size."""


class Guest(NamedTuple):
    """A job where it is placed, as far as it matters to those it meets.

    With parameter servers, ``node`` is the node where they meet, as a number among the job's own nodes; else it is 0.
    """

    what: What
    where: Where
    node: int = 0


class Contention(Protocol):
    """Tells how much jobs slow one another down where they meet."""

    def guest(self, job: Job, placed: PlacedGpus) -> Guest | None:
        """Return the job as others meet it; ``None`` if what it draws is not known."""

    def slowdowns(self, guests: tuple[Guest, ...], *, at: MeetingPlace) -> tuple[float, ...]:
        """Return how many times longer the step of each guest takes while all guests meet ``at`` one place."""


class ForecastContention:
    """Slowdowns from the forecast steps of jobs; each group of jobs that meet is simulated once."""

    def __init__(self, steps: StepTimes) -> None:
        self.steps = steps
        self._known: dict[tuple[tuple[Guest, ...], MeetingPlace], tuple[float, ...]] = {}

    def guest(self, job: Job, placed: PlacedGpus) -> Guest | None:
        """Return the job's model, batch and strategy, and its GPUs."""
        if not is_described(job) or not placed.nodes:
            return None
        return Guest(facts_of(job).what, self.steps.where(placed))

    def slowdowns(self, guests: tuple[Guest, ...], *, at: MeetingPlace) -> tuple[float, ...]:
        """Return the slowdown of each guest."""
        order = sorted(range(len(guests)), key=lambda n: guests[n])
        key = (tuple(guests[n] for n in order), at)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._simulated(key[0], at)
        by_guest = dict(zip(order, found, strict=True))
        return tuple(by_guest[n] for n in range(len(guests)))

    def _simulated(self, guests: tuple[Guest, ...], at: MeetingPlace) -> tuple[float, ...]:
        from traincast.scheduling.sharing.server_programs import ServerProgram
        from traincast.scheduling.sharing.together import slowdowns

        programs = [(n, self._program(guest, at)) for n, guest in enumerate(guests)]
        drawing = [(n, program) for n, program in programs if program is not None and program.draws]
        found = [1.0] * len(guests)
        chosen = drawing[:_MOST_TOGETHER]
        nodes = [(-1,) * guests[n].node + (0,) if isinstance(program, ServerProgram) else (0,) for n, program in chosen]
        together = slowdowns([program for _, program in chosen], nodes=nodes)
        for (n, _), slowdown in zip(chosen, together, strict=True):
            found[n] = slowdown
        for n, _ in drawing[_MOST_TOGETHER:]:
            found[n] = max(together)
        return tuple(found)

    def _program(self, guest: Guest, at: MeetingPlace) -> StepProgram | ServerProgram | None:
        if at == "switch":
            return self.steps.switch_program(guest.what, guest.where)
        program = self.steps.program(guest.what, guest.where)
        if program is None:
            return None
        return program.only("device", "memory") if at == "device" else program.only("receive", "send")


class Tenants:
    """Who is on which node and GPU, and how much slower each job is for it.

    ``switches`` has the number of every node's switch, if jobs share the uplinks of switches; else it is empty.
    """

    def __init__(self, contention: Contention, switches: Sequence[int] = ()) -> None:
        self._contention, self._switches = contention, switches
        self._guests: dict[int, Guest | None] = {}
        self._on_node: dict[int, dict[int, JobRun]] = {}
        self._below: dict[int, dict[int, JobRun]] = {}

    def add(self, run: JobRun, placed: PlacedGpus) -> list[JobRun]:
        """Let a job in on its nodes; returns all jobs that may now be slower, itself included."""
        assert run.allocation is not None
        self._guests[run.order] = self._contention.guest(run.job, placed)
        for node in run.allocation.nodes:
            self._on_node.setdefault(node, {})[run.order] = run
        for switch in self._spanned(run.allocation.nodes):
            self._below.setdefault(switch, {})[run.order] = run
        return self._near(run.allocation)

    def remove(self, run: JobRun) -> list[JobRun]:
        """Let a job out; returns all jobs that may now be faster."""
        assert run.allocation is not None
        del self._guests[run.order]
        for node in run.allocation.nodes:
            del self._on_node[node][run.order]
        for switch in self._spanned(run.allocation.nodes):
            del self._below[switch][run.order]
        return self._near(run.allocation)

    def _spanned(self, nodes: Iterable[int]) -> list[int]:
        """The switches whose uplinks a job uses on ``nodes``: none if all are below one switch."""
        found = sorted({self._switches[node] for node in nodes}) if self._switches else []
        return found if len(found) > 1 else []

    def _near(self, allocation: Allocation) -> list[JobRun]:
        found = {order: run for node in allocation.nodes for order, run in self._on_node.get(node, {}).items()}
        for switch in self._spanned(allocation.nodes):
            found |= self._below.get(switch, {})
        return [found[order] for order in sorted(found)]

    def factor(self, run: JobRun) -> float:
        """Return the speed of a running job over its speed alone; above 1 if its share of a GPU is all it needs."""
        guest = self._guests.get(run.order)
        allocation = run.allocation
        if guest is None or allocation is None:
            return 1.0
        if allocation.units < UNIT:
            ((node, mask),) = allocation.gpus
            others = [other for other in _besides(self._on_node.get(node, {}), run) if _on_gpu(other, node, mask)]
            return self._slowed(guest, self._guests_of(others), at="device") * UNIT / allocation.units
        below = (self._below.get(switch, {}) for switch in self._spanned(allocation.nodes))
        on_nodes = [self._slowed(_on(guest, allocation.nodes, n), self._met(n, run)) for n in allocation.nodes]
        at_switches = [self._slowed(guest, self._guests_of(_besides(runs, run)), at="switch") for runs in below]
        return min([1.0, *on_nodes, *at_switches])

    def factor_at(self, run: JobRun, placed: PlacedGpus, nodes: Iterable[int]) -> float:
        """Return the least factor of a waiting job and of those that it would meet on ``nodes``, or below a switch.

        The job is taken to span racks if ``placed`` does.
        """
        guest = self._contention.guest(run.job, placed)
        if guest is None:
            return 1.0
        least = 1.0
        for node in nodes:
            met: list[tuple[list[Guest], MeetingPlace]] = [(self._met(node, run), "node")]
            if self._switches and placed.num_racks > 1:
                met.append((self._guests_of(self._below.get(self._switches[node], {}).values()), "switch"))
            for there, at in met:
                if there:
                    least = min(least, 1.0 / max(self._contention.slowdowns((guest, *there), at=at)))
        return least

    def _met(self, node: int, run: JobRun) -> list[Guest]:
        """The guests of other jobs on a node."""
        found = []
        for other in _besides(self._on_node.get(node, {}), run):
            guest = self._guests[other.order]
            if guest is not None and other.allocation is not None:
                found.append(_on(guest, other.allocation.nodes, node))
        return found

    def _guests_of(self, runs: Iterable[JobRun]) -> list[Guest]:
        return [found for run in runs if (found := self._guests[run.order]) is not None]

    def _slowed(self, guest: Guest, others: Sequence[Guest], *, at: MeetingPlace = "node") -> float:
        return 1.0 / self._contention.slowdowns((guest, *others), at=at)[0] if others else 1.0


def _besides(runs: Mapping[int, JobRun], run: JobRun) -> list[JobRun]:
    """The runs other than ``run``, in order."""
    return [other for order, other in sorted(runs.items()) if order != run.order]


def _on(guest: Guest, nodes: Sequence[int], node: int) -> Guest:
    """The guest on one of the ``nodes`` of its job; nodes differ only if the job has parameter servers."""
    return guest._replace(node=nodes.index(node)) if "servers" in guest.what.strategy else guest


def _on_gpu(run: JobRun, node: int, mask: int) -> bool:
    """Whether a job holds a share of this GPU."""
    held = run.allocation
    return held is not None and held.units < UNIT and held.gpus == ((node, mask),)


def contention_of(log: JobLog, steps: StepTimes) -> tuple[ForecastContention, tuple[str, ...]]:
    """Return how the jobs of a log slow one another down, and notes; refuses a log that describes no job."""
    jobs = log.jobs
    known = sum(is_described(job) for job in jobs)
    if not known:
        raise RequestError(
            f"{log.path}: no job states what it trains, so nobody knows what it draws from its nodes; give model and "
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
