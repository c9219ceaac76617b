"""The space of a search: the values of each axis, and the legal combinations of them.

A *family* fixes everything that decides which works the blocks of the model run: the mesh, the micro batch, sequence
parallelism, recomputation, and whether activations are offloaded. Its *members* differ in the schedule, the cut into
stages, the sharding between replicas and the place of the optimizer, so they share all works of blocks. Combinations
that equal another are left out: no schedules without a pipeline, no sharding without replicas, no interleaving of one
chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from traincast.errors import EmptyAxisError
from traincast.graph import OperatorGraph, OpKind
from traincast.strategy import Request, Strategy
from traincast.strategy.prepare import layers_of
from traincast.strategy.program.experts import find_regions
from traincast.strategy.program.recompute import RECOMPUTATIONS
from traincast.strategy.schedules import SCHEDULES, load_schedule, loop
from traincast.strategy.strategy import Offload

_FEWEST_TOKENS: Final = 256
"""Least number of tokens of a sequence on a context-parallel rank."""
_MOST_CHUNKS: Final = 12
"""Greatest number of chunks of layers on a stage."""
_PARTS: Final = (4, 2)
"""If whole blocks can be recomputed, a search also tries to recompute every n-th layer, for these n."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """Values of every axis, in the order in which they are tried.

    A value of ``recompute`` may be ``full/3``: every third layer. ``cut`` is ``even`` (stages with equal numbers of
    layers) or ``balanced`` (stages with nearly equal seconds, including the parts before and after the layers).
    """

    tp: tuple[int, ...]
    cp: tuple[int, ...]
    pp: tuple[int, ...]
    ep: tuple[int, ...]
    micro_batch: tuple[int, ...]
    virtual_stages: tuple[int, ...]
    schedule: tuple[str, ...]
    zero: tuple[int, ...]
    sequence_parallel: tuple[bool, ...]
    recompute: tuple[str, ...]
    offload: tuple[str, ...]
    cut: tuple[str, ...]


AXES: Final = tuple(field.name for field in fields(Axes))
OFFLOADS: Final[dict[str, tuple[Offload, ...]]] = {
    "none": (),
    "optimizer": ("optimizer",),
    "activations": ("activations",),
    "both": ("optimizer", "activations"),
}


def recomputes() -> tuple[str, ...]:
    """Return the values of the axis ``recompute``: every technique by name, and ``full/4``: every fourth layer.

    They are in the order of :data:`RECOMPUTATIONS`, from the most memory to the least.
    """
    found: list[str] = []
    for name, technique in RECOMPUTATIONS.items():
        found += [f"{name}/{every}" for every in _PARTS if technique.whole_block]
        found.append(name)
    return tuple(found)


def recomputation(value: str) -> tuple[str, int]:
    """Return the technique and the n of a value of the axis ``recompute``: every n-th layer is recomputed."""
    name, _, every = value.partition("/")
    return name, int(every or 1)


def usual_axes(request: Request) -> Axes:
    """Return all values of each axis that are legal for the request's model, cluster and batch, axis by axis."""
    graph, devices, batch = request.graph, request.cluster.num_devices, request.global_batch
    tokens = graph.tokens_per_sample
    attends = any(op.kind is OpKind.ATTENTION for op, _ in graph)
    layers = layers_of(graph)
    repeats = any(block.repeated for block in graph.blocks)
    experts = {r.experts for block in graph.blocks for r in find_regions(graph, block)}
    divisors = divisors_of(devices)
    axes = Axes(
        tp=tuple(d for d in divisors if d <= _widest(graph)),
        cp=tuple(d for d in divisors if d == 1 or (attends and tokens % d == 0 and tokens // d >= _FEWEST_TOKENS)),
        pp=tuple(d for d in divisors if d <= layers),
        ep=tuple(d for d in divisors if all(e % d == 0 for e in experts)) if experts else (1,),
        micro_batch=divisors_of(batch),
        virtual_stages=tuple(range(1, min(_MOST_CHUNKS, layers) + 1)),
        schedule=tuple(SCHEDULES),
        zero=(0, 1, 2, 3),
        sequence_parallel=(True, False) if tokens else (False,),
        recompute=tuple(r for r in recomputes() if _useful(*recomputation(r), attends=attends, repeats=repeats)),
        offload=tuple(OFFLOADS),
        cut=("even", "balanced"),
    )
    if request.strategy.tables == "sharded":  # only equal replicas divide tables
        return replace(axes, tp=(1,), cp=(1,), pp=(1,), ep=(1,), zero=(0, 1, 2))
    return axes


def _useful(name: str, every: int, *, attends: bool, repeats: bool) -> bool:
    """Return whether a technique applies to a model with attention (``attends``) or repeated blocks (``repeats``)."""
    return (attends or not RECOMPUTATIONS[name].attention) and (repeats or every == 1)


def _widest(graph: OperatorGraph) -> int:
    """Return the most ranks that could share a matrix product: the largest of the weights' smaller dimensions."""
    widths = [min(op.parameters[0].shape) for op, _ in graph if op.kind is OpKind.GEMM and op.parameters]
    return max(widths, default=1)


def divisors_of(number: int) -> tuple[int, ...]:
    """Return the divisors of ``number`` in ascending order."""
    low = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(dict.fromkeys((*low, *(number // d for d in reversed(low)))))


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Degrees:
    """Degrees of a mesh; the number of replicas follows from the number of devices."""

    tp: int
    cp: int
    pp: int
    ep: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Strategies that run the same works in the blocks of a model."""

    degrees: Degrees
    dp: int
    micro_batch: int
    num_microbatches: int
    sequence_parallel: bool
    recompute: str
    offloads_activations: bool

    @property
    def keeps_all(self) -> bool:
        """Whether nothing is recomputed or offloaded."""
        return self.recompute == "none" and not self.offloads_activations

    @property
    def place(self) -> tuple[object, ...]:
        """A key that is equal for families that differ only in recomputation and offloading."""
        return self.degrees, self.micro_batch, self.sequence_parallel

    @property
    def works(self) -> tuple[object, ...]:
        """A key that is equal for families whose blocks run the same works, apart from recomputation and offloading."""
        at = self.degrees
        several = at.pp > 1, self.num_microbatches > 1
        return at.tp, at.cp, at.ep, self.micro_batch, self.sequence_parallel, *several

    @property
    def recomputed(self) -> slice:
        """The layers that are recomputed in full, as a slice."""
        name, every = recomputation(self.recompute)
        return slice(None, None, every) if RECOMPUTATIONS[name].whole_block else slice(0)

    def strategy(self, base: Strategy) -> Strategy:
        """Return the simplest member: schedule 1F1B, nothing sharded between replicas."""
        name, every = recomputation(self.recompute)
        at = self.degrees
        return replace(
            base,
            dp=self.dp,
            tp=at.tp,
            cp=at.cp,
            pp=at.pp,
            ep=at.ep,
            num_microbatches=self.num_microbatches,
            sequence_parallel=self.sequence_parallel,
            recompute=name,
            recompute_every=every,
            offload=("activations",) if self.offloads_activations else (),
        )


def meshes(axes: Axes, devices: int, batch: int) -> list[Degrees]:
    """Return all meshes of ``devices`` whose replicas divide the batch evenly."""
    return [
        Degrees(tp=tp, cp=cp, pp=pp, ep=ep)
        for tp in axes.tp
        for cp in axes.cp
        for ep in axes.ep
        for pp in axes.pp
        if devices % (tp * cp * pp) == 0 and batch % (devices // (tp * cp * pp)) == 0 and (devices // pp) % ep == 0
    ]


def families(axes: Axes, at: Degrees, devices: int, batch: int) -> Iterator[list[Family]]:
    """Yield lists of families of a mesh; those of a list differ only in the micro batch, in ascending order."""
    dp = devices // (at.tp * at.cp * at.pp)
    each = batch // dp
    shares = [s for s in axes.sequence_parallel if not s or at.tp > 1]
    if at.tp > 1 and at.ep > 1:
        shares = [s for s in shares if s]
    if at.tp == 1 and not shares:
        shares = [False]
    for sequence_parallel in shares:
        for recompute in axes.recompute:
            for offloads in sorted({"activations" in OFFLOADS[name] for name in axes.offload}):
                found = [
                    Family(
                        degrees=at,
                        dp=dp,
                        micro_batch=size,
                        num_microbatches=each // size,
                        sequence_parallel=sequence_parallel,
                        recompute=recompute,
                        offloads_activations=offloads,
                    )
                    for size in axes.micro_batch
                    if each % size == 0
                ]
                if found:
                    yield found


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to run a pipeline: the schedule, its chunks per stage, and the number of ``pieces`` of the model."""

    schedule: str
    virtual_stages: int
    chunks: int
    pieces: int

    @property
    def splits(self) -> bool:
        """Whether the schedule splits each backward pass in two."""
        return load_schedule(self.schedule).splits_backward

    @property
    def pairs(self) -> bool:
        """Whether the schedule runs forwards and backwards in pairs, beside whose compute messages travel."""
        return load_schedule(self.schedule).pairs is not None

    @property
    def route(self) -> object:
        """A key that is equal for ways that put the pieces on the same stages."""
        return load_schedule(self.schedule).routes, self.chunks

    @property
    def loops(self) -> bool:
        """Whether consecutive pieces are on consecutive stages, from the last to the first again."""
        return load_schedule(self.schedule).routes is loop


def ways(axes: Axes, pp: int, microbatches: int, layers: int) -> list[Way]:
    """Return the distinct ways to run a pipeline of ``pp`` stages over ``layers``."""
    if pp == 1:
        return [Way(schedule="1f1b", virtual_stages=1, chunks=1, pieces=1)]
    found = []
    for name in axes.schedule:
        schedule = load_schedule(name)
        if schedule.chunks:
            pieces = len(schedule.routes(pp, schedule.chunks)[0])
            if pieces <= layers:
                found.append(Way(schedule=name, virtual_stages=1, chunks=schedule.chunks, pieces=pieces))
            continue
        if microbatches < schedule.differs_from:
            continue
        found += [
            Way(schedule=name, virtual_stages=chunks, chunks=chunks, pieces=pp * chunks)
            for chunks in axes.virtual_stages
            if (chunks > 1) == schedule.interleaves and (chunks == 1 or layers % (pp * chunks) == 0)
        ]
    return found


def restricted(axes: Axes, name: str, keep: Any) -> Axes:
    """Return ``axes`` with only those values of the axis ``name`` for which ``keep`` is true; refuse an empty axis."""
    values = getattr(axes, name)
    left = tuple(value for value in values if keep(value))
    if not left:
        shown = ", ".join(map(str, values[:12]))
        raise EmptyAxisError(f"no value of {name} is left: this model, cluster and batch allow {shown}")
    return replace(axes, **{name: left})
