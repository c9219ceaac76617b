"""Pipeline schedules against their closed forms: bubbles, and microbatches in flight.

The first half runs the orders alone, in a few lines of max-plus algebra; the second half asks whole forecasts.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import GPT, ChosenSeconds, request_of, run
from traincast import Operator, Strategy
from traincast.forecast import forecast
from traincast.graph import OpKind, Phase
from traincast.strategy import SCHEDULES, Category, Slot, Stream
from traincast.strategy.schedules import Order, Pass, Route
from traincast.strategy.schedules.dualpipe import paired
from traincast.work import Work

exactly = settings(deadline=None, derandomize=True, max_examples=60)
whole_seconds = st.integers(1, 6)

DEEP = "gpt:layers=16,hidden=256,heads=8,vocab=1000,seq=128"
LAYERS = 16


@dataclass(frozen=True)
class Ran:
    """When each stage started its first slot and ended its last, and for how long it was busy."""

    start: list[float]
    end: list[float]
    busy: list[float]

    @property
    def step(self) -> float:
        return max(self.end)

    def bubble(self, stage: int = 0) -> float:
        """Idle seconds of a stage within the step."""
        return self.step - self.busy[stage]

    @property
    def waits(self) -> list[float]:
        """Idle seconds of each stage between its first and its last slot."""
        return [end - start - busy for start, end, busy in zip(self.start, self.end, self.busy, strict=True)]


def run_order(order: Order, routes: list[Route], *, f: float, i: float, w: float, pair: float | None = None) -> Ran:
    """Run slots in the order of each stage, each as soon as its stage is free and what it needs is there.

    A forward, input and weight pass take ``f``, ``i`` and ``w`` seconds, a whole backward ``i + w``. If ``pair`` is
    given, a forward and the whole backward right after it run as one, in so many seconds: they start once both can,
    and their results are there once both are done.
    """
    seconds = {Pass.FORWARD: f, Pass.BACKWARD: i + w, Pass.INPUT: i, Pass.WEIGHT: w}
    piece = [{at: n for n, at in enumerate(route)} for route in routes]
    done: dict[tuple[Pass, int, int], float] = {}
    queues = [blocks(slots, paired=pair is not None) for slots in order]
    start, end, busy = [-1.0] * len(order), [0.0] * len(order), [0.0] * len(order)

    def needs(stage: int, slot: Slot) -> list[tuple[Pass, int, int]]:
        m, way = slot.microbatch, slot.microbatch % len(routes)
        n = piece[way][stage, slot.chunk]
        if slot.what is Pass.FORWARD:
            return [(Pass.FORWARD, m, n - 1)] if n else []
        if slot.what is Pass.WEIGHT:
            return [(Pass.INPUT, m, n)]
        return [(Pass.FORWARD, m, n), *([(Pass.INPUT, m, n + 1)] if n + 1 < len(routes[way]) else [])]

    while any(queues):
        went = False
        for stage, queue in enumerate(queues):
            while queue and all(need in done for slot in queue[0] for need in needs(stage, slot)):
                block = queue.pop(0)
                ready = max([end[stage], *(done[need] for slot in block for need in needs(stage, slot))])
                took = pair if pair is not None and len(block) == 2 else sum(seconds[slot.what] for slot in block)
                start[stage] = ready if start[stage] < 0 else start[stage]
                end[stage], busy[stage], went = ready + took, busy[stage] + took, True
                for slot in block:
                    what = Pass.INPUT if slot.what is Pass.BACKWARD else slot.what
                    n = piece[slot.microbatch % len(routes)][stage, slot.chunk]
                    done[what, slot.microbatch, n] = end[stage]
        assert went, "deadlock"
    return Ran(start, end, busy)


def blocks(slots: list[Slot], *, paired: bool) -> list[list[Slot]]:
    """Slots one by one; if ``paired``, a forward together with the whole backward that follows it."""
    out: list[list[Slot]] = []
    for slot in slots:
        if paired and slot.what is Pass.BACKWARD and out and [s.what for s in out[-1]] == [Pass.FORWARD]:
            out[-1].append(slot)
        else:
            out.append([slot])
    return out


def ran(
    name: str, p: int, m: int, v: int = 1, *, f: float = 1, i: float = 1, w: float = 1, pair: float | None = None
) -> Ran:
    schedule = SCHEDULES[name]
    return run_order(schedule(p, m, v), schedule.routes(p, schedule.chunks or v), f=f, i=i, w=w, pair=pair)


def held(slots: list[Slot], *, until: Pass) -> int:
    """Most forwards of a stage at once whose backward, or the half ``until`` of it, has not run."""
    alive = most = 0
    for slot in slots:
        alive += (slot.what is Pass.FORWARD) - (slot.what in (Pass.BACKWARD, until))
        most = max(most, alive)
    assert alive == 0
    return most


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "breadth-first"])
@exactly
@given(p=st.integers(1, 9), m=st.integers(1, 20), f=whole_seconds, b=whole_seconds)
def test_orders_with_whole_backwards_wait_p_minus_1_of_m_plus_p_minus_1(
    name: str, p: int, m: int, f: int, b: int
) -> None:
    """Huang et al. 2019; Narayanan et al. 2021, section 2.2."""
    found = ran(name, p, m, f=f, i=b, w=0)
    assert found.step == (m + p - 1) * (f + b)
    assert [found.bubble(s) for s in range(p)] == [(p - 1) * (f + b)] * p


@exactly
@given(p=st.integers(1, 6), rounds=st.integers(1, 4), v=st.integers(1, 4), f=whole_seconds, b=whole_seconds)
def test_the_interleaved_order_waits_p_minus_1_passes_of_a_chunk(p: int, rounds: int, v: int, f: int, b: int) -> None:
    """Narayanan et al. 2021, section 2.2: a chunk is a v-th of a stage, so the bubble is a v-th of 1F1B's."""
    found = ran("interleaved", p, rounds * p, v, f=f, i=b, w=0)
    assert found.bubble() == (p - 1) * (f + b)
    assert found.step == (rounds * p * v + p - 1) * (f + b)


