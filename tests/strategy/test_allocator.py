"""The caching allocator follows PyTorch's rules for rounding, splitting, joining and returning memory."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast.strategy.memory.allocator import CachingAllocator

MIB = 2**20


@pytest.mark.parametrize(
    ("asked", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (9 * MIB, 9 * MIB, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (33 * MIB, 34 * MIB, 34 * MIB),
        (32 * MIB + 512, 32 * MIB + 512, 34 * MIB),
    ],
)
def test_one_request_reserves_a_segment_of_its_class(asked: int, allocated: int, reserved: int) -> None:
    allocator = CachingAllocator()
    allocator.allocate(asked)
    assert (allocator.allocated, allocator.reserved) == (allocated, reserved)


def test_a_request_takes_the_smallest_free_block_that_is_large_enough() -> None:
    allocator = CachingAllocator()
    large, middle = allocator.allocate(100 * MIB), allocator.allocate(60 * MIB)
    allocator.release(large)
    allocator.release(middle)
    assert allocator.allocate(50 * MIB) == middle
    assert allocator.reserved == 160 * MIB


def test_a_block_is_split_if_more_than_a_mebibyte_is_left() -> None:
    allocator = CachingAllocator()
    allocator.release(allocator.allocate(64 * MIB))
    first, second = allocator.allocate(32 * MIB), allocator.allocate(32 * MIB)
    assert (second - first, allocator.reserved) == (32 * MIB, 64 * MIB)
    allocator.release(second)
    allocator.allocate(31 * MIB)
    assert allocator.allocated == 64 * MIB


def test_free_neighbours_are_joined_but_segments_are_not() -> None:
    allocator = CachingAllocator()
    allocator.release(allocator.allocate(64 * MIB))
    parts = [allocator.allocate(16 * MIB) for _ in range(4)]
    for at in (parts[1], parts[3], parts[2], parts[0]):
        allocator.release(at)
    assert allocator.allocate(64 * MIB) == parts[0]
    assert allocator.reserved == 64 * MIB
    other = allocator.allocate(64 * MIB)
    allocator.release(parts[0])
    allocator.release(other)
    allocator.allocate(128 * MIB)
    assert allocator.reserved == 256 * MIB


def test_each_longest_batch_so_far_takes_new_memory_and_the_old_blocks_stay() -> None:
    allocator = CachingAllocator()
    for size in (100, 60, 110, 90, 120):
        allocator.release(allocator.allocate(size * MIB))
    assert (allocator.most_allocated, allocator.reserved) == (120 * MIB, 330 * MIB)


def test_expandable_segments_reserve_what_the_longest_batch_needs() -> None:
    allocator = CachingAllocator(expandable=True)
    for size in (100, 60, 110, 90, 120):
        allocator.release(allocator.allocate(size * MIB))
    assert allocator.reserved == 120 * MIB
    first = allocator.allocate(50 * MIB)
    second = allocator.allocate(80 * MIB)
    assert (second - first, allocator.reserved) == (50 * MIB, 130 * MIB)


def test_whole_free_segments_return_if_a_request_would_not_fit() -> None:
    allocator = CachingAllocator(capacity=200 * MIB)
    allocator.release(allocator.allocate(100 * MIB))
    allocator.release(allocator.allocate(120 * MIB))
    assert (allocator.reserved, allocator.most_reserved) == (120 * MIB, 120 * MIB)
    allocator.empty_cache()
    assert allocator.reserved == 0


def test_a_segment_in_use_does_not_return() -> None:
    allocator = CachingAllocator()
    allocator.release(allocator.allocate(100 * MIB))
    allocator.allocate(10 * MIB)
    allocator.empty_cache()
    assert allocator.reserved == 100 * MIB


@given(st.lists(st.tuples(st.integers(1, 64 * MIB), st.booleans()), max_size=60), st.booleans())
def test_counters_hold_for_any_sequence(requests: list[tuple[int, bool]], expandable: bool) -> None:
    allocator = CachingAllocator(expandable=expandable)
    alive: list[tuple[int, int]] = []
    for size, frees in requests:
        alive.append((allocator.allocate(size), size))
        assert sum(n for _, n in alive) <= allocator.allocated <= allocator.reserved
        ends = sorted((at, at + n) for at, n in alive)
        assert all(end <= start for (_, end), (start, _) in pairwise(ends))
        if frees:
            allocator.release(alive.pop(len(alive) // 2)[0])
    for at, _ in alive:
        allocator.release(at)
    assert allocator.allocated == 0
    allocator.empty_cache()
    assert allocator.reserved == 0
