"""Which collectives to measure: message sizes, groups of ranks, and their placement on nodes.

Bytes are those of nccl-tests: all_reduce and broadcast the buffer, all_gather the whole output,
reduce_scatter the whole input, all_to_all the send buffer of a rank, p2p the message.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from traincast.errors import RequestError, UnknownNameError
from traincast.units import GIB

COLLECTIVES: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "p2p")
BACKENDS: Final = ("gloo", "nccl")
ELEMENT_BYTES: Final = 4
_SIZE: Final = re.compile(r"^\s*([0-9]*\.?[0-9]+)\s*([kKmMgG]?)(i?)([bB]?)\s*$")
_LARGEST: Final = 64 * GIB
_MOST_REPEATS: Final = 10**6
_MOST_THREADS: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRequest:
    """Which collectives to profile: ``sizes`` in bytes, ``groups`` in ranks (if empty: 2, 4, 8 … up to all ranks)."""

    collectives: tuple[str, ...] = COLLECTIVES
    sizes: tuple[int, ...]
    groups: tuple[int, ...] = ()
    backend: str = "gloo"
    repeats: int = 20
    seconds: float | None = None
    threads: int = 1
    source: str = "profile"
    system: str = ""
    interconnect: str = ""

    def __post_init__(self) -> None:
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
        if self.seconds is not None and not self.seconds > 0:
            raise RequestError(f"seconds is {self.seconds:g}: expected more than 0")
        if not self.sizes or not self.collectives:
            raise RequestError("nothing to profile: give at least one collective and one size")
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
    """One measurement: a collective of ``nbytes`` bytes in one group."""

    collective: str
    nbytes: int
    placement: GroupPlacement


def parse_size(text: str) -> int:
    """Parse a size such as ``4096``, ``64KiB``, ``1.5MB`` or ``2M``; a letter alone means 1024, as in nccl-tests.

    >>> parse_size("64KiB"), parse_size("1MB"), parse_size("2M")
    (65536, 1000000, 2097152)
    """
    found = _SIZE.match(text)
    if found is None:
        raise RequestError(f"size {text!r}: expected bytes such as 4096, 64KiB or 16MB")
    number, prefix, binary, unit = found.groups()
    power = {"": 0, "k": 1, "m": 2, "g": 3}[prefix.lower()]
    value = float(number) * (1000 if unit and not binary else 1024) ** power
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


def placements(nodes: Sequence[str], groups: Sequence[int]) -> list[GroupPlacement]:
    """The groups to measure; ``nodes[rank]`` is a rank's node. Groups lie on one node, or evenly on several."""
    ranks_on: defaultdict[str, list[int]] = defaultdict(list)
    for rank, node in enumerate(nodes):
        ranks_on[node].append(rank)
    homes = sorted(ranks_on.values(), key=lambda ranks: (-len(ranks), ranks))
    found = []
    for size in groups or _doubling(len(nodes)):
        for count in range(1, len(homes) + 1):
            if size % count or count > size:
                continue
            each = size // count
            fitting = [ranks[:each] for ranks in homes if len(ranks) >= each][:count]
            power_of_two = count & (count - 1) == 0
            if len(fitting) == count and (power_of_two or count == len(homes)):
                ranks = tuple(sorted(rank for part in fitting for rank in part))
                found.append(GroupPlacement(ranks=ranks, num_nodes=count))
    return found


def _doubling(num_ranks: int) -> list[int]:
    sizes = [2**i for i in range(1, num_ranks.bit_length()) if 2**i <= num_ranks]
    return sizes if num_ranks in sizes or num_ranks < 2 else [*sizes, num_ranks]


def cases_of(request: CollectiveRequest, nodes: Sequence[str]) -> list[CollectiveCase]:
    """All distinct cases of a request; ``nodes[rank]`` is the node of each rank."""
    cases: dict[CollectiveCase, None] = {}
    for placement in placements(nodes, request.groups):
        n = len(placement.ranks)
        for collective in request.collectives:
            if collective == "p2p" and n != 2:
                continue
            for size in request.sizes:
                nbytes = counted_bytes(collective, elements_of(collective, size, n), n)
                cases[CollectiveCase(collective=collective, nbytes=nbytes, placement=placement)] = None
    return list(cases)
