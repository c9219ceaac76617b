"""Every schedule, one set of properties: complete, in order, never deadlocked, never beyond its memory."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import check_timeline, request_of, run
from traincast import Strategy
from traincast.strategy import SCHEDULES, Slot
from traincast.strategy.schedules import Order, Pass, Route, check, merge

pytestmark = pytest.mark.parametrize("name", sorted(SCHEDULES))
quick = settings(deadline=None, derandomize=True, max_examples=40)
stages = st.integers(1, 8)
counts = st.integers(1, 24)
virtuals = st.integers(1, 4)

DEEP = "gpt:layers=16,hidden=256,heads=8,vocab=1000,seq=128"
BACKWARD = (Pass.BACKWARD, Pass.INPUT)


@dataclass(frozen=True)
class Case:
    """An order, and the numbers it was asked for."""

    order: Order
    routes: list[Route]
    p: int
    m: int
    v: int


def case_of(name: str, p: int, m: int, v: int) -> Case:
    """A schedule with what it allows: virtual stages, groups of microbatches, even numbers."""
    schedule = SCHEDULES[name]
    v = v if schedule.interleaves else 1
    if name == "interleaved" and v > 1:
        m = -(-m // p) * p
    if name == "dualpipe":
        p += p % 2
        m = max(m + m % 2, 2 * p)
    return Case(schedule(p, m, v), schedule.routes(p, schedule.chunks or v), p, m, v)


@quick
@given(p=stages, m=counts, v=virtuals)
def test_every_piece_of_every_microbatch_runs_once_each_way(name: str, p: int, m: int, v: int) -> None:
    case = case_of(name, p, m, v)
    assert len(case.order) == case.p
    check(case.order, case.routes, case.m)
    pieces = sum(len(case.routes[i % len(case.routes)]) for i in range(case.m))
    slots = [slot for stage in case.order for slot in stage]
    assert sum(slot.what is Pass.FORWARD for slot in slots) == pieces
    assert sum(slot.what in BACKWARD for slot in slots) == pieces
    assert sum(slot.what is Pass.INPUT for slot in slots) == sum(slot.what is Pass.WEIGHT for slot in slots)


@quick
@given(p=stages, m=counts, v=virtuals)
def test_a_chunk_takes_each_pass_in_order_of_microbatch_and_forward_first(name: str, p: int, m: int, v: int) -> None:
    case = case_of(name, p, m, v)
    for slots in case.order:
        for chunk in {slot.chunk for slot in slots}:
            mine = [slot for slot in slots if slot.chunk == chunk]
            forward = {s.microbatch: n for n, s in enumerate(mine) if s.what is Pass.FORWARD}
            backward = {s.microbatch: n for n, s in enumerate(mine) if s.what in BACKWARD}
            weight = {s.microbatch: n for n, s in enumerate(mine) if s.what is Pass.WEIGHT}
            assert list(forward) == list(backward) == sorted(forward)
            assert list(weight) == sorted(weight)
            assert all(forward[i] < backward[i] for i in forward)
            assert all(backward[i] < weight[i] for i in weight)


@quick
@given(p=stages, m=counts, v=virtuals)
def test_merging_keeps_each_stage_in_order_and_never_deadlocks(name: str, p: int, m: int, v: int) -> None:
    case = case_of(name, p, m, v)
    merged = merge(case.order, case.routes)
    for stage in range(case.p):
        assert [slot for s, slot in merged if s == stage] == case.order[stage]
    position = {
        (s, Slot(Pass.BACKWARD if slot.what is Pass.INPUT else slot.what, *slot[1:])): n
        for n, (s, slot) in enumerate(merged)
    }
    for i in range(case.m):
        route = case.routes[i % len(case.routes)]
        forward = [position[stage, Slot(Pass.FORWARD, i, chunk)] for stage, chunk in route]
        backward = [position[stage, Slot(Pass.BACKWARD, i, chunk)] for stage, chunk in reversed(route)]
        assert forward + backward == sorted(forward + backward)
        for stage, chunk in route:
            weight = position.get((stage, Slot(Pass.WEIGHT, i, chunk)))
            assert weight is None or weight > position[stage, Slot(Pass.BACKWARD, i, chunk)]


@quick
@given(p=stages, m=counts, v=virtuals)
def test_the_chunks_in_flight_stay_within_the_published_bound(name: str, p: int, m: int, v: int) -> None:
    case = case_of(name, p, m, v)
    p, m, v = case.p, case.m, case.v
    for stage, slots in enumerate(case.order):
        alive = most = 0
        for slot in slots:
            alive += (slot.what is Pass.FORWARD) - (slot.what in (Pass.BACKWARD, Pass.WEIGHT))
            most = max(most, alive)
        bound = {
            "1f1b": p - stage,
            # Narayanan et al. 2021: warm-up of 2 (p−s−1) + (v−1) p slots, and one more in the steady state.
            "interleaved": 2 * (p - stage - 1) + (v - 1) * p + 1 if v > 1 else p - stage,
            "zb-h1": p,
            "zb-h2": 2 * p - 1,
            "zb-v": 2 * p,
            "dualpipe": p + 1,
        }.get(name, m * v)
        assert alive == 0
        assert 1 <= most <= bound


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8)])
def test_a_plan_of_every_schedule_runs(name: str, p: int, m: int) -> None:
    strategy = Strategy(pp=p, num_microbatches=m, schedule=name)
    lowered, timeline = run(request_of(strategy, model=DEEP, global_batch=m))
    check_timeline(timeline)
    assert len(lowered.memory) == p
    assert all(memory.activations > 0 for memory in lowered.memory)


def test_a_schedule_says_what_it_can_do(name: str) -> None:
    """A search relies on what a schedule declares: whether it splits backwards, and from when it is one of its own."""
    schedule = SCHEDULES[name]
    case = case_of(name, 4, 16, 2)
    assert any(slot.what is Pass.INPUT for stage in case.order for slot in stage) == schedule.splits_backward
    assert max(slot.chunk for stage in case.order for slot in stage) == (1 if schedule.chunks or case.v > 1 else 0)
    others = [other for other in SCHEDULES.values() if other.order is not schedule.order and not other.chunks]
    for few in range(1, schedule.differs_from):
        assert any(other.order(4, few, 1) == schedule.order(4, few, 1) for other in others)
    if schedule.differs_from > 1:
        alike = [other.order(4, schedule.differs_from, 1) for other in others if not other.interleaves]
        assert schedule.order(4, schedule.differs_from, 1) not in alike
