"""Placement rules: each picks free GPUs for a job, or finds none.

A rule is called with one pool of nodes at a time (one GPU type), and returns (node, bits of GPUs) pairs. Among equal
nodes it takes the one with the lowest number, so that equal runs have equal placements.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Protocol, TypeAlias

from traincast.imports import make_by_name
from traincast.scheduling.queue.run import JobRun
from traincast.scheduling.queue.speeds import PlacedGpus
from traincast.scheduling.space.cluster import Pool, SharedCluster
from traincast.scheduling.space.free import UNIT, Allocation, Free, FreeCounts, JobDemand, bits_of, lowest_bits

Picked: TypeAlias = list[tuple[int, int]]
"""(node, bits of its GPUs) pairs."""


class Neighbours(Protocol):
    """Knows which jobs meet where, and how much they slow one another down."""

    def factor_at(self, run: JobRun, placed: PlacedGpus, nodes: Iterable[int]) -> float:
        """Return the least speed factor of a job on ``nodes`` and of those that it would meet there."""


class QueueView(Protocol):
    """What a placement rule may ask of the queue; see :class:`traincast.scheduling.queue.state.State`."""

    @property
    def cluster(self) -> SharedCluster:
        """The nodes."""

    @property
    def tenants(self) -> Neighbours | None:
        """The jobs that share nodes; ``None`` if jobs do not slow one another down."""

    def believed_speed(self, run: JobRun, placed: PlacedGpus) -> float:
        """Return the believed speed of a job alone on some GPUs."""


class Placement:
    """A placement rule. A subclass defines how whole GPUs are picked, and optionally how a share of one is.

    `prepare` is called once before a run, `find` whenever a job may start. A rule that needs only the number of free
    GPUs, and not which ones are free, sets ``is_pooled``.
    """

    is_pooled: bool = False

    def prepare(self, mix: Mapping[float, int]) -> None:
        """Begin a run and forget the previous one; ``mix`` has the number of jobs for each number of GPUs asked for."""

    def asked(self, run: JobRun, state: QueueView) -> None:
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


__all__ = ["PLACEMENTS", "Picked", "PlacedSpace", "Placement", "PooledSpace", "Space", "load_placement"]


class Pooled(Placement):
    """Any free GPUs, beginning with the first nodes: only their number matters."""

    is_pooled = True

    def pick(self, count: int, pool: Pool, free: Free) -> Picked | None:
        """Take GPUs from the first nodes that have any."""
        picked: Picked = []
        masks = free.masks
        for node in bits_of(pool.nodes & ~free.with_count[0]):
            mask = masks[node]
            here = mask.bit_count()
            if here >= count:
                picked.append((node, lowest_bits(mask, count)))
                return picked
            picked.append((node, mask))
            count -= here
        return None


def _best_fit(count: int, nodes: int, free: Free) -> tuple[int, int] | None:
    """Return the node with the fewest free GPUs that suffice, and the GPUs to take there."""
    with_count = free.with_count
    for have in range(count, len(with_count)):
        found = with_count[have] & nodes
        if found:
            node = (found & -found).bit_length() - 1
            return node, lowest_bits(free.masks[node], count)
    return None


class Consolidated(Placement):
    """A job that fits on one node runs on one: the node with the fewest free GPUs that suffice.

    Larger jobs take whole empty nodes, the largest first, and one best-fitting node for the remainder.
    """

    def pick(self, count: int, pool: Pool, free: Free) -> Picked | None:
        """Use as few nodes as possible."""
        picked: Picked = []
        nodes = pool.nodes
        of_size = free.layout.nodes_of_size
        sizes = sorted((size for size, having in of_size.items() if size and having & nodes), reverse=True)
        largest = sizes[0]
        while True:
            if count <= largest:
                last = _best_fit(count, nodes, free)
                if last is not None:
                    return [*picked, last]
                if not picked:
                    return None
            empty = next((e for s in sizes if s < count and (e := free.with_count[s] & of_size[s] & nodes)), 0)
            if not empty:
                return None
            low = empty & -empty
            node = low.bit_length() - 1
            picked.append((node, free.layout.full[node]))
            nodes ^= low
            count -= free.layout.sizes[node]


class Spread(Placement):
    """Over as many nodes as possible: one GPU after the other, each on the node that then has the most free."""

    def pick(self, count: int, pool: Pool, free: Free) -> Picked | None:
        """Take GPUs from the nodes with the most free ones, in turns."""
        level = len(free.with_count) - 1
        nodes = 0
        taken: dict[int, int] = {}
        while count and level:
            nodes |= free.with_count[level] & pool.nodes
            for node in bits_of(nodes):
                taken[node] = taken.get(node, 0) + 1
                count -= 1
                if not count:
                    break
            level -= 1
        return None if count else [(node, lowest_bits(free.masks[node], taken[node])) for node in sorted(taken)]


class Topology(Placement):
    """As close together as possible: on one node, in one rack, below one switch, then anywhere.

    At each distance, the domain with the fewest free GPUs that suffice is taken, and in it the nodes with the most.
    """

    def pick(self, count: int, pool: Pool, free: Free) -> Picked | None:
        """Use the smallest domain that has room."""
        single = _best_fit(count, pool.nodes, free)
        if single is not None:
            return [single]
        for domains in free.layout.domains:
            best: tuple[int, int] | None = None
            for domain in domains:
                nodes = domain & pool.nodes
                have = sum(free.masks[node].bit_count() for node in bits_of(nodes)) if nodes else 0
                if have >= count and (best is None or have < best[0]):
                    best = (have, nodes)
            if best is not None:
                return list(self._fullest_first(count, best[1], free))
        return None

    @staticmethod
    def _fullest_first(count: int, nodes: int, free: Free) -> Iterator[tuple[int, int]]:
        """Take all free GPUs of the nodes with the most, and the best-fitting node for the remainder."""
        for have in range(len(free.with_count) - 1, 0, -1):
            found = free.with_count[have] & nodes
            while found and count >= have:
                low = found & -found
                found ^= low
                nodes ^= low
                count -= have
                yield low.bit_length() - 1, free.masks[low.bit_length() - 1]
        if count:
            last = _best_fit(count, nodes, free)
            assert last is not None  # the domain has enough, and every node with less is taken
            yield last


class Random(Placement):
    """Free GPUs drawn evenly, with a seed."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self._draw = random.Random(seed)  # noqa: S311  (no secret)

    def prepare(self, mix: Mapping[float, int]) -> None:
        """Restart the random sequence."""
        self._draw.seed(self.seed)

    def pick(self, count: int, pool: Pool, free: Free) -> Picked | None:
        """Draw GPUs without replacement."""
        gpus = [(node, gpu) for node in bits_of(pool.nodes & ~free.with_count[0]) for gpu in bits_of(free.masks[node])]
        if len(gpus) < count:
            return None
        taken: dict[int, int] = {}
        for node, gpu in self._draw.sample(gpus, count):
            taken[node] = taken.get(node, 0) | 1 << gpu
        return sorted(taken.items())

    def pick_share(self, units: int, pool: Pool, free: Free) -> tuple[int, int] | None:
        """Draw any GPU with room, in use or not."""
        used = sorted(key for key, left in free.partial.items() if left >= units and pool.nodes >> key[0] & 1)
        whole = [(node, gpu) for node in bits_of(pool.nodes & ~free.with_count[0]) for gpu in bits_of(free.masks[node])]
        return self._draw.choice(used + whole) if used or whole else None


