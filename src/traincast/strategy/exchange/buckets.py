"""Buckets of gradients that close inside a block, between two parameters, as PyTorch's reducer closes them.

The reducer adds gradients to a bucket in the order in which they become complete. A bucket closes with the gradient
that brings it to its size or above, and its exchange begins at once. The last bucket closes with the last gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from traincast.strategy.program.block import BlockProgram
from traincast.strategy.program.item import Item, Share
from traincast.strategy.schedules.slots import Pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """The works that run before a bucket closes, by block, and the parameters in it; the last entry may have none."""

    parts: list[tuple[Item, ...]]
    share: Share


def cut_buckets(
    programs: Sequence[BlockProgram], what: Pass, *, nbytes: Callable[[float], float], first: float, others: float
) -> list[Bucket]:
    """Cuts one backward pass through ``programs`` where buckets close.

    ``nbytes`` returns the bytes of the gradients of a number of parameters. ``first`` and ``others`` are the sizes of
    the first bucket and of all others. Parameters that no work completes are complete at the end of their block.
    """
    passes = [program.items(what) for program in programs]
    completed = [(n, at, share) for n, p in enumerate(programs) for at, share in _completed(p, passes[n])]
    buckets: list[Bucket] = []
    inside = Share(0.0, 0.0)
    since = (0, 0)
    for number, (n, at, share) in enumerate(completed):
        inside = Share(inside.dense + share.dense, inside.experts + share.experts)
        full = nbytes(inside.total) >= (others if buckets else first)
        if full or number == len(completed) - 1:
            buckets.append(Bucket(parts=_between(passes, since, (n, at)), share=inside))
            since, inside = (n, at), Share(0.0, 0.0)
    rest = _between(passes, since, (len(passes) - 1, len(passes[-1])))
    return [*buckets, Bucket(parts=rest, share=inside)] if rest else buckets


def _between(
    passes: Sequence[tuple[Item, ...]], since: tuple[int, int], until: tuple[int, int]
) -> list[tuple[Item, ...]]:
    """The works from one place, given by block and item, up to another one; whole blocks stay the same objects."""
    parts = []
    for n in range(since[0], until[0] + 1):
        part = passes[n][since[1] if n == since[0] else 0 : until[1] if n == until[0] else None]
        if part:
            parts.append(part)
    return parts


def _completed(program: BlockProgram, items: tuple[Item, ...]) -> list[tuple[int, Share]]:
    """The parameters of a block as their gradients become complete, each with the number of items run by then."""
    found = [(at + 1, share) for at, item in enumerate(items) for share in item.completes]
    dense = program.dense_parameters - sum(share.dense for _, share in found)
    experts = program.expert_parameters - sum(share.experts for _, share in found)
    if dense + experts > 0.5:
        found.append((len(items), Share(max(dense, 0.0), max(experts, 0.0))))
    return found
