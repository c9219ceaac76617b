"""Free GPUs: which GPUs of which node, shares of GPUs, and the quota that each virtual cluster has used.

Two classes have the same methods. `Free` knows every GPU: a set of nodes is a number with one bit per node, and one
such set for each count of free GPUs finds the best-fitting node in a few steps. `FreeCounts` knows only how many GPUs
are free, which is enough for pooled placement and for planning.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from traincast.scheduling.space.cluster import NodeIndex, Pool

UNIT: Final = 1_000_000
"""A whole GPU, in the unit of shares. Shares are whole numbers, so that adding and subtracting them is exact."""


class JobDemand(NamedTuple):
    """A job's demand: whole GPUs, or a share of one, in one of these pools. Equal jobs share one object."""

    num_gpus: int
    units: int  # per GPU
    pools: tuple[Pool, ...]
    vc: str  # virtual cluster whose quota applies; "": none


class Allocation(NamedTuple):
    """GPUs that a job holds: (node, bits of its GPUs) pairs; with pooled placement, only how many of which group."""

    gpus: tuple[tuple[int, int], ...]
    units: int  # per GPU
    group: int
    num_gpus: int
    vc: str

    @property
    def nodes(self) -> tuple[int, ...]:
        """Numbers of the nodes."""
        return tuple(node for node, _ in self.gpus)


def bits_of(number: int) -> Iterator[int]:
    """Positions of the bits that are set, lowest first."""
    while number:
        low = number & -number
        yield low.bit_length() - 1
        number ^= low


def lowest_bits(number: int, count: int) -> int:
    """Return a number with only its ``count`` lowest bits set."""
    if number.bit_count() == count:
        return number
    rest = number
    for _ in range(count):
        rest &= rest - 1
    return number ^ rest


class FreeCounts:
    """How much is free in each group, in units, and how much of its quota each virtual cluster holds."""

    __slots__ = ("groups", "held", "quotas")

    def __init__(self, groups: list[int], held: dict[str, int], quotas: dict[str, int]) -> None:
        self.groups = groups
        self.held = held
        self.quotas = quotas

    def copy(self) -> FreeCounts:
        """Return an independent copy for planning."""
        return FreeCounts(self.groups.copy(), self.held.copy(), self.quotas)

    def take(self, allocation: Allocation) -> None:
        """Take the allocation."""
        units = allocation.num_gpus * allocation.units
        self.groups[allocation.group] -= units
        if allocation.vc:
            self.held[allocation.vc] += units

    def give(self, allocation: Allocation) -> None:
        """Release the allocation."""
        units = allocation.num_gpus * allocation.units
        self.groups[allocation.group] += units
        if allocation.vc:
            self.held[allocation.vc] -= units

    def fits(self, allocation: Allocation) -> bool:
        """Whether an allocation of that size is free."""
        units = allocation.num_gpus * allocation.units
        return units <= self.groups[allocation.group] and (
            not allocation.vc or self.held[allocation.vc] + units <= self.quotas[allocation.vc]
        )

    def is_full(self) -> bool:
        """Whether nothing is free."""
        return not any(self.groups)

    def find(self, demand: JobDemand) -> Allocation | None:
        """Return an allocation from the first group with enough free GPUs, or ``None``."""
        num_gpus, units, pools, vc = demand
        total = num_gpus * units
        if vc and self.held[vc] + total > self.quotas[vc]:
            return None
        groups = self.groups
        for pool in pools:
            if groups[pool.group] >= total:
                return Allocation((), units, pool.group, num_gpus, vc)
        return None