@exactly
@given(p=st.integers(1, 6), m=st.integers(1, 14), v=st.integers(1, 4), f=whole_seconds, b=whole_seconds)
def test_the_breadth_first_order_waits_p_minus_1_passes_of_a_chunk(p: int, m: int, v: int, f: int, b: int) -> None:
    """Lamy-Poirier 2022: (p−1)/(m·v+p−1) from m = p on; with fewer, each further chunk waits p−m passes more."""
    found = ran("breadth-first", p, m, v, f=f, i=b, w=0)
    assert found.bubble() == (p - 1 + (v - 1) * max(0, p - m)) * (f + b)
    assert found.busy == [m * v * (f + b)] * p


@exactly
@given(p=st.integers(1, 8), more=st.integers(0, 12), f=whole_seconds, i=whole_seconds, w=whole_seconds)
def test_zb_h1_waits_f_plus_i_minus_w_for_every_stage_but_one(p: int, more: int, f: int, i: int, w: int) -> None:
    """Qi et al. 2024, table 2, where W is the shortest pass; a longer W hides all but the longer of the other two."""
    found = ran("zb-h1", p, p + more, f=f, i=i, w=w)
    assert found.bubble() == (p - 1) * max(f, i, f + i - w)
    if w <= min(f, i):
        assert found.bubble() == (p - 1) * (f + i - w)


@exactly
@given(p=st.integers(1, 8), more=st.integers(0, 12), f=whole_seconds, i=whole_seconds, w=whole_seconds)
def test_zb_h2_waits_f_plus_i_minus_2w_within_a_stage(p: int, more: int, f: int, i: int, w: int) -> None:
    """Qi et al. 2024, table 2, which leaves out that stages start one after the other."""
    found = ran("zb-h2", p, 2 * p - 1 + more, f=f, i=i, w=w)
    assert max(found.waits) == (p - 1) * max(0, i - f, f + i - 2 * w)
    if w <= f and 2 * w <= f + i:
        assert max(found.waits) == (p - 1) * (f + i - 2 * w)
    if p > 1:
        assert (max(found.waits) == 0) == (i <= f and f + i <= 2 * w), "where the documents say that it reaches zero"


