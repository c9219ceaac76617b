"""Every schedule, one set of properties: complete, in order, never deadlocked, never beyond its memory."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast.strategy import SCHEDULES, Slot
from traincast.strategy.schedules import merge

pytestmark = pytest.mark.parametrize("name", sorted(SCHEDULES))
quick = settings(deadline=None, derandomize=True, max_examples=40)
stages = st.integers(1, 8)
rounds = st.integers(1, 4)
virtuals = st.integers(1, 4)


def order_of(name: str, p: int, r: int, v: int) -> tuple[list[list[Slot]], int, int]:
    """A schedule with what it allows: chunks and whole groups only where it interleaves."""
    v = v if name == "interleaved" and p > 1 else 1
    m = r * p if v > 1 else r * p + 1
    return SCHEDULES[name](p, m, v), m, v


@quick
@given(p=stages, r=rounds, v=virtuals)
def test_every_stage_runs_every_microbatch_of_every_chunk_once_each_way(name: str, p: int, r: int, v: int) -> None:
    order, m, v = order_of(name, p, r, v)
    wanted = sorted(Slot(b, i, c) for b in (False, True) for i in range(m) for c in range(v))
    assert len(order) == p
    assert all(sorted(slots) == wanted for slots in order)


@quick
@given(p=stages, r=rounds, v=virtuals)
def test_forward_comes_before_backward_and_backwards_in_order_of_microbatch(name: str, p: int, r: int, v: int) -> None:
    order, m, v = order_of(name, p, r, v)
    for slots in order:
        position = {slot: n for n, slot in enumerate(slots)}
        for chunk in range(v):
            for i in range(m):
                assert position[Slot(False, i, chunk)] < position[Slot(True, i, chunk)]
            backwards = [position[Slot(True, i, chunk)] for i in range(m)]
            assert backwards == sorted(backwards)


@quick
@given(p=stages, r=rounds, v=virtuals)
def test_merging_keeps_each_stage_in_order_and_never_deadlocks(name: str, p: int, r: int, v: int) -> None:
    order, m, v = order_of(name, p, r, v)
    merged = merge(order, v)
    assert len(merged) == 2 * p * m * v
    for stage in range(p):
        assert [slot for s, slot in merged if s == stage] == order[stage]
    position = {(s, slot): n for n, (s, slot) in enumerate(merged)}
    for (s, slot), n in position.items():
        chunk = slot.chunk * p + s + (1 if slot.backward else -1)
        if 0 <= chunk < p * v:
            assert position[chunk % p, Slot(slot.backward, slot.microbatch, chunk // p)] < n


@quick
@given(p=stages, r=rounds, v=virtuals)
def test_the_chunks_in_flight_stay_within_the_published_bound(name: str, p: int, r: int, v: int) -> None:
    order, m, v = order_of(name, p, r, v)
    for stage, slots in enumerate(order):
        alive = most = 0
        for slot in slots:
            alive += -1 if slot.backward else 1
            most = max(most, alive)
        bound = {
            "gpipe": m,
            "1f1b": min(m, p - stage),
            # Narayanan et al. 2021: warm-up of 2 (p−s−1) + (v−1) p slots, and one more in the steady state.
            "interleaved": min(m * v, 2 * (p - stage - 1) + (v - 1) * p + 1) if v > 1 else min(m, p - stage),
        }.get(name, m * v)
        assert alive == 0
        assert 1 <= most <= bound
