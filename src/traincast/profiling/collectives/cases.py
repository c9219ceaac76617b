"""Which collectives to measure: message sizes, groups of ranks, and their placement on nodes.

Bytes are counted as in nccl-tests: for all_reduce and broadcast the buffer, for all_gather the whole output, for
reduce_scatter the whole input, for all_to_all the send buffer of one rank, for p2p the message.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final

from traincast.ask import Count, JsonRecord, Option
from traincast.errors import RequestError, UnknownNameError
from traincast.profiling.ask import INTERCONNECT, REPEATS, SOURCE, THREADS, TIME_LIMIT
from traincast.units import GIB, KIB, parse_bytes, parse_count

COLLECTIVES: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "p2p")
BACKENDS: Final = ("gloo", "nccl")
ELEMENT_BYTES: Final = 4
SIZES: Final = tuple(KIB * 4**n for n in range(9))
"""1 KiB to 64 MiB, by factors of 4."""
_LARGEST: Final = 64 * GIB
_MOST_REPEATS: Final = 10**6
_MOST_THREADS: Final = 4096
_MOST_GROUPS: Final = 10_000


def parse_size(text: str) -> int:
    """Read a message size such as ``4096``, ``64KiB`` or ``1.5MB``, in whole bytes.

    >>> parse_size("64KiB"), parse_size("1MB")
    (65536, 1000000)
    """
    value = parse_bytes(text, what="size")
    if not 1 <= value <= _LARGEST:
        raise RequestError(f"size {text!r}: expected from 1 byte to {_LARGEST // GIB} GiB")
    return int(value)


def parse_sizes(text: str) -> tuple[int, ...]:
    """Parse a list of sizes; a range doubles (``1KiB..64MiB``) or grows by a factor (``1KiB..64MiB:4``).

    >>> parse_sizes("1KiB..8KiB")
    (1024, 2048, 4096, 8192)
    >>> parse_sizes("1KiB..64KiB:8,1MiB")
    (1024, 8192, 65536, 1048576)
    """
    sizes: list[int] = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        first, dots, rest = item.partition("..")
        if not dots:
            sizes.append(parse_size(item))
            continue
        last, colon, factor = rest.partition(":")
        if colon and (not factor.isdecimal() or int(factor) < 2):
            raise RequestError(f"sizes {item!r}: the factor after ':' must be a whole number of 2 or more")
        size, end = parse_size(first), parse_size(last)
        if size > end:
            raise RequestError(f"sizes {item!r}: the first size, {first}, is larger than the last, {last}")
        while size <= end:
            sizes.append(size)
            size *= int(factor) if colon else 2
    if not sizes:
        raise RequestError(f"sizes {text!r}: expected sizes such as 1KiB..64MiB")
    return tuple(dict.fromkeys(sizes))


def _group_sizes(text: str) -> tuple[int, ...]:
    found = tuple(parse_count(size, what="--groups") for size in _names(text))
    if not found:
        raise RequestError(f"--groups {text!r}: expected ranks per group, such as 2,4")
    return found


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRequest(JsonRecord):
    """The collectives to profile. A later run with the same output measures what is left.

    Run-time patterns (``beside_compute``, ``concurrent_groups``) are measured after the isolated collectives.
    """

    collectives: Annotated[
        tuple[str, ...],
        Option(
            "Collectives to measure: all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, p2p. Default: all.",
            "NAME,…",
            flag="--ops",
            read=_names,
            whole=True,
        ),
    ] = COLLECTIVES
    sizes: Annotated[
        tuple[int, ...],
        Option(
            "Message sizes (64KiB,1MB), or ranges that double (1KiB..64MiB) or grow by a factor (1KiB..64MiB:4).",
            "SIZE,…",
            read=parse_sizes,
            whole=True,
        ),
    ] = SIZES
    groups: Annotated[
        tuple[int, ...],
        Option("Ranks per group. Default: 2, 4, … up to all ranks.", "N,…", read=_group_sizes, whole=True),
    ] = ()
    backend: Annotated[str, Option("Communication library: gloo or nccl.", "NAME")] = "gloo"
    repeats: Annotated[Count, REPEATS] = 20
    time_limit_s: Annotated[float | None, TIME_LIMIT] = None
    threads: Annotated[Count, THREADS] = 1
    source: Annotated[str, SOURCE] = "profile"
    system: Annotated[str, Option("Value of the table's system column. Default: the name of the host.", "NAME")] = ""
    interconnect: Annotated[str, INTERCONNECT] = ""
    beside_compute: Annotated[bool, Option("Also measure each collective while all of its ranks compute.")] = False
    concurrent_groups: Annotated[
        Count, Option("Also measure each collective while N groups of the same shape run it at once.", "N")
    ] = 1
    node_sets: Annotated[Count, Option("Measure each group on up to N different sets of nodes.", "N")] = 1

    def __post_init__(self) -> None:
        JsonRecord.__post_init__(self)
        for name in self.collectives:
            if name not in COLLECTIVES:
                raise UnknownNameError("collective", name, COLLECTIVES)
        if self.backend not in BACKENDS:
            raise UnknownNameError("backend", self.backend, BACKENDS)
        if not 1 <= self.repeats <= _MOST_REPEATS or not 1 <= self.threads <= _MOST_THREADS:
            raise RequestError(
                f"repeats is {self.repeats} and threads is {self.threads}: expected 1 to {_MOST_REPEATS} repeats and "
                f"1 to {_MOST_THREADS} threads"
            )
        if self.time_limit_s is not None and not self.time_limit_s > 0:
            raise RequestError(f"time_limit_s is {self.time_limit_s:g}: expected more than 0")
        if not self.sizes or not self.collectives:
            raise RequestError("nothing to profile: give at least one collective and one size")
        if not 1 <= self.concurrent_groups <= _MOST_GROUPS or not 1 <= self.node_sets <= _MOST_GROUPS:
            raise RequestError(
                f"concurrent_groups is {self.concurrent_groups} and node_sets is {self.node_sets}: expected 1 to "
                f"{_MOST_GROUPS}"
            )
        if any(group < 2 for group in self.groups):
            raise RequestError(f"groups are {', '.join(map(str, self.groups))}: a group has 2 ranks or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlacement:
    """A group of ranks and the number of nodes that it spans, with equally many ranks on each."""

    ranks: tuple[int, ...]
    num_nodes: int

    @property
    def variant(self) -> str:
        """``packed`` (on one node) or ``spread`` (over several)."""
        return "packed" if self.num_nodes == 1 else "spread"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCase:
    """One measurement: a collective of ``nbytes`` bytes in one group.

    ``beside`` are other groups that run the same collective at the same time. If ``computing``, all ranks compute
    meanwhile.
    """

    collective: str
    nbytes: int
    placement: GroupPlacement
    beside: tuple[GroupPlacement, ...] = ()
    computing: bool = False

    @property
    def groups(self) -> tuple[GroupPlacement, ...]:
        """All groups that take part."""
        return (self.placement, *self.beside)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of all groups."""
        return tuple(rank for group in self.groups for rank in group.ranks)


