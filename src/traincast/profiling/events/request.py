"""What ``profile events`` measures: the distinct works of one lowered plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from traincast.cluster import Cluster
from traincast.cluster.hardware import PROCESSOR
from traincast.errors import RequestError
from traincast.estimate.events.file import REAL
from traincast.estimate.events.laws import LAWS
from traincast.graph import Operator, OperatorGraph
from traincast.profiling.events.ask import EventsAsk
from traincast.resolve import resolve
from traincast.strategy import Request, lower
from traincast.strategy.prepare import for_workers
from traincast.work import Collective, Transfer

_LADDER: Final = 4.0
_SMALLEST: Final = 1024.0
_MOST_SIZES: Final = 16
"""Sizes measured of one kind of collective; more distinct ones are thinned out, because the curve is interpolated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One collective or message to measure: ``collective`` of ``nbytes`` in a group of this shape."""

    collective: str
    nbytes: float
    num_ranks: int
    num_nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededWorks:
    """The distinct works of a plan.

    ``operators`` are in the order in which a step runs them. ``replicated`` says whether DistributedDataParallel
    reduces the gradients, ``whole`` whether no operator is divided among ranks.
    """

    request: Request
    graph: OperatorGraph
    micro_batch: int
    operators: tuple[Operator, ...]
    collectives: tuple[Collective, ...]
    transfers: tuple[Transfer, ...]
    replicated: bool
    whole: bool

    @property
    def num_ranks(self) -> int:
        """Ranks of the strategy."""
        return self.request.cluster.num_devices

    @property
    def communicates(self) -> bool:
        """Whether anything is sent between ranks."""
        return bool(self.collectives or self.transfers)


def needed_works(asked: EventsAsk, *, use_cache: bool = True) -> NeededWorks:
    """Lower the plan of ``asked`` and return its distinct works; raises ``RequestError`` if it has no plan."""
    request = resolve(asked.step(use_cache=use_cache)).request
    graph, cluster, strategy = request.graph, request.cluster, request.strategy
    lowered = lower(for_workers(request), grain="operator")
    works = lowered.plan.works
    transfers = [work for work in works if isinstance(work, Transfer)]
    if strategy.servers:
        nbytes = graph.num_trainable_parameters * lowered.prepared.precision.gradients.nbytes
        transfers.append(Transfer(nbytes=float(nbytes) / strategy.servers, crosses_nodes=cluster.num_nodes > 1))
    return NeededWorks(
        request=request,
        graph=graph,
        micro_batch=lowered.prepared.micro_batch,
        operators=tuple(work for work in works if isinstance(work, Operator)),
        collectives=tuple(work for work in works if isinstance(work, Collective) and work.num_ranks > 1),
        transfers=tuple(transfers),
        whole=strategy.tp == 1 and strategy.cp == 1 and strategy.ep == 1,
        replicated=strategy.dp > 1 and not strategy.zero and strategy.tp == 1 and not strategy.servers,
    )


def backend_of(cluster: Cluster, compute: str) -> str:
    """Return the library that carries the collectives: NCCL between GPUs, else gloo."""
    return "gloo" if cluster.device.architecture == PROCESSOR or compute != REAL else "nccl"


def messages_of(needed: NeededWorks, *, world: int, ladder: bool = True) -> list[Message]:
    """Return the collectives and messages to measure with ``world`` processes, each kind from small to large.

    A group that is larger than ``world`` is measured among ``world`` ranks, or among two if that does not divide it.
    Around the sizes of the plan, a ``ladder`` of a few more makes the curve.
    """
    if world < 2 and needed.communicates:
        raise RequestError(
            f"the strategy {needed.request.strategy} sends messages between ranks: measure with two processes or more"
        )
    wanted: dict[tuple[str, int, int], set[float]] = {}
    for work in needed.collectives:
        n = work.num_ranks if work.num_ranks <= world else world if work.num_ranks % world == 0 else 2
        nodes = 1 if work.num_nodes == 1 else max(2, min(n, n * work.num_nodes // work.num_ranks))
        law = LAWS[work.kind]
        size = law.buffer_bytes(law.message_bytes(work.nbytes * work.sharing, work.num_ranks), n)
        wanted.setdefault((work.kind, n, nodes), set()).add(size)
    for send in needed.transfers:
        wanted.setdefault(("p2p", 2, 2 if send.crosses_nodes else 1), set()).add(send.nbytes * send.sharing)
    return [
        Message(collective=kind, nbytes=size, num_ranks=n, num_nodes=nodes)
        for (kind, n, nodes), sizes in wanted.items()
        for size in (_with_ladder(sizes) if ladder else _thinned(sizes))
    ]


def _thinned(sizes: set[float]) -> list[float]:
    """Return at most 16 of ``sizes``, from small to large."""
    exact = sorted({whole(size) for size in sizes})
    if len(exact) > _MOST_SIZES:
        step = (len(exact) - 1) / (_MOST_SIZES - 1)
        exact = [exact[round(i * step)] for i in range(_MOST_SIZES)]
    return exact


def _with_ladder(sizes: set[float]) -> list[float]:
    """Return at most 16 of ``sizes``, and a ladder by factors of 4 from a quarter of the least to the largest."""
    exact = _thinned(sizes)
    found = set(exact)
    rung = max(_SMALLEST, exact[0] / _LADDER)
    while rung < exact[-1]:
        if not any(rung / 1.5 < size < rung * 1.5 for size in exact):
            found.add(whole(rung))
        rung *= _LADDER
    return sorted(found)


def whole(nbytes: float) -> float:
    """Return ``nbytes`` as a whole number of 8 bytes: two ranks have each at least one element of four bytes."""
    return float(max(8, round(nbytes / 8.0) * 8))
