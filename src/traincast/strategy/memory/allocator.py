"""PyTorch's caching allocator: how many bytes it reserves for a sequence of allocations.

The rules are those of PyTorch's documentation on memory management and of its ``CUDACachingAllocator``. Sizes are
rounded up to 512 bytes. Requests up to 1 MiB share segments of 2 MiB; larger ones share segments of 20 MiB, and from 10
MiB a request gets a segment of its own, rounded up to 2 MiB. A request takes the smallest free block that is large
enough, and the block is split if more than 1 MiB is left (512 bytes in small segments). A freed block is joined with
free neighbours of its segment, never across segments. Segments return to the device only if a request would not fit.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import Final

_ROUND: Final = 512
_SMALL: Final = 2**20
_SMALL_SEGMENT: Final = 2 * 2**20
_LARGE_SEGMENT: Final = 20 * 2**20
_OWN_SEGMENT: Final = 10 * 2**20
_SEGMENT_ROUND: Final = 2 * 2**20
_APART: Final = 2**60
"""Where the expandable segment of large blocks begins, far from that of small ones."""


@dataclass(slots=True)
class _Part:
    """A block of a segment: its bytes, the addresses of its neighbours in the segment (-1: none), and its state."""

    size: int
    before: int
    after: int
    free: bool
    small: bool


class CachingAllocator:
    """Allocations of one device with ``capacity`` bytes; ``expandable`` segments grow and shrink page by page.

    ``allocated`` and ``reserved`` are PyTorch's counters, in bytes; ``most_allocated`` and ``most_reserved`` their
    peaks. If even an empty cache leaves too little room, the request is granted all the same: the caller compares
    ``most_reserved`` with the capacity.
    """

    def __init__(self, *, capacity: float = float("inf"), expandable: bool = False) -> None:
        self.allocated = self.reserved = self.most_allocated = self.most_reserved = 0
        self._capacity = capacity
        self._expandable = expandable
        self._parts: dict[int, _Part] = {}
        self._free: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
        self._end = 0

    def allocate(self, nbytes: float) -> int:
        """Allocate ``nbytes`` and return their address."""
        size = max(_ROUND, -(-int(nbytes) // _ROUND) * _ROUND)
        small = size <= _SMALL
        free = self._free[small]
        found = bisect_left(free, (size, -1))
        at = free.pop(found)[1] if found < len(free) else self._segment(size, small=small)
        part = self._parts[at]
        left = part.size - size
        if left >= _ROUND if small or self._expandable else left > _SMALL:
            rest = at + size
            self._parts[rest] = _Part(left, at, part.after, free=True, small=small)
            if part.after >= 0:
                self._parts[part.after].before = rest
            part.after, part.size = rest, size
            insort(free, (left, rest))
        part.free = False
        self.allocated += part.size
        self.most_allocated = max(self.most_allocated, self.allocated)
        return at

    def release(self, at: int) -> None:
        """Free the block at an address that :meth:`allocate` returned."""
        part = self._parts[at]
        self.allocated -= part.size
        part.free = True
        if part.after >= 0 and self._parts[part.after].free:
            self._join(at, part.after)
        if part.before >= 0 and self._parts[part.before].free:
            at = part.before
            free = self._free[part.small]
            free.pop(bisect_left(free, (self._parts[at].size, at)))
            self._join(at, self._parts[at].after, listed=False)
        insort(self._free[part.small], (self._parts[at].size, at))

    def empty_cache(self) -> None:
        """Return all segments without a block in use to the device."""
        for free in self._free.values():
            kept = []
            for size, at in free:
                part = self._parts[at]
                if part.before < 0 and part.after < 0:
                    self.reserved -= size
                    del self._parts[at]
                else:
                    kept.append((size, at))
            free[:] = kept

    def _join(self, at: int, other: int, *, listed: bool = True) -> None:
        """Add the block ``other`` to its neighbour ``at``; ``listed``: it is in the list of free blocks."""
        gone, part = self._parts.pop(other), self._parts[at]
        if listed:
            free = self._free[gone.small]
            free.pop(bisect_left(free, (gone.size, other)))
        part.size += gone.size
        part.after = gone.after
        if gone.after >= 0:
            self._parts[gone.after].before = at

    def _segment(self, size: int, *, small: bool) -> int:
        """Reserve a new segment for ``size`` bytes and return its address."""
        if self._expandable:
            return self._grow(size, small=small)
        wanted = _SMALL_SEGMENT if small else _LARGE_SEGMENT if size < _OWN_SEGMENT else _rounded(size)
        self._end += wanted + _SEGMENT_ROUND
        return self._take(wanted, at=self._end - wanted, before=-1, small=small)

    def _grow(self, size: int, *, small: bool) -> int:
        """Extend the one segment of a pool: its last block, if free, becomes part of the new one."""
        pool = [(at, part) for at, part in self._parts.items() if part.small == small and part.after < 0]
        if not pool:
            return self._take(_rounded(size), at=0 if small else _APART, before=-1, small=small)
        at, last = pool[0]
        if not last.free:
            last.after = self._take(_rounded(size), at=at + last.size, before=at, small=small)
            return last.after
        free = self._free[small]
        free.pop(bisect_left(free, (last.size, at)))
        more = _rounded(size - last.size)
        self._reserve(more)
        last.size += more
        return at

    def _take(self, wanted: int, *, at: int, before: int, small: bool) -> int:
        self._reserve(wanted)
        self._parts[at] = _Part(wanted, before, -1, free=True, small=small)
        return at

    def _reserve(self, nbytes: int) -> None:
        if self.reserved + nbytes > self._capacity and not self._expandable:
            self.empty_cache()
        self.reserved += nbytes
        self.most_reserved = max(self.most_reserved, self.reserved)


def _rounded(size: int) -> int:
    return -(-size // _SEGMENT_ROUND) * _SEGMENT_ROUND
