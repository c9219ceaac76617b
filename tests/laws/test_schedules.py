"""Pipeline schedules against their closed forms: bubbles, and microbatches in flight."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import GPT, ChosenSeconds, request_of, run
from traincast.forecast import forecast
from traincast.graph import Operator, OpKind, Phase
from traincast.strategy import SCHEDULES, Category, Strategy, Stream
from traincast.work import Work

DEEP = "gpt:layers=16,hidden=256,heads=8,vocab=1000,seq=128"
LAYERS = 16


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
    virtual = 2 if schedule == "interleaved" else 1
    strategy = Strategy(pp=2, num_microbatches=4, virtual_stages=virtual, schedule=schedule)
    _, timeline = run(request_of(strategy, model=GPT, global_batch=8))
    plan = timeline.plan
    for m in range(4):
        forward = (plan.category == Category.FORWARD) & (plan.microbatch == m)
        backward = (plan.category == Category.BACKWARD) & (plan.microbatch == m)
        assert forward.sum() == backward.sum() == 2 * virtual
        # The whole of a microbatch's forward, through all stages, precedes the first of its backward.
        assert timeline.end[forward].max() <= timeline.start[backward].min()


def test_one_stage_alone_alternates_without_any_bubble() -> None:
    step, bubble = step_and_bubble(Strategy(num_microbatches=5), 1.0, 2.0)
    assert (step, bubble) == (5 * 3.0 * LAYERS, 0.0)