@pytest.mark.parametrize(("name", "chunks"), [("zb-h2", 1), ("zb-v", 2)])
@pytest.mark.parametrize("p", [1, 2, 3, 4, 7, 8])
@pytest.mark.parametrize("more", [0, 1, 5])
def test_no_stage_waits_at_equal_times_once_it_started(name: str, chunks: int, p: int, more: int) -> None:
    """Qi et al. 2024: only the ramp of p−1 forwards of a chunk remains of the step."""
    m = 2 * p - 1 + more
    found = ran(name, p, m)
    assert found.waits == [0] * p
    assert found.start == list(range(p))
    assert found.step == 3 * m * chunks + p - 1


@exactly
@given(p=st.integers(2, 8), more=st.integers(0, 12), f=whole_seconds, i=whole_seconds, w=whole_seconds)
def test_zb_v_waits_less_than_1f1b_at_any_times(p: int, more: int, f: int, i: int, w: int) -> None:
    m = 2 * p - 1 + more
    assert ran("zb-v", p, m, f=f, i=i, w=w).step < ran("1f1b", p, m, f=2 * f, i=2 * i, w=2 * w).step


@exactly
@given(
    half=st.integers(1, 5),
    more=st.integers(0, 6),
    times=st.lists(whole_seconds, min_size=3, max_size=3),
    hidden=st.integers(0, 3),
)
def test_dualpipe_waits_as_published_where_its_pairs_run_as_one(
    half: int, more: int, times: list[int], hidden: int
) -> None:
    """DeepSeek-V3 report, table 2: (p/2−1)(F&B+B−3W) in the middle stages, for W ≤ F ≤ I; others run more pairs."""
    w, f, i = sorted(times)
    pair = f + i + w - min(hidden, f)
    found = ran("dualpipe", 2 * half, 4 * half + 2 * more, f=f, i=i, w=w, pair=pair)
    published = (half - 1) * (pair + (i + w) - 3 * w)
    assert found.bubble(half - 1) == found.bubble(half) == published
    assert all(found.bubble(stage) <= published for stage in range(2 * half))


@exactly
@given(half=st.integers(1, 5), more=st.integers(0, 6), times=st.lists(whole_seconds, min_size=3, max_size=3))
def test_dualpipe_waits_no_longer_where_its_pairs_run_one_after_the_other(
    half: int, more: int, times: list[int]
) -> None:
    """The forward of a pair then sends its output before the backward; at equal times one pass per stage is left."""
    w, f, i = sorted(times)
    p, m = 2 * half, 4 * half + 2 * more
    assert ran("dualpipe", p, m, f=f, i=i, w=w).bubble() <= (half - 1) * (f + 2 * (i + w) - 3 * w)
    assert ran("dualpipe", p, m, f=f, i=f, w=f).bubble() == (half - 1) * f


@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("m", [1, 2, 3, 7, 8, 16, 21])
def test_the_activations_that_stages_hold(p: int, m: int) -> None:
    one = [held(slots, until=Pass.WEIGHT) for slots in SCHEDULES["1f1b"](p, m)]
    assert one == [min(m, p - s) for s in range(p)]
    assert [held(s, until=Pass.WEIGHT) for s in SCHEDULES["gpipe"](p, m)] == [m] * p
    assert [held(s, until=Pass.WEIGHT) for s in SCHEDULES["breadth-first"](p, m, 3)] == [3 * m] * p

    # Until its input pass a microbatch is held as in 1F1B; what a weight pass needs, as by 1F1B's first stage.
    assert [held(s, until=Pass.INPUT) for s in SCHEDULES["zb-h1"](p, m)] == one
    assert [held(s, until=Pass.WEIGHT) for s in SCHEDULES["zb-h1"](p, m)] == [min(m, p)] * p
    assert [held(s, until=Pass.INPUT) for s in SCHEDULES["zb-h2"](p, m)] == [min(m, 2 * (p - s) - 1) for s in range(p)]
    assert [held(s, until=Pass.WEIGHT) for s in SCHEDULES["zb-h2"](p, m)] == [min(m, 2 * p - 1)] * p

    # Two chunks make a stage, so 2p of them are p microbatches.
    folded = [held(s, until=Pass.WEIGHT) for s in SCHEDULES["zb-v"](p, m)]
    assert max(folded) <= 2 * p
    assert m < 2 * p - 1 or folded == [2 * p] * p


