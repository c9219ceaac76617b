"""A sensible strategy when none is given, and a micro batch when only degrees are.

Not a search: the habits of the field, tried from the simplest on, and the first that fits in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from traincast.cluster import Cluster
from traincast.errors import StrategyError
from traincast.strategy.prepare import Request, need_only
from traincast.strategy.runtime import Runtime
from traincast.strategy.strategy import Recompute, Strategy

_MAX_TENSOR: Final = 8


def choose_strategy(request: Request) -> Strategy:
    """The first strategy that fits (see :class:`traincast.strategy.fitting.Need`), from data parallelism to pipelines.

    If none fits, the one that comes nearest: the report then says what is missing.
    """
    best: tuple[float, Strategy] | None = None
    reason: StrategyError | None = None
    for degrees in _candidates(request.cluster, request.global_batch, request.runtime):
        for recompute in _recomputes(request):
            try:
                chosen, load = _with_largest_micro_batch(request, replace(degrees, recompute=recompute))
            except StrategyError as error:
                reason = error
                continue
            if load <= 1.0:
                return chosen
            if best is None or load < best[0]:
                best = (load, chosen)
    if best is None:
        raise StrategyError(
            f"no strategy found for global batch {request.global_batch} on {request.cluster.num_devices} devices"
            + (f": {reason}" if reason else "")
        )
    return best[1]


def choose_micro_batch(request: Request) -> Strategy:
    """The request's strategy with the largest micro batch that fits, up to what fills the device."""
    return _with_largest_micro_batch(request, request.strategy)[0]


def _recomputes(request: Request) -> tuple[Recompute, ...]:
    first = request.runtime.recompute
    return (first,) if first == "full" else (first, "full")


def _candidates(cluster: Cluster, global_batch: int, runtime: Runtime) -> Iterator[Strategy]:
    devices = cluster.num_devices
    if runtime.servers:
        yield Strategy(dp=devices, servers=runtime.servers)
        return
    inside = cluster.domain_devices
    for pp in _divisors(devices):
        for tp in (t for t in _divisors(min(inside, _MAX_TENSOR)) if devices % (t * pp) == 0):
            dp = devices // (tp * pp)
            if dp > global_batch or global_batch % dp or (pp > 1 and tp < min(inside, _MAX_TENSOR)):
                continue
            for zero in (0, 1) if dp > 1 else (0,):
                yield Strategy(dp=dp, tp=tp, pp=pp, zero=zero, sequence_parallel=runtime.sequence_parallel and tp > 1)


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0] if number <= 4096 else _powers(number)


def _powers(number: int) -> list[int]:
    return [1 << k for k in range(number.bit_length()) if number % (1 << k) == 0]


def _with_largest_micro_batch(request: Request, strategy: Strategy) -> tuple[Strategy, float]:
    """Try micro batches from large to small; returns the first that fits and its share of the memory there is."""
    if request.global_batch % strategy.dp:
        strategy.micro_batch(request.global_batch)
    per_replica = request.global_batch // strategy.dp
    last: tuple[Strategy, float] | None = None
    for size in _micro_batches(request, strategy, per_replica):
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
    """Sizes worth trying: divisors, few enough to keep a pipeline full, no more tokens than fill a device."""
    tokens = request.graph.tokens_per_sample
    most = max(1, 16384 // tokens) if tokens else per_replica
    if strategy.pp > 1:
        most = min(most, max(1, per_replica // (4 * strategy.pp)))
    sizes = [s for s in _divisors(per_replica) if s <= most] or [1]
    if strategy.virtual_stages > 1:
        sizes = [s for s in sizes if (per_replica // s) % strategy.pp == 0]
    return sorted(sizes, reverse=True)
