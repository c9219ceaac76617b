"""Chooses a strategy if the user gives none, and a micro batch if the user gives only degrees.

This is not a search. It tries common strategies, the simplest first, and takes the first that fits in memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from traincast.cluster import Cluster
from traincast.errors import StrategyError
from traincast.graph import OperatorGraph, OpKind
from traincast.strategy.embedding_tables import has_tables
from traincast.strategy.experts import find_regions
from traincast.strategy.prepare import Request, need_only
from traincast.strategy.recompute import leanest
from traincast.strategy.releases import assumed_release, has_experts
from traincast.strategy.runtime import Runtime
from traincast.strategy.strategy import Strategy

_MAX_TENSOR: Final = 8

MAKERS: Final = {"neuron": "neuronx", "gaudi": "optimum-habana", "tpu": "maxtext"}
"""Runtimes that stand for every framework on an architecture: frameworks run there on the maker's own compiler."""


def choose_strategy(request: Request) -> Strategy:
    """The first strategy that fits (:class:`traincast.strategy.fits.MemoryNeed`), from data parallelism to pipelines.

    Mixtures use expert parallelism if their experts can be divided. If no common strategy can divide the batch and
    the model, every other mesh is tried. If nothing fits, the strategy that needs least memory is returned, and the
    report says how much is missing. Raises :class:`StrategyError` if no mesh can divide the batch and the model.
    """
    reasons: list[StrategyError] = []
    chosen = _first_that_fits(request, _habits(request), reasons)
    if chosen is None and not request.runtime.servers:
        chosen = _first_that_fits(request, _every_mesh(request), reasons)
    if chosen is None:
        raise StrategyError(
            f"no strategy found for global batch {request.global_batch} on {request.cluster.num_devices} devices"
            + (f": {reasons[0]}" if reasons else "")
        )
    return chosen


def _first_that_fits(request: Request, candidates: Iterable[Strategy], reasons: list[StrategyError]) -> Strategy | None:
    """The first candidate that fits, else the one that needs least memory, else None; appends errors to ``reasons``."""
    best: tuple[float, Strategy] | None = None
    for degrees in candidates:
        for recompute in _recomputes(request):
            try:
                chosen, load = _with_largest_micro_batch(request, replace(degrees, recompute=recompute))
            except StrategyError as error:
                reasons.append(error)
                continue
            if load <= 1.0:
                return chosen
            if best is None or load < best[0]:
                best = (load, chosen)
    return best[1] if best else None


def choose_micro_batch(request: Request) -> Strategy:
    """The request's strategy with the largest micro batch that fits; larger ones than a device needs are not tried."""
    return _with_largest_micro_batch(request, request.strategy)[0]


def _recomputes(request: Request) -> Iterable[str]:
    """Recomputations to try: the runtime's default, then the one that needs least memory."""
    return dict.fromkeys((request.runtime.recompute, leanest()))


def _habits(request: Request) -> Iterator[Strategy]:
    """Common strategies: replicas, then tensor groups inside a node, then pipelines of nodes."""
    devices, inside = request.cluster.num_devices, request.cluster.domain_devices
    if request.runtime.servers:
        yield Strategy(dp=devices, servers=request.runtime.servers)
        return
    widest = min(inside, _MAX_TENSOR)
    for pp in _divisors(devices):
        for tp in (t for t in _divisors(widest) if devices % (t * pp) == 0):
            if pp == 1 or tp == widest:
                yield from _sharings(request, Strategy(dp=devices // (tp * pp), tp=tp, pp=pp))


def _every_mesh(request: Request) -> Iterator[Strategy]:
    """All meshes: most replicas first, then the shortest context groups, then the widest tensor groups in a node."""
    devices, inside, tokens = request.cluster.num_devices, request.cluster.domain_devices, _context_tokens(request)
    degrees = [
        (devices // (cp * tp * pp), cp, tp, pp)
        for cp in _divisors(devices)
        if cp == 1 or (tokens and tokens % cp == 0)
        for tp in _divisors(devices // cp)
        for pp in _divisors(devices // (cp * tp))
    ]
    for dp, cp, tp, pp in sorted(degrees, key=lambda d: (-d[0], d[1], d[2] > inside, -d[2])):
        yield from _sharings(request, Strategy(dp=dp, cp=cp, tp=tp, pp=pp))


def _sharings(request: Request, mesh: Strategy) -> Iterator[Strategy]:
    """Strategies on ``mesh`` that shard experts, optimizer states or embedding tables.

    There are none if the replicas of ``mesh`` cannot divide the batch.
    """
    if request.global_batch % mesh.dp:
        return
    for ep in expert_groups(request, mesh):
        shares = mesh.tp > 1 and (request.runtime.sequence_parallel or ep > 1)
        for zero in (0, 1) if mesh.dp > 1 else (0,):
            yield replace(mesh, ep=ep, zero=zero, sequence_parallel=shares)
    if mesh.num_ranks == mesh.dp > 1 and has_tables(request.graph):
        yield replace(mesh, tables="sharded")


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


def _with_largest_micro_batch(request: Request, strategy: Strategy) -> tuple[Strategy, float]:
    """The largest micro batch that fits, else the smallest; with the memory needed divided by the memory available."""
    if strategy.shares:
        samples = replace(strategy, num_microbatches=1).samples(request.global_batch)
        per_replica, each = max(samples), math.gcd(*samples)
    else:
        if request.global_batch % strategy.dp:
            strategy.micro_batch(request.global_batch)
        per_replica = each = request.global_batch // strategy.dp
    last: tuple[Strategy, float] | None = None
    sizes = [size for size in _micro_batches(request, strategy, per_replica) if each % (per_replica // size) == 0]
    for size in sizes or ([per_replica // each] if strategy.shares else []):
        chosen = replace(strategy, num_microbatches=per_replica // size)
        last = chosen, need_only(replace(request, strategy=chosen)).load
        if last[1] <= 1.0:
            return last
    if last is None:
        raise StrategyError(
            f"{per_replica} samples per replica cannot be cut into microbatches for pp={strategy.pp}, "
            f"virtual_stages={strategy.virtual_stages}; choose a global batch that is a multiple of dp·pp = "
            f"{strategy.dp * strategy.pp}"
        )
    return last


def _micro_batches(request: Request, strategy: Strategy, per_replica: int) -> list[int]:
    """Micro batches to try, largest first: divisors that keep the pipeline full and have at most 16,384 tokens."""
    tokens = request.graph.tokens_per_sample
    most = max(1, 16384 // tokens) if tokens else per_replica
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
    if cluster.device.architecture in MAKERS:
        return MAKERS[cluster.device.architecture], ""
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
