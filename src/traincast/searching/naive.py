"""Strategies that people choose without a search; the answer of a search is compared with them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from traincast.strategy import Request, Strategy, choose_micro_batch, choose_strategy
from traincast.strategy.choose import expert_groups

_MOST_TENSOR: Final = 8
_BY_HABIT: Final = "first that fits, by habit"


def naive_strategies(request: Request) -> Iterator[tuple[str, Request]]:
    """Yield the name and the request of each naive strategy; :func:`naive_choice` completes the strategy."""
    devices = request.cluster.num_devices
    base = request.strategy
    inside = max(d for d in range(1, _MOST_TENSOR + 1) if request.cluster.domain_devices % d == 0)
    plain = replace(base, dp=devices)
    shares = request.runtime.defaults.sequence_parallel and inside > 1
    yield "data parallel", replace(request, strategy=plain)
    if devices > 1:
        yield "sharded data parallel (ZeRO-3)", replace(request, strategy=replace(plain, zero=3))
    experts = expert_groups(request, plain)[0]
    if experts > 1:
        yield "data and expert parallel", replace(request, strategy=replace(plain, ep=experts))
    if inside > 1 and devices % inside == 0:
        within = replace(base, dp=devices // inside, tp=inside, sequence_parallel=shares)
        yield "tensor parallel in a node", replace(request, strategy=within)
    yield _BY_HABIT, request


def naive_choice(name: str, request: Request) -> Strategy:
    """Return the strategy of a naive request with the largest micro batch that fits; refuse one that is not legal."""
    return choose_strategy(request) if name == _BY_HABIT else choose_micro_batch(request)