def elements_of(collective: str, nbytes: int, num_ranks: int) -> int:
    """Elements that each rank holds before the collective, so that nccl-tests would count at most ``nbytes``.

    >>> [elements_of(c, 4096, 4) for c in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")]
    [1024, 256, 1024, 1024]
    """
    if collective in ("all_gather", "reduce_scatter", "all_to_all"):
        each = max(1, nbytes // (ELEMENT_BYTES * num_ranks))
        return each if collective == "all_gather" else each * num_ranks
    return max(1, nbytes // ELEMENT_BYTES)


def counted_bytes(collective: str, elements: int, num_ranks: int) -> int:
    """Bytes that nccl-tests counts if each rank holds ``elements``: the inverse of :func:`elements_of`."""
    return elements * ELEMENT_BYTES * (num_ranks if collective == "all_gather" else 1)


def bus_factor(collective: str, num_ranks: int) -> float:
    """Bytes that cross a rank's link per byte counted, as in nccl-tests: 2(n-1)/n, (n-1)/n or 1."""
    n = num_ranks
    if collective == "all_reduce":
        return 2.0 * (n - 1) / n
    return (n - 1) / n if collective in ("all_gather", "reduce_scatter", "all_to_all") else 1.0


def placements(nodes: Sequence[str], groups: Sequence[int], *, node_sets: int = 1) -> list[GroupPlacement]:
    """The groups to measure; ``nodes[rank]`` is a rank's node. Groups lie on one node, or evenly on several.

    Each group is placed on up to ``node_sets`` sets of nodes, which differ in at least one node.
    """
    homes = _homes(nodes)
    found: dict[GroupPlacement, None] = {}
    for size in groups or _doubling(len(nodes)):
        for count in range(1, len(homes) + 1):
            if size % count or count > size:
                continue
            each = size // count
            able = [ranks for ranks in homes if len(ranks) >= each]
            power_of_two = count & (count - 1) == 0
            if len(able) < count or not (power_of_two or count == len(homes)):
                continue
            for start in range(min(node_sets, len(able) if count < len(able) else 1)):
                chosen = (able + able)[start : start + count]
                ranks = tuple(sorted(rank for part in chosen for rank in part[:each]))
                found[GroupPlacement(ranks=ranks, num_nodes=count)] = None
    return list(found)


def _homes(nodes: Sequence[str]) -> list[list[int]]:
    """The ranks of each node, the node with the most ranks first."""
    ranks_on: defaultdict[str, list[int]] = defaultdict(list)
    for rank, node in enumerate(nodes):
        ranks_on[node].append(rank)
    return sorted(ranks_on.values(), key=lambda ranks: (-len(ranks), ranks))


def companions(placement: GroupPlacement, nodes: Sequence[str], count: int) -> tuple[GroupPlacement, ...]:
    """``count`` further groups of the same shape on the same nodes, without a common rank; none if there are too few.

    >>> companions(GroupPlacement(ranks=(0, 1), num_nodes=1), ["a"] * 4, 1)[0].ranks
    (2, 3)
    """
    each = len(placement.ranks) // placement.num_nodes
    used = {nodes[rank] for rank in placement.ranks}
    free = {node: [rank for rank, home in enumerate(nodes) if home == node] for node in sorted(used)}
    free = {node: [rank for rank in ranks if rank not in placement.ranks] for node, ranks in free.items()}
    if any(len(ranks) < each * count for ranks in free.values()):
        return ()
    return tuple(
        GroupPlacement(
            ranks=tuple(sorted(rank for ranks in free.values() for rank in ranks[i * each : (i + 1) * each])),
            num_nodes=placement.num_nodes,
        )
        for i in range(count)
    )


def _doubling(num_ranks: int) -> list[int]:
    sizes = [2**i for i in range(1, num_ranks.bit_length()) if 2**i <= num_ranks]
    return sizes if num_ranks in sizes or num_ranks < 2 else [*sizes, num_ranks]


def cases_of(request: CollectiveRequest, nodes: Sequence[str]) -> list[CollectiveCase]:
    """All distinct cases of a request, isolated ones first; ``nodes[rank]`` is the node of each rank."""
    isolated: dict[CollectiveCase, None] = {}
    for placement in placements(nodes, request.groups, node_sets=request.node_sets):
        n = len(placement.ranks)
        for collective in request.collectives:
            if collective == "p2p" and n != 2:
                continue
            for size in request.sizes:
                nbytes = counted_bytes(collective, elements_of(collective, size, n), n)
                isolated[CollectiveCase(collective=collective, nbytes=nbytes, placement=placement)] = None
    patterns = [case for case in isolated for case in _patterns(case, request, nodes)]
    return [*isolated, *patterns]


def _patterns(case: CollectiveCase, request: CollectiveRequest, nodes: Sequence[str]) -> list[CollectiveCase]:
    """The same case under each run-time pattern that was asked for, and under both at once."""
    beside = companions(case.placement, nodes, request.concurrent_groups - 1)
    found = [replace(case, computing=True)] if request.beside_compute else []
    if beside:
        found += [replace(each, beside=beside) for each in (case, *found)]
    return found