@pytest.mark.parametrize("p", [2, 4, 6, 10])
@pytest.mark.parametrize("more", [0, 2, 12])
def test_the_share_of_pairs_of_dualpipe_is_that_of_its_order(p: int, more: int) -> None:
    """A pair is a forward right before the whole backward of another microbatch."""
    m = 2 * p + more
    pairs = 0
    for slots in SCHEDULES["dualpipe"](p, m):
        pairs += sum(a.what is Pass.FORWARD and b.what is Pass.BACKWARD for a, b in pairwise(slots))
    share = pairs / (p * m)
    assert share == pytest.approx(1 - (1.25 * p - 0.5) / m)
    assert 0 <= share - paired(p, m) < 1 / 16 + 1e-12


@pytest.mark.parametrize("p", [2, 4, 6, 10])
@pytest.mark.parametrize("more", [0, 2, 12])
def test_dualpipe_holds_p_plus_1_microbatches(p: int, more: int) -> None:
    """DeepSeek-V3 report, table 2."""
    assert [held(slots, until=Pass.WEIGHT) for slots in SCHEDULES["dualpipe"](p, 2 * p + more)] == [p + 1] * p


def passes(forward: float, backward: float) -> ChosenSeconds:
    """A layer's forward and backward take these seconds (all of them in its one GELU), the rest nothing."""

    def rule(work: Work) -> float:
        if not isinstance(work, Operator) or work.kind is not OpKind.ACTIVATION:
            return 0.0
        return backward if work.phase is Phase.BACKWARD else forward

    return ChosenSeconds(rule)


