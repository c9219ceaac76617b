"""Chooses a strategy if the user gives none, and a micro batch if the user gives only degrees.

This is not a search. It lists strategies that people use, the simplest first, and takes the first that fits in memory
or, if it can time them, the fastest of a few that fit. If none of them fits, it lists all meshes with everything that
saves memory, and at last the changes that a remedy would try. So what is chosen fits if anything does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import Final, Literal

from traincast.cluster import Cluster
from traincast.cluster.architecture import load_architecture
from traincast.errors import StrategyError
from traincast.graph import OperatorGraph, OpKind
from traincast.strategy.memory.fits import MemoryNeed
from traincast.strategy.memory.remedy import Remedy, find_remedy
from traincast.strategy.prepare import Request, need_only
from traincast.strategy.program.embedding_tables import has_tables
from traincast.strategy.program.experts import find_regions
from traincast.strategy.program.recompute import RECOMPUTATIONS, leaner, leanest
from traincast.strategy.releases import assumed_release, has_experts
from traincast.strategy.runtime import Runtime
from traincast.strategy.strategy import Offload, Strategy

_MAX_TENSOR: Final = 8
_TIMED: Final = 6
"""Strategies that are timed to choose the fastest, at most."""
_WORTH: Final = 0.98
"""The first strategy that fits is chosen unless another takes less than this share of its time."""
_MOST_PASSES: Final = 8192
"""Pipelines with more passes than this are not timed."""
_RECOMPUTED: Final = {
    name: 1.33 if how.whole_block else 1.04 if how.attention else 1.0 for name, how in RECOMPUTATIONS.items()
}
"""Rough compute with a recomputation, over that without."""
_OFFLOADS: Final[tuple[tuple[Offload, ...], ...]] = ((), ("optimizer",), ("activations",), ("optimizer", "activations"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A strategy chosen without a search, the memory that it needs, and the number of strategies that were timed."""

    strategy: Strategy
    need: MemoryNeed
    timed: int = 0


def choose_strategy(request: Request) -> Strategy:
    """The strategy of :func:`choose` without times: the first that fits."""
    return choose(request).strategy


def choose(request: Request, *, seconds: Callable[[Strategy], float] | None = None) -> Choice:
    """Choose a strategy that fits (:class:`traincast.strategy.memory.fits.MemoryNeed`) if there is one.

    It is the first that people would try, from data parallelism to pipelines. With ``seconds``, which returns the step
    time of a strategy, it is the fastest of a few that fit; the first stays if the fastest gains less than 2 %.
    Mixtures use expert parallelism if their experts can be divided. If nothing fits, the strategy that needs least
    memory is chosen. Raises :class:`StrategyError` if no mesh can divide the batch and the model.
    """
    reasons: list[StrategyError] = []
    least: Choice | None = None
    for chosen in chain(_sized(request, _habits(request), reasons), _sized(request, _thrifty(request), reasons)):
        if chosen.need.fits:
            return chosen if seconds is None else _fastest(request, chosen, seconds)
        if least is None or chosen.need.load < least.need.load:
            least = chosen
    if least is None:
        raise StrategyError(
            f"no strategy found for global batch {request.global_batch} on {request.cluster.num_devices} devices"
            + (f": {reasons[0]}" if reasons else "")
        )
    found = remedy_of(replace(request, strategy=least.strategy), least.need)
    if found.change is None or found.changed is None:
        return least
    return Choice(strategy=found.change.strategy, need=found.changed)


def remedy_of(
    request: Request,
    need: MemoryNeed,
    *,
    seconds: Callable[[Strategy], float] | None = None,
    least: Callable[[Strategy], float] = lambda strategy: 0.0,
) -> Remedy:
    """Find a change that makes the strategy of ``request``, which needs ``need``, fit: see :func:`find_remedy`."""
    return find_remedy(
        request.strategy,
        need,
        global_batch=request.global_batch,
        need=lambda strategy: need_only(replace(request, strategy=strategy)),
        seconds=seconds,
        least=least,
        most_tensor=min(_MAX_TENSOR, request.cluster.domain_devices),
    )


def _sized(request: Request, candidates: Iterable[Strategy], reasons: list[StrategyError]) -> Iterator[Choice]:
    """The legal candidates, each with the largest micro batch that fits; appends errors of others to ``reasons``."""
    for candidate in candidates:
        try:
            yield _with_largest_micro_batch(request, candidate)
        except StrategyError as error:
            reasons.append(error)