class Packed(Consolidated):
    """Whole GPUs as `Consolidated`; shares of a GPU where they cause the least fragmentation for typical jobs.

    Fragmentation gradient descent (Weng et al., USENIX ATC 2023): the fragments of a node for a job are its free GPUs
    and shares that the job cannot use, and F = Σ p(job)·fragments over the mix of jobs. A job goes where F grows
    least, then where the least is left over. Processors and memory are not counted.
    """

    def __init__(self) -> None:
        self._mix: list[tuple[int, int, float]] = []
        self._known: dict[tuple[int, tuple[int, ...]], float] = {}

    def prepare(self, mix: Mapping[float, int]) -> None:
        """Store the share of the jobs that asks for each number of GPUs."""
        total = sum(mix.values())
        self._mix = [
            (int(gpus) if gpus >= 1 else 0, 0 if gpus >= 1 else round(gpus * UNIT), number / total)
            for gpus, number in sorted(mix.items())
        ]
        self._known = {}

    def _fragments(self, whole: int, partial: tuple[int, ...]) -> float:
        """Expected units that a node cannot give to a job, from its free GPUs and the free parts of its shared ones."""
        known = self._known.get((whole, partial))
        if known is None:
            rests = sum(partial)
            known = 0.0
            for gpus, units, part in self._mix:
                if units:
                    known += part * sum(left for left in partial if left < units)
                else:
                    known += part * (rests if whole >= gpus else rests + whole * UNIT)
            self._known[whole, partial] = known
        return known

    def pick_share(self, units: int, pool: Pool, free: Free) -> tuple[int, int] | None:
        """Return the GPU on which fragmentation grows least."""
        rests: dict[int, list[tuple[int, int]]] = {}
        for (node, gpu), left in free.partial.items():
            if pool.nodes >> node & 1:
                rests.setdefault(node, []).append((left, gpu))
        best: tuple[float, int, int, int] | None = None
        tried: set[tuple[int, tuple[int, ...]]] = set()
        for node in bits_of(pool.nodes & ~free.with_count[0] | sum(1 << node for node in rests)):
            here = sorted(rests.get(node, ()))
            lefts = tuple(left for left, _ in here)
            whole = free.masks[node].bit_count()
            if (whole, lefts) in tried:
                continue  # a node of lower number is just like this one
            tried.add((whole, lefts))
            before = self._fragments(whole, lefts)
            options = [(left, gpu) for left, gpu in here if left >= units][:1]
            if whole:
                options.append((UNIT, lowest_bits(free.masks[node], 1).bit_length() - 1))
            for left, gpu in options:
                rest = list(lefts)
                if left < UNIT:
                    rest.remove(left)
                rest.append(left - units)
                after = self._fragments(whole - (left == UNIT), tuple(sorted(rest)))
                option = (round(after - before, 3), left - units, node, gpu)
                if best is None or option < best:
                    best = option
        return None if best is None else (best[2], best[3])