def step_and_bubble(strategy: Strategy, forward: float, backward: float) -> tuple[float, float]:
    request = request_of(strategy, model=DEEP, global_batch=strategy.num_microbatches)
    report = forecast(request, cost_model=passes(forward, backward)).report
    assert report.exposed_communication_s == report.overhead_s == report.optimizer_s == 0.0
    return report.step_s, report.bubble_s


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("stages", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("microbatches", [1, 2, 3, 8, 17])
def test_the_bubble_is_p_minus_1_of_m_plus_p_minus_1(schedule: str, stages: int, microbatches: int) -> None:
    """Huang et al. 2019 (GPipe); Narayanan et al. 2021, section 2.2."""
    strategy = Strategy(pp=stages, num_microbatches=microbatches, schedule=schedule)
    step, bubble = step_and_bubble(strategy, 1.0, 1.0)
    assert step == (microbatches + stages - 1) * 2.0 * LAYERS / stages
    assert bubble / step == pytest.approx((stages - 1) / (microbatches + stages - 1), rel=1e-12)


@settings(deadline=None, derandomize=True, max_examples=15)
@given(
    stages=st.sampled_from([2, 4, 8]),
    microbatches=st.integers(1, 12),
    forward=st.floats(0.1, 10.0),
    backward=st.floats(0.1, 10.0),
    schedule=st.sampled_from(["gpipe", "1f1b"]),
)
def test_unequal_passes_wait_p_minus_1_of_both(
    stages: int, microbatches: int, forward: float, backward: float, schedule: str
) -> None:
    strategy = Strategy(pp=stages, num_microbatches=microbatches, schedule=schedule)
    step, bubble = step_and_bubble(strategy, forward, backward)
    both = (forward + backward) * LAYERS / stages
    assert step == pytest.approx((microbatches + stages - 1) * both, rel=1e-12)
    assert bubble == pytest.approx((stages - 1) * both, rel=1e-9)


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("virtual", [2, 4])
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_interleaving_divides_the_bubble_by_the_virtual_stages(stages: int, virtual: int, rounds: int) -> None:
    """Narayanan et al. 2021, section 2.2: the bubble's time shrinks by v."""
    microbatches = rounds * stages
    plain = Strategy(pp=stages, num_microbatches=microbatches)
    cut = Strategy(pp=stages, num_microbatches=microbatches, virtual_stages=virtual, schedule="interleaved")
    _, whole = step_and_bubble(plain, 1.0, 2.0)
    step, bubble = step_and_bubble(cut, 1.0, 2.0)
    assert whole == pytest.approx((stages - 1) * 3.0 * LAYERS / stages, rel=1e-12)
    assert bubble == pytest.approx(whole / virtual, rel=1e-9)
    assert step == pytest.approx(microbatches * 3.0 * LAYERS / stages + whole / virtual, rel=1e-12)


def in_flight(strategy: Strategy) -> list[int]:
    """Most microbatches of each stage between the end of their forward and the end of their backward."""
    request = request_of(strategy, model=DEEP, global_batch=strategy.num_microbatches)
    _, timeline = run(request, model=passes(1.0, 1.0), grain="operator")
    plan, spans = timeline.plan, timeline.spans()
    most = []
    for row in range(strategy.pp):
        lane = spans.on(row, Stream.COMPUTE)
        category, microbatch = plan.category[lane.task], plan.microbatch[lane.task]
        changes: list[tuple[float, int]] = []
        for m in range(strategy.num_microbatches):
            forward = lane.start[(category == Category.FORWARD) & (microbatch == m)]
            backward = lane.end[(category == Category.BACKWARD) & (microbatch == m)]
            changes += [(float(forward.min()), 1), (float(backward.max()), -1)]
        most.append(int(np.cumsum([change for _, change in sorted(changes)]).max()))
    return most


@pytest.mark.parametrize("microbatches", [1, 3, 4, 9])
def test_1f1b_keeps_p_minus_s_microbatches_in_flight_on_stage_s_and_gpipe_all(microbatches: int) -> None:
    stages = 4
    one = Strategy(pp=stages, num_microbatches=microbatches, schedule="1f1b")
    assert in_flight(one) == [min(microbatches, stages - s) for s in range(stages)]
    pipe = Strategy(pp=stages, num_microbatches=microbatches, schedule="gpipe")
    assert in_flight(pipe) == [microbatches] * stages


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
def test_a_microbatch_goes_forward_before_it_goes_backward_on_every_stage(schedule: str) -> None:
    virtual = 2 if schedule in ("interleaved", "breadth-first") else 1
    strategy = Strategy(pp=2, num_microbatches=4, virtual_stages=virtual, schedule=schedule)
    _, timeline = run(request_of(strategy, model=GPT, global_batch=8))
    plan = timeline.plan
    pieces = len(SCHEDULES[schedule].routes(2, virtual)[0])
    for m in range(4):
        forward = (plan.category == Category.FORWARD) & (plan.microbatch == m)
        backward = (plan.category == Category.BACKWARD) & (plan.microbatch == m)
        assert forward.sum() == pieces
        assert pieces <= backward.sum() <= 2 * pieces
        # The whole of a microbatch's forward, through all stages, precedes the first of its backward.
        assert timeline.end[forward].max() <= timeline.start[backward].min()


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
@pytest.mark.parametrize("stages", [2, 4])
def test_every_schedule_computes_the_same_and_waits_no_more_than_gpipe(schedule: str, stages: int) -> None:
    strategy = Strategy(pp=stages, num_microbatches=8, schedule=schedule)
    step, bubble = step_and_bubble(strategy, 1.0, 2.0)
    assert step - bubble == pytest.approx(8 * 3.0 * LAYERS / stages, rel=1e-9)
    assert bubble <= (stages - 1) * 3.0 * LAYERS / stages * (1 + 1e-9)


@pytest.mark.parametrize("virtual", [1, 2, 4])
@pytest.mark.parametrize("microbatches", [4, 5, 9])
def test_breadth_first_divides_the_bubble_by_the_virtual_stages(virtual: int, microbatches: int) -> None:
    """Lamy-Poirier 2022; microbatches need not come in groups of p."""
    strategy = Strategy(pp=4, num_microbatches=microbatches, virtual_stages=virtual, schedule="breadth-first")
    step, bubble = step_and_bubble(strategy, 1.0, 2.0)
    assert bubble / step == pytest.approx(3 / (microbatches * virtual + 3), rel=1e-9)


def test_one_stage_alone_alternates_without_any_bubble() -> None:
    step, bubble = step_and_bubble(Strategy(num_microbatches=5), 1.0, 2.0)
    assert (step, bubble) == (5 * 3.0 * LAYERS, 0.0)
