"""The base of placement rules, and the space that policies plan in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, TypeAlias

from traincast.scheduling.space.cluster import Pool
from traincast.scheduling.space.free import UNIT, Allocation, Free, FreeCounts, JobDemand

if TYPE_CHECKING:
    from traincast.scheduling.queue.run import JobRun
    from traincast.scheduling.queue.state import State

Picked: TypeAlias = list[tuple[int, int]]
"""(node, bits of its GPUs) pairs."""


class Placement:
    """A placement rule. A subclass defines how whole GPUs are picked, and optionally how a share of one is.

    `prepare` is called once before a run, `find` whenever a job may start. A rule that needs only the number of free
    GPUs, and not which ones are free, sets ``is_pooled``.
    """

    is_pooled: bool = False

    def prepare(self, mix: Mapping[float, int]) -> None:
        """Begin a run and forget the previous one; ``mix`` has the number of jobs for each number of GPUs asked for."""

    def asked(self, run: JobRun, state: State) -> None:
        """Note the job that the next call of `find` is for, and the state of the queue; most rules need neither."""

    def pick(self, count: int, pool: Pool, free: Free) -> Picked | None:
        """Return that many whole GPUs of the pool, or ``None``."""
        raise NotImplementedError

    def pick_share(self, units: int, pool: Pool, free: Free) -> tuple[int, int] | None:
        """Return node and number of a GPU with enough units left: the fullest that fits, else a free one."""
        best = min(
            ((left, key) for key, left in free.partial.items() if left >= units and pool.nodes >> key[0] & 1),
            default=None,
        )
        return best[1] if best else self.pick_whole(pool, free)

    def pick_whole(self, pool: Pool, free: Free) -> tuple[int, int] | None:
        """Return node and number of a free GPU that will be shared."""
        picked = self.pick(1, pool, free)
        if picked is None:
            return None
        ((node, mask),) = picked
        return node, mask.bit_length() - 1

    def find(self, demand: JobDemand, free: Free) -> Allocation | None:
        """Return GPUs for a job from the first pool that has them, or ``None``."""
        num_gpus, units, pools, vc = demand
        if vc and not free.in_quota(demand):
            return None
        for pool in pools:
            if units < UNIT:
                shared = self.pick_share(units, pool, free)
                if shared is not None:
                    return Allocation(((shared[0], 1 << shared[1]),), units, pool.group, 1, vc)
            elif free.count(pool) >= num_gpus:
                picked = self.pick(num_gpus, pool, free)
                if picked is not None:
                    return Allocation(tuple(picked), units, pool.group, num_gpus, vc)
        return None

    def space(self, free: Free) -> Space:
        """Return a copy of what is free, for planning."""
        return PooledSpace(free.counts()) if self.is_pooled else PlacedSpace(free.copy(), self)


class Space(Protocol):
    """A copy of the free GPUs for planning. Taking GPUs here does not take them in the simulation."""

    def copy(self) -> Space:
        """Return an independent copy."""

    def take(self, allocation: Allocation) -> None:
        """Take the allocation."""

    def give(self, allocation: Allocation) -> None:
        """Release the allocation."""

    def fits(self, allocation: Allocation) -> bool:
        """Whether the allocation is free."""

    def find(self, demand: JobDemand) -> Allocation | None:
        """Return an allocation that meets the demand, or ``None``."""

    def is_full(self) -> bool:
        """Whether nothing is free."""


class PooledSpace(FreeCounts):
    """Space for pooled placement, which needs only counts."""

    __slots__ = ()

    def __init__(self, counts: FreeCounts) -> None:
        super().__init__(counts.groups, counts.held, counts.quotas)

    def copy(self) -> PooledSpace:
        """Return an independent copy."""
        return PooledSpace(super().copy())


class PlacedSpace:
    """Space that knows every GPU, with the rule that picks from them."""

    __slots__ = ("fits", "free", "give", "is_full", "placement", "take")

    def __init__(self, free: Free, placement: Placement) -> None:
        self.free = free
        self.placement = placement
        self.take, self.give, self.fits, self.is_full = free.take, free.give, free.fits, free.is_full

    def copy(self) -> PlacedSpace:
        """Return an independent copy."""
        return PlacedSpace(self.free.copy(), self.placement)

    def find(self, demand: JobDemand) -> Allocation | None:
        """Return an allocation that meets the demand, or ``None``."""
        return self.placement.find(demand, self.free)