class Free:
    """Which GPUs are free, node by node; kept up to date by `take` and `give`.

    ``masks`` has the free GPUs of each node, as bits. ``with_count`` has, for each count, the nodes with that many free
    GPUs, as bits. ``partial`` are shared GPUs, with the units that are free.
    """

    __slots__ = ("down", "groups", "held", "in_empty", "layout", "masks", "partial", "quotas", "total", "with_count")

    def __init__(self, layout: NodeIndex) -> None:
        self.layout = layout
        self.masks: list[int] = layout.full.copy()
        self.with_count: list[int] = [layout.nodes_of_size.get(k, 0) for k in range(layout.largest + 1)]
        self.partial: dict[tuple[int, int], int] = {}
        self.groups: list[int] = [0] * len(layout.groups)
        for node, group in enumerate(layout.group_of):
            self.groups[group] += layout.sizes[node]
        self.quotas: dict[str, int] = {vc: round(gpus * UNIT) for vc, gpus in layout.cluster.quotas.items()}
        self.held: dict[str, int] = dict.fromkeys(self.quotas, 0)
        self.total = sum(layout.sizes)  # wholly free GPUs
        self.in_empty = self.total  # free GPUs on nodes without any GPU in use
        self.down: dict[tuple[int, int], int] = {}  # GPUs that are down, with the failures of each

    def copy(self) -> Free:
        """Return an independent copy for planning."""
        made = Free.__new__(Free)
        made.layout = self.layout
        made.masks = self.masks.copy()
        made.with_count = self.with_count.copy()
        made.partial = self.partial.copy()
        made.groups = self.groups.copy()
        made.quotas = self.quotas
        made.held = self.held.copy()
        made.total, made.in_empty = self.total, self.in_empty
        made.down = self.down
        return made

    def counts(self) -> FreeCounts:
        """Return only the counts."""
        units = [gpus * UNIT for gpus in self.groups]
        for (node, _), left in self.partial.items():
            units[self.layout.group_of[node]] += left
        return FreeCounts(units, self.held.copy(), self.quotas)

    def is_full(self) -> bool:
        """Whether no GPU and no share of one is free."""
        return not self.total and not any(self.partial.values())

    def in_quota(self, demand: JobDemand) -> bool:
        """Whether the virtual cluster's quota allows that many more units."""
        vc = demand.vc
        return not vc or self.held[vc] + demand.num_gpus * demand.units <= self.quotas[vc]

    def count(self, pool: Pool) -> int:
        """Return the number of free GPUs of a pool."""
        if pool.is_whole:
            return self.groups[pool.group]
        return sum(self.masks[node].bit_count() for node in bits_of(pool.nodes))

    def take(self, allocation: Allocation) -> None:
        """Take the allocation."""
        if allocation.vc:
            self.held[allocation.vc] += allocation.num_gpus * allocation.units
        if allocation.units < UNIT:
            ((node, mask),) = allocation.gpus
            key = (node, mask.bit_length() - 1)
            if key not in self.partial:
                self.partial[key] = UNIT
                self._set(node, self.masks[node] & ~mask)
            self.partial[key] -= allocation.units
            assert self.partial[key] >= 0
            return
        for node, mask in allocation.gpus:
            assert self.masks[node] & mask == mask
            self._set(node, self.masks[node] ^ mask)

    def give(self, allocation: Allocation) -> None:
        """Release the allocation."""
        if allocation.vc:
            self.held[allocation.vc] -= allocation.num_gpus * allocation.units
        if allocation.units < UNIT:
            ((node, mask),) = allocation.gpus
            key = (node, mask.bit_length() - 1)
            self.partial[key] += allocation.units
            if self.partial[key] == UNIT:
                del self.partial[key]
                self._set(node, self.masks[node] | mask)
            return
        for node, mask in allocation.gpus:
            self._set(node, self.masks[node] | mask)

    def fits(self, allocation: Allocation) -> bool:
        """Return whether exactly these GPUs are free, within the quota."""
        vc = allocation.vc
        if vc and self.held[vc] + allocation.num_gpus * allocation.units > self.quotas[vc]:
            return False
        masks = self.masks
        if allocation.units < UNIT:
            ((node, mask),) = allocation.gpus
            return bool(masks[node] & mask) or (self.partial.get((node, mask.bit_length() - 1), 0) >= allocation.units)
        return all(masks[node] & mask == mask for node, mask in allocation.gpus)

    def _set(self, node: int, mask: int) -> None:
        before = self.masks[node]
        self.masks[node] = mask
        layout, bit = self.layout, 1 << node
        old, new = before.bit_count(), mask.bit_count()
        self.with_count[old] ^= bit
        self.with_count[new] |= bit
        self.groups[layout.group_of[node]] += new - old
        self.total += new - old
        full = layout.full[node]
        if mask == full:
            self.in_empty += layout.sizes[node]
        elif before == full:
            self.in_empty -= layout.sizes[node]

    def fail(self, node: int, gpu: int) -> None:
        """Take a GPU that nobody holds out of service."""
        key = (node, gpu)
        self.down[key] = self.down.get(key, 0) + 1
        if self.down[key] == 1:
            assert self.masks[node] >> gpu & 1
            self._set(node, self.masks[node] & ~(1 << gpu))

    def repair(self, node: int, gpu: int) -> None:
        """Undo one failure of a GPU; it returns to service when no failure is left."""
        key = (node, gpu)
        self.down[key] -= 1
        if not self.down[key]:
            del self.down[key]
            self._set(node, self.masks[node] | 1 << gpu)
