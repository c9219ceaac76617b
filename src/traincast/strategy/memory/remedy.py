"""Finds a change that makes a strategy fit: lists candidates from cheap to expensive, and chooses one that fits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from traincast.errors import StrategyError
from traincast.strategy.memory.fits import MemoryNeed
from traincast.strategy.program.recompute import leaner
from traincast.strategy.strategy import Strategy
from traincast.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A changed strategy that should need less memory, and a description of the change."""

    description: str
    strategy: Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """The memory that a strategy needs, the change that makes it fit (None: none found), and its step time if known."""

    need: MemoryNeed
    change: Change | None = None
    changed: MemoryNeed | None = None
    step_s: float | None = None

    def __str__(self) -> str:
        missing = self.need.shortage()
        if self.change is None or self.changed is None:
            return f"{missing}; no change of one or two settings makes it fit"
        time = f", {self.step_s:.3g} s per step" if self.step_s is not None else ""
        host = f" and {format_bytes(self.changed.host)} of host memory per node" if self.changed.host else ""
        return f"{missing}; fits with {self.change.description} ({format_bytes(self.changed.forecast)}{host}{time})"


def changes(strategy: Strategy, *, global_batch: int, most_tensor: int = 8) -> Iterator[Change]:
    """Changes that save memory, those that cost least time first.

    The product of degrees stays the same: a larger tensor or pipeline group leaves fewer replicas. Tensor groups grow
    up to ``most_tensor`` ranks, the size of a node.
    """
    yield from _sharding(strategy)
    if strategy.tp > 1 and not strategy.sequence_parallel:
        yield from _made("sequence_parallel", strategy, sequence_parallel=True)
    yield from _smaller_batches(strategy, global_batch)
    yield from _recomputation(strategy)
    yield from _larger_groups(strategy, most_tensor)
    if "optimizer" not in strategy.offload:
        yield from _made("offload=optimizer", strategy, offload=(*strategy.offload, "optimizer"))


def find_remedy(
    strategy: Strategy,
    needed: MemoryNeed,
    *,
    global_batch: int,
    need: Callable[[Strategy], MemoryNeed],
    seconds: Callable[[Strategy], float] | None = None,
    least: Callable[[Strategy], float] = lambda strategy: 0.0,
    most_tensor: int = 8,
) -> Remedy:
    """Finds a change that makes ``strategy``, which needs ``needed``, fit into devices and hosts.

    If several changes do, it takes the fastest by ``seconds`` or, without ``seconds``, the first. ``least`` returns
    seconds that a strategy cannot beat; ``seconds`` is not asked about one that cannot be the fastest. ``need`` returns
    the memory that a strategy needs; changes for which it raises :class:`StrategyError` are left out.
    """
    best = Remedy(need=needed)
    if best.need.fits:
        return best
    candidates = [*changes(strategy, global_batch=global_batch, most_tensor=most_tensor)]
    if not best.need.host_fits:
        candidates += _less_offloaded(strategy)
    single = _sized(candidates, need)
    best = _fastest(single, best, seconds, least)
    if best.change is None:  # try a second change on top of those that save most
        helpful = sorted(single, key=lambda pair: pair[0].load)[:_TWICE]
        best = _fastest(
            _sized(
                (
                    Change(description=f"{first.description},{second.description}", strategy=second.strategy)
                    for _, first in helpful
                    for second in changes(first.strategy, global_batch=global_batch, most_tensor=most_tensor)
                ),
                need,
            ),
            best,
            seconds,
            least,
        )
    return best


_MOST_TIMES: Final = 8
_ROUNDING: Final = 1e-9
"""Share by which a bound may exceed a step because both are sums of many numbers."""
_TWICE: Final = 4
"""If no single change is enough, a second one is tried on top of this many."""


def _sized(candidates: Iterable[Change], need: Callable[[Strategy], MemoryNeed]) -> list[tuple[MemoryNeed, Change]]:
    """The legal candidates, each with the memory it needs."""
    found = []
    for change in candidates:
        try:
            found.append((need(change.strategy), change))
        except StrategyError:
            continue
    return found


def _fastest(
    candidates: list[tuple[MemoryNeed, Change]],
    best: Remedy,
    seconds: Callable[[Strategy], float] | None,
    least: Callable[[Strategy], float],
) -> Remedy:
    """The fastest candidate that fits, and of equals the first; or the first if ``seconds`` is None."""
    fitting = [(changed, change) for changed, change in candidates if changed.fits]
    if not fitting:
        return best
    fastest, step_s = 0, None
    if seconds is not None:
        bounds = [least(change.strategy) for _, change in fitting]
        for number in sorted(range(len(fitting)), key=lambda n: bounds[n]):
            if step_s is not None and bounds[number] > step_s * (1.0 + _ROUNDING):
                break
            found = seconds(fitting[number][1].strategy)
            if step_s is None or (found, number) < (step_s, fastest):
                fastest, step_s = number, found
    changed, change = fitting[fastest]
    return replace(best, change=change, changed=changed, step_s=step_s)


def _made(description: str, strategy: Strategy, **values: Any) -> Iterator[Change]:
    """The change, unless the changed strategy is illegal."""
    try:
        yield Change(description=description, strategy=replace(strategy, **values))
    except StrategyError:
        return


def _sharding(strategy: Strategy) -> Iterator[Change]:
    if strategy.dp * strategy.cp == 1 or strategy.servers:
        return
    if strategy.tables == "replicated":
        yield from _made("tables=sharded", strategy, tables="sharded")
    for zero in range(strategy.zero + 1, 4):
        yield from _made(f"zero={zero}", strategy, zero=zero)


def _smaller_batches(strategy: Strategy, global_batch: int) -> Iterator[Change]:
    size = strategy.micro_batch(global_batch)
    per_replica = size * strategy.num_microbatches  # of the largest share, if shares differ
    for smaller in (s for s in range(size - 1, 0, -1) if size % s == 0):
        yield from _made(f"micro_batch={smaller}", strategy, num_microbatches=per_replica // smaller)


def _recomputation(strategy: Strategy) -> Iterator[Change]:
    same = [strategy.recompute] if strategy.recompute_every > 1 else []
    for name in (*same, *leaner(strategy.recompute)):
        yield from _made(f"recompute={name}", strategy, recompute=name, recompute_every=1)


def _less_offloaded(strategy: Strategy) -> Iterator[Change]:
    """Offloads less, if the hosts have no room."""
    for name in strategy.offload:
        rest = tuple(other for other in strategy.offload if other != name)
        yield from _made(f"offload={'+'.join(rest)}" if rest else "nothing offloaded", strategy, offload=rest)


def _larger_groups(strategy: Strategy, most_tensor: int) -> Iterator[Change]:
    """Tensor and pipeline groups of two, four or eight times the ranks, with the same samples per microbatch."""
    factor = 2
    while strategy.dp % factor == 0 and factor <= _MOST_TIMES:
        fewer = {"dp": strategy.dp // factor, "num_microbatches": strategy.num_microbatches * factor}
        if strategy.tp * factor <= most_tensor:
            yield from _made(f"tp={strategy.tp * factor}", strategy, **fewer, tp=strategy.tp * factor)
        yield from _made(f"pp={strategy.pp * factor}", strategy, **fewer, pp=strategy.pp * factor, layers=())
        factor *= 2