class Exclusive(Consolidated):
    """Nodes that nobody else uses: a job leaves the GPUs of its nodes that it does not need empty."""

    def pick(self, count: int, pool: Pool, free: Free) -> Picked | None:
        """Use as few empty nodes as possible."""
        of_size = free.layout.nodes_of_size
        busy = {node for node, _ in free.partial}
        empty = sum(free.with_count[size] & nodes for size, nodes in of_size.items() if size)
        empty &= ~sum(1 << node for node in busy)
        return super().pick(count, pool._replace(nodes=pool.nodes & empty), free) if pool.nodes & empty else None

    def pick_share(self, units: int, pool: Pool, free: Free) -> tuple[int, int] | None:
        """Return a GPU of an empty node."""
        return self.pick_whole(pool, free)


_OPENING: Final = 0.1
"""The slowdown that is accepted before an empty node is opened for a part of a job."""


class Complementary(Consolidated):
    """As few nodes as `Consolidated` takes, and among these the ones whose jobs draw least when this one draws.

    What a job draws, and what it meets on a node, comes from the forecasts of both
    (:mod:`traincast.scheduling.sharing.contention`). Without contention, or for a job that is not described, the rule
    is that of `Consolidated`. A multi-node job takes its nodes one by one, those with the best neighbours first. It
    takes a part of an empty node only if every other choice would slow some job down by a tenth. If the cluster states
    the rate of its uplinks, nodes of one rack are tried as well, and the fastest choice is taken.
    """

    def __init__(self) -> None:
        self._run: JobRun | None = None
        self._state: QueueView | None = None

    def asked(self, run: JobRun, state: QueueView) -> None:
        """Note whom to find neighbours for."""
        self._run, self._state = run, state

    def pick(self, count: int, pool: Pool, free: Free) -> Picked | None:
        """Use as few nodes as possible, with the neighbours that slow the job, and that it slows, least."""
        usual = super().pick(count, pool, free)
        run, state = self._run, self._state
        if usual is None or run is None or state is None or state.tenants is None:
            return usual
        found = self._suited(usual, pool, free)
        if not state.cluster.uplink:
            return found
        choices = [found]
        for rack in free.layout.domains[0]:  # without any uplink, if a rack has room
            inside = pool._replace(nodes=pool.nodes & rack, is_whole=False)
            packed = super().pick(count, inside, free) if inside.nodes else None
            if packed is not None and len(packed) <= len(usual):
                choices.append(self._suited(packed, inside, free))
        return max(choices, key=lambda picked: round(self._speed(picked, free), 6))

    def _speed(self, picked: Picked, free: Free) -> float:
        """The believed speed of the job on ``picked``, less what the worst meeting of jobs and opened nodes cost."""
        assert self._run is not None
        assert self._state is not None
        assert self._state.tenants is not None
        placed = self._placed(picked)
        factor = self._state.tenants.factor_at(self._run, placed, [node for node, _ in picked])
        opens = sum(_opening(node, mask.bit_count(), free) for node, mask in picked)
        return self._state.believed_speed(self._run, placed) * factor / (1.0 + opens)

    def _placed(self, picked: Picked) -> PlacedGpus:
        assert self._state is not None
        nodes = self._state.cluster.nodes
        return PlacedGpus(tuple(nodes[node] for node, _ in picked), tuple(mask.bit_count() for _, mask in picked))

    def _suited(self, usual: Picked, pool: Pool, free: Free) -> Picked:
        """As many GPUs on as many nodes as in ``usual``, on the nodes of the pool with the best neighbours."""
        assert self._run is not None
        assert self._state is not None
        assert self._state.tenants is not None
        placed = self._placed(usual)
        cost = {
            node: 1.0 / self._state.tenants.factor_at(self._run, placed, [node]) - 1.0
            for node in bits_of(pool.nodes & ~free.with_count[0])
        }
        picked: Picked = []
        for _, mask in sorted(usual, key=lambda pair: -pair[1].bit_count()):
            need = mask.bit_count()
            fitting = [node for node in cost if free.masks[node].bit_count() >= need]
            if not fitting:
                return usual
            costs = {n: round(cost[n] + _opening(n, need, free), 6) for n in fitting}
            node = min(fitting, key=lambda n: (costs[n], free.masks[n].bit_count(), n))
            del cost[node]
            picked.append((node, lowest_bits(free.masks[node], need)))
        return sorted(picked)


def _opening(node: int, need: int, free: Free) -> float:
    """What it costs to take ``need`` GPUs of a node: more than nothing if it is empty and some of it stays unused."""
    layout = free.layout
    return _OPENING if need < layout.sizes[node] and free.masks[node] == layout.full[node] else 0.0


PLACEMENTS: Final[dict[str, type[Placement]]] = {
    "pooled": Pooled,
    "consolidated": Consolidated,
    "spread": Spread,
    "topology": Topology,
    "random": Random,
    "packed": Packed,
    "exclusive": Exclusive,
    "complementary": Complementary,
}


def load_placement(name: str, *, seed: int = 0) -> Placement:
    """Return the rule of that name, or ``package.module:Class``; ``seed`` is for the random rule."""
    if name == "random":
        return Random(seed)
    return make_by_name("placement", name, PLACEMENTS, Placement)