def _fastest(request: Request, first: Choice, seconds: Callable[[Strategy], float]) -> Choice:
    """The fastest of ``first`` and of promising strategies that fit, one of each mesh."""
    few, meshes = [first], set[tuple[int, ...]]()
    for other in _sized(request, _promising(request), []):
        if len(few) == _TIMED:
            break
        if other.need.fits and _mesh(other.strategy) not in meshes:
            meshes.add(_mesh(other.strategy))
            few += [other] if other.strategy != first.strategy else []
    times = [seconds(choice.strategy) for choice in few]
    best = min(range(len(few)), key=times.__getitem__)
    return replace(few[best if times[best] < _WORTH * times[0] else 0], timed=len(few))


def _mesh(strategy: Strategy) -> tuple[int, ...]:
    return strategy.tp, strategy.cp, strategy.pp, strategy.ep


def choose_micro_batch(request: Request) -> Strategy:
    """The request's strategy with the largest micro batch that fits; larger ones than a device needs are not tried."""
    return _with_largest_micro_batch(request, request.strategy).strategy


def _habits(request: Request) -> Iterator[Strategy]:
    """Common strategies: replicas, then tensor groups inside a node, then pipelines of nodes."""
    devices, inside = request.cluster.num_devices, request.cluster.domain_devices
    recomputes = _recomputes(request)
    if request.runtime.defaults.servers:
        for recompute in recomputes:
            yield Strategy(dp=devices, servers=request.runtime.defaults.servers, recompute=recompute)
        return
    widest = min(inside, _MAX_TENSOR)
    for pp in _divisors(devices):
        for tp in (t for t in _divisors(widest) if devices % (t * pp) == 0):
            if pp == 1 or tp == widest:
                yield from _sharings(request, Strategy(dp=devices // (tp * pp), tp=tp, pp=pp), recomputes)


def _recomputes(request: Request) -> tuple[str, ...]:
    """Recomputations to try: what the runtime usually does, then the one that needs least memory."""
    return tuple(dict.fromkeys((request.runtime.defaults.recompute, leanest())))


def _promising(request: Request) -> Iterator[Strategy]:
    """Strategies of the runtime's kind, with tensor and context groups inside a node; those likely to be fast first.

    What a setting costs is a rough guess: it only decides which strategies are timed. There are none for models without
    tokens: people split layers of these only if they must.
    """
    if request.runtime.defaults.servers or not request.graph.tokens_per_sample:
        return
    inside = min(request.cluster.domain_devices, _MAX_TENSOR)
    recomputes = (request.runtime.defaults.recompute, *leaner(request.runtime.defaults.recompute))
    found: list[tuple[float, Strategy]] = []
    for mesh in _every_mesh(request):
        each = request.global_batch // mesh.dp
        if mesh.tp * mesh.cp > inside or 2 * each * mesh.pp > _MOST_PASSES:
            continue
        groups = 1.0 + 0.05 * math.log2(mesh.tp) + 0.03 * math.log2(mesh.cp) + 0.02 * math.log2(mesh.pp)
        rough = groups * (1.0 + (mesh.pp - 1) / each)
        found += [
            (rough * _RECOMPUTED[shared.recompute] * (1.0 + 0.01 * shared.zero), shared)
            for shared in _sharings(request, mesh, recomputes)
        ]
    yield from (strategy for _, strategy in sorted(found, key=lambda pair: pair[0]))


def _thrifty(request: Request) -> Iterator[Strategy]:
    """All meshes with all that saves memory: sharding, recomputation and, at last, states and activations on the host.

    Which recomputation is the leanest depends on what is offloaded, so all are tried. Meshes are left out on which not
    even the leanest strategies fit, unless they are all that divide the batch.
    """
    if request.runtime.defaults.servers:
        return
    recomputes = tuple(dict.fromkeys((request.runtime.defaults.recompute, *RECOMPUTATIONS)))
    roomy, others = [], []
    for mesh in _every_mesh(request):
        lean = [*_savings(request, mesh, recomputes[::-1], (_OFFLOADS[-1], ()), zeros=(3,))]
        if any(choice.need.sure <= choice.need.capacity for choice in _sized(request, lean, [])):
            roomy.append(mesh)
        else:
            others += lean
    for offload in _OFFLOADS:
        for mesh in roomy:
            yield from _savings(request, mesh, recomputes, (offload,))
    if not roomy:
        yield from others


def _savings(
    request: Request,
    mesh: Strategy,
    recomputes: Iterable[str],
    offloads: Iterable[tuple[Offload, ...]],
    zeros: tuple[Literal[0, 1, 2, 3], ...] = (0, 1, 2, 3),
) -> Iterator[Strategy]:
    """Strategies on ``mesh`` that divide experts, shard states between replicas, recompute and offload."""
    for recompute, offload, ep in product(recomputes, offloads, dict.fromkeys((*expert_groups(request, mesh), 1))):
        for shares in (True, False) if mesh.tp > 1 else (False,):
            for zero in zeros if mesh.dp * mesh.cp > 1 else (0,):
                try:
                    yield replace(
                        mesh, ep=ep, zero=zero, sequence_parallel=shares, recompute=recompute, offload=offload
                    )
                except StrategyError:
                    continue


def _every_mesh(request: Request) -> Iterator[Strategy]:
    """All meshes that divide the batch: most replicas first, then the shortest context groups, then the widest tensor
    groups in a node.
    """
    devices, inside, tokens = request.cluster.num_devices, request.cluster.domain_devices, _context_tokens(request)
    degrees = [
        (devices // (cp * tp * pp), cp, tp, pp)
        for cp in _divisors(devices)
        if cp == 1 or (tokens and tokens % cp == 0)
        for tp in _divisors(devices // cp)
        for pp in _divisors(devices // (cp * tp))
        if request.global_batch % (devices // (cp * tp * pp)) == 0
    ]
    for dp, cp, tp, pp in sorted(degrees, key=lambda d: (-d[0], d[1], d[2] > inside, -d[2])):
        yield Strategy(dp=dp, cp=cp, tp=tp, pp=pp)


def _sharings(request: Request, mesh: Strategy, recomputes: Iterable[str]) -> Iterator[Strategy]:
    """Strategies on ``mesh`` that shard experts, optimizer states or embedding tables, or all that the runtime shards.

    There are none if the replicas of ``mesh`` cannot divide the batch.
    """
    if request.global_batch % mesh.dp:
        return
    for ep, recompute in product(expert_groups(request, mesh), recomputes):
        shares = mesh.tp > 1 and (request.runtime.defaults.sequence_parallel or ep > 1)
        for zero in _zeros(request, mesh):
            yield replace(mesh, ep=ep, zero=zero, sequence_parallel=shares, recompute=recompute)
    if mesh.num_ranks == mesh.dp > 1 and has_tables(request.graph):
        for recompute in recomputes:
            yield replace(mesh, tables="sharded", recompute=recompute)


def _zeros(request: Request, mesh: Strategy) -> tuple[Literal[0, 1, 2, 3], ...]:
    """ZeRO stages that people try with a runtime: none, the optimizer's states, and the stage that it usually has."""
    if mesh.dp * mesh.cp == 1:
        return (0,)
    usual = request.runtime.defaults.zero
    return (0, 1, usual) if usual > 1 else (0, 1)


def expert_groups(request: Request, mesh: Strategy) -> list[int]:
    """Degrees of expert parallelism to try: the largest inside a node first, then larger ones; 1 without experts."""
    graph = request.graph
    experts = {region.experts for block in graph.blocks for region in find_regions(graph, block)}
    ranks = math.gcd(mesh.dp * mesh.cp * mesh.tp, *experts) if experts else 1
    inside = [d for d in _divisors(ranks) if d <= request.cluster.domain_devices]
    return [inside[-1], *(d for d in _divisors(ranks) if d > inside[-1])]


def _context_tokens(request: Request) -> int:
    """Tokens per sample that a context group can divide; 0 for models without attention."""
    attends = any(op.kind is OpKind.ATTENTION for op, _ in request.graph)
    return request.graph.tokens_per_sample if attends else 0


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0] if number <= 4096 else _powers(number)


def _powers(number: int) -> list[int]:
    return [1 << k for k in range(number.bit_length()) if number % (1 << k) == 0]


def _with_largest_micro_batch(request: Request, strategy: Strategy) -> Choice:
    """The strategy with the largest micro batch that fits, else with the smallest."""
    if strategy.shares:
        samples = replace(strategy, num_microbatches=1).samples(request.global_batch)
        per_replica, each = max(samples), math.gcd(*samples)
    else:
        if request.global_batch % strategy.dp:
            strategy.micro_batch(request.global_batch)
        per_replica = each = request.global_batch // strategy.dp
    sizes = [size for size in _micro_batches(request, strategy, per_replica) if each % (per_replica // size) == 0]
    sizes = sizes or ([per_replica // each] if strategy.shares else [])
    if not sizes:
        raise StrategyError(
            f"{per_replica} samples per replica cannot be cut into microbatches for pp={strategy.pp}, "
            f"virtual_stages={strategy.virtual_stages}; choose a global batch that is a multiple of dp·pp = "
            f"{strategy.dp * strategy.pp}"
        )

    def sized(size: int) -> Choice:
        chosen = replace(strategy, num_microbatches=per_replica // size)
        return Choice(strategy=chosen, need=need_only(replace(request, strategy=chosen)))

    smallest = sized(sizes[-1])
    if not smallest.need.fits:
        return smallest
    return next((choice for choice in map(sized, sizes[:-1]) if choice.need.fits), smallest)


def usual_micro_batch(request: Request, per_replica: int) -> int:
    """The largest micro batch to try of this many samples: at most 16,384 tokens fill any device."""
    tokens = request.graph.tokens_per_sample
    return min(per_replica, max(1, 16384 // tokens)) if tokens else per_replica


def _micro_batches(request: Request, strategy: Strategy, per_replica: int) -> list[int]:
    """Micro batches to try, largest first: divisors that keep the pipeline full and are not too large."""
    most = usual_micro_batch(request, per_replica)
    if strategy.pp > 1:
        most = min(most, max(1, per_replica // (4 * strategy.pp)))
    sizes = [s for s in _divisors(per_replica) if s <= most] or [1]
    if strategy.virtual_stages > 1:
        sizes = [s for s in sizes if (per_replica // s) % strategy.pp == 0]
    return sorted(sizes, reverse=True)


def usual_runtime(graph: OperatorGraph, cluster: Cluster) -> str:
    """Return the default runtime for a model on a cluster.

    It is that of the device's maker if there is one. On a calibrated cluster, a sequence model has the runtime of the
    runs that the cluster was calibrated with. Elsewhere it is one that people fine-tune with if only a part is trained,
    and one that overlaps the traffic of experts if there are any.
    """
    return _usual_runtime(graph, cluster)[0]


def _usual_runtime(graph: OperatorGraph, cluster: Cluster) -> tuple[str, str]:
    """The default runtime, and the trait of the model that it was chosen for; empty for ordinary training."""
    of_maker = load_architecture(cluster.device.architecture).runtime
    if of_maker:
        return of_maker, ""
    if not graph.tokens_per_sample:
        return "pytorch", ""
    known = cluster.calibration
    if known is not None and known.runtimes and not known.models:
        return known.runtimes[0], ""
    if "fine_tuning" in graph.attributes:
        return "hf-trainer", "fine-tuning"  # it also runs under TRL, Axolotl, LLaMA-Factory and ms-swift
    return ("megatron-bridge", "a model with experts") if has_experts(graph) else ("megatron", "")


def assumed_runtime(given: str | Runtime | None, request: Request) -> tuple[str, ...]:
    """Return a sentence if the runtime was chosen for a trait of the model, or its release is not stated.

    ``given`` is what was stated: a runtime, its name, or None.
    """
    used = request.runtime
    if given is not None:
        return assumed_release(given, used)
    trait = _usual_runtime(request.graph, request.cluster)[1]
    if not trait:
        return ()
    release = f" of release {used.release}" if used.release else ""
    return (f"the runtime is not stated: {trait} is taken to run with {used.name}{release}; else give --runtime NAME",)


def usual_precision(graph: OperatorGraph, cluster: Cluster) -> str:
    """Return the default precision for a model: half precision if the device supports it."""
    if graph.tokens_per_sample:
        return "bf16" if cluster.device.supports("bf16") else "fp16" if cluster.device.supports("fp16") else "fp32"
    return "amp" if cluster.device.supports("fp16") else "fp32"
