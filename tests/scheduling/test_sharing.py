"""Jobs that run together: closed forms of square waves, and steps whose messages are hidden or not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import CNN, GPT, AnalyticalCostModel, graph_of
from tests.scheduling.waves import square_wave
from traincast import RequestError, predict
from traincast.scheduling.sharing.programs import node_program
from traincast.scheduling.sharing.together import StepProgram, slowdowns, together


def overlapped(compute_s: float, message_s: float) -> StepProgram:
    """A step whose message runs beside the second half of its computation."""
    return StepProgram(
        duration=np.array([compute_s / 2, compute_s / 2, message_s]),
        lane=np.array([0, 0, 1]),
        after=((), (0,), (0,)),
        weights={"send": np.array([0.0, 0.0, 1.0])},
    )


def test_programs_that_always_fill_a_link_take_as_many_times_as_long_as_there_are() -> None:
    full = square_wave(busy_s=1.0, idle_s=0.0)
    for count in (2, 3, 4):
        assert slowdowns([full] * count) == pytest.approx([float(count)] * count)


def test_complementary_square_waves_do_not_slow_each_other() -> None:
    half = square_wave(busy_s=1.0, idle_s=1.0)
    assert together([half, half], phases=[0.0, 0.5]) == pytest.approx([1.0, 1.0])
    late = square_wave(busy_s=1.0, idle_s=3.0)
    assert together([late] * 4, phases=[0.0, 0.25, 0.5, 0.75]) == pytest.approx([1.0] * 4)


@pytest.mark.parametrize(("phase", "slowdown"), [(0.0, 1.5), (0.125, 1.375), (0.25, 1.25), (0.375, 1.125)])
def test_square_waves_that_overlap_lose_what_overlaps(phase: float, slowdown: float) -> None:
    """Two waves of one second on, one second off, apart by a share of their period."""
    half = square_wave(busy_s=1.0, idle_s=1.0)
    assert together([half, half], phases=[0.0, phase]) == pytest.approx([slowdown] * 2)


def test_the_mean_over_phases_is_that_of_all_overlaps() -> None:
    half = square_wave(busy_s=1.0, idle_s=1.0)
    assert slowdowns([half, half]) == pytest.approx([1.25, 1.25])


def test_a_program_that_uses_less_than_its_fair_part_is_not_slowed() -> None:
    small, full = square_wave(busy_s=1.0, idle_s=0.0, weight=0.25), square_wave(busy_s=1.0, idle_s=0.0)
    assert slowdowns([small, full]) == pytest.approx([1.0, 4.0 / 3.0])


def test_programs_that_fit_side_by_side_or_use_other_resources_are_not_slowed() -> None:
    some = square_wave(busy_s=1.0, idle_s=1.0, weight=0.5)
    assert slowdowns([some, some]) == (1.0, 1.0)
    assert slowdowns([square_wave(busy_s=1.0, idle_s=0.0), square_wave(busy_s=1.0, idle_s=0.0, resource="device")]) == (
        1.0,
        1.0,
    )
    assert slowdowns([some]) == (1.0,)
    assert slowdowns([]) == ()


def test_a_message_hidden_behind_computation_may_take_longer_for_nothing() -> None:
    hidden, bare = overlapped(2.0, 0.4), overlapped(2.0, 1.0)
    assert together([hidden, hidden], phases=[0.0, 0.0]) == pytest.approx([1.0, 1.0])  # 0.8 s of the 1 s that hide it
    assert together([bare, bare], phases=[0.0, 0.0]) == pytest.approx([1.5, 1.5])


def test_a_fast_program_beside_a_slow_one_is_met_all_the_time() -> None:
    slow, fast = square_wave(busy_s=100.0, idle_s=100.0), square_wave(busy_s=1e-4, idle_s=3e-4)
    assert slowdowns([slow, fast]) == pytest.approx([1.125, 1.125], rel=0.02)


@settings(max_examples=30, deadline=None)
@given(st.floats(0.05, 0.95), st.floats(0.05, 0.95), st.floats(0.2, 5.0))
def test_nobody_is_faster_than_alone_nor_slower_than_in_turn(first: float, second: float, length: float) -> None:
    one = square_wave(busy_s=first, idle_s=1.0 - first)
    other = square_wave(busy_s=second * length, idle_s=(1.0 - second) * length)
    for slowdown, share in zip(slowdowns([one, other]), (first, second), strict=True):
        assert 1.0 <= slowdown <= 1.0 + share + 1e-6


def test_unknown_resources_are_refused() -> None:
    with pytest.raises(RequestError, match="disk"):
        square_wave(busy_s=1.0, idle_s=1.0, resource="disk")


@pytest.mark.parametrize(
    ("model", "cluster", "strategy"),
    [
        (GPT, "dgx-a100:1", "dp=8"),
        (GPT, "p3.16xlarge:2", "dp=16"),
        (CNN, "p3.16xlarge:2", "dp=16"),
        (GPT, "p3.16xlarge:2", "dp=16,zero=3"),
        (GPT, "p3.16xlarge:2", "dp=4,tp=2,pp=2,num_microbatches=4"),
        (CNN, "p3.16xlarge:2", "dp=16,servers=2"),
    ],
)
def test_the_program_of_a_forecast_takes_its_step_and_moves_its_bytes(model: str, cluster: str, strategy: str) -> None:
    made = predict(
        graph_of(model), cluster=cluster, strategy=strategy, global_batch=64, cost_model=AnalyticalCostModel()
    )
    program = node_program(made)
    slack = 0.1 if "servers" in strategy else 1e-6  # messages of one worker then stand for those of all
    assert program.step_s == pytest.approx(made.report.step_s, rel=slack)
    assert ("send" in program.weights) == (":2" in cluster)
    for weight in program.weights.values():
        assert ((weight >= 0.0) & (weight <= 1.0)).all()
    twice = slowdowns([program.only("send", "receive")] * 2)
    assert all(1.0 <= slowdown <= 2.0 + 1e-6 for slowdown in twice)
    on_device = slowdowns([program.only("device")] * 2)
    assert all(1.0 <= slowdown <= 2.0 + 1e-6 for slowdown in on_device)


@pytest.mark.parametrize("demand", [0.5, 1.0, 3.0])
def test_weights_on_an_uplink_are_those_on_the_nics_times_the_demand(demand: float) -> None:
    program = square_wave(busy_s=1.0, idle_s=1.0, weight=0.6).below_switches(demand)
    assert program.most("switch_send") == pytest.approx(min(1.0, 0.6 * demand))
    assert program.most("switch_receive") == 0.0
    assert program.step_s == 2.0


def test_two_equal_jobs_through_one_uplink_take_twice_the_communication() -> None:
    """Both send for 1 s of 3 s; if they begin together, a step has 2 s of communication, and 4 s in all."""
    program = square_wave(busy_s=1.0, idle_s=2.0).below_switches(1.0).only("switch_send")
    assert together([program] * 2, phases=[0.0, 0.0]) == pytest.approx([4.0 / 3.0] * 2)
    assert together([program] * 2, phases=[0.0, 0.5]) == pytest.approx([1.0] * 2)  # phases that never overlap


@settings(max_examples=30, deadline=None)
@given(st.floats(0.05, 1.0), st.floats(0.05, 1.0), st.floats(0.1, 2.0))
def test_a_larger_uplink_slows_nobody_more(weight: float, busy_s: float, idle_s: float) -> None:
    program = square_wave(busy_s=busy_s, idle_s=idle_s, weight=weight)
    found = [
        together([program.below_switches(demand).only("switch_send")] * 2, phases=[0.0, 0.0])[0]
        for demand in (1.0, 0.7, 0.3)
    ]
    assert found[0] >= found[1] - 1e-9 >= found[2] - 2e-9 >= 1.0 - 3e-9
