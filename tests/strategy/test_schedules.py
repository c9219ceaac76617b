"""Schedules slot by slot: the orders that the papers draw, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from traincast import RequestError, SimulationError, StrategyError, UnknownNameError
from traincast.strategy import SCHEDULES, Slot
from traincast.strategy.schedules import (
    Order,
    Pass,
    PipelineSchedule,
    both_ways,
    check,
    load_schedule,
    loop,
    merge,
    vee,
)
from traincast.strategy.schedules.breadth_first import breadth_first
from traincast.strategy.schedules.dualpipe import dualpipe
from traincast.strategy.schedules.one_f_one_b import gpipe, interleaved, one_forward_one_backward
from traincast.strategy.schedules.phases import play, tapes
from traincast.strategy.schedules.zero_bubble import zb_h1, zb_h2, zb_v

F, B, I, W = Pass  # noqa: E741
EVERY = [gpipe, one_forward_one_backward, interleaved, breadth_first, zb_h1, zb_h2, zb_v, dualpipe]


def written(slots: list[Slot]) -> str:
    """F0 is microbatch 0 forward through the first chunk of the stage, f0 through its second; B, I and W likewise."""
    letters = [(s.what.name[0].lower() if s.chunk else s.what.name[0], s.microbatch) for s in slots]
    return " ".join(f"{letter}{microbatch}" for letter, microbatch in letters)


def turned_over(order: Order) -> Order:
    """The same order seen from the other end of the pipeline: stages, copies of the model and microbatches swap."""
    return [[Slot(s.what, s.microbatch ^ 1, 1 - s.chunk) for s in slots] for slots in reversed(order)]


def test_gpipe_runs_all_forwards_then_all_backwards() -> None:
    assert [written(s) for s in gpipe(2, 3)] == ["F0 F1 F2 B0 B1 B2"] * 2


def test_1f1b_warms_up_alternates_and_drains() -> None:
    """Narayanan et al. 2021, figure 4 (top), for four stages and five microbatches."""
    assert [written(s) for s in one_forward_one_backward(4, 5)] == [
        "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4",
        "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4",
        "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4",
        "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4",
    ]


def test_interleaving_takes_chunks_in_turn_for_groups_of_p_microbatches() -> None:
    """Narayanan et al. 2021, figure 4 (bottom)."""
    assert written(interleaved(2, 2, 2)[1]) == "F0 F1 f0 b0 f1 b1 B0 B1"
    assert written(interleaved(2, 4, 2)[0]) == "F0 F1 f0 f1 F2 b0 F3 b1 f2 B0 f3 B1 b2 b3 B2 B3"


def test_1f1b_with_virtual_stages_is_the_interleaved_schedule() -> None:
    assert one_forward_one_backward(2, 4, 2) == interleaved(2, 4, 2)
    assert interleaved(2, 4, 1) == one_forward_one_backward(2, 4)


def test_breadth_first_finishes_a_chunk_before_the_next() -> None:
    assert [written(s) for s in breadth_first(2, 3, 2)] == ["F0 F1 F2 f0 f1 f2 b0 b1 b2 B0 B1 B2"] * 2
    assert breadth_first(3, 5, 1) == gpipe(3, 5)


def test_zb_h1_puts_a_weight_pass_off_for_every_stage_before() -> None:
    assert [written(s) for s in zb_h1(3, 4)] == [
        "F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3",
        "F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3",
        "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3",
    ]


def test_zb_h2_runs_twice_the_forwards_ahead() -> None:
    assert [written(s) for s in zb_h2(2, 4)] == [
        "F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3",
        "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3",
    ]


def test_zb_v_goes_down_the_stages_and_up_again() -> None:
    assert [written(s) for s in zb_v(2, 4)] == [
        "F0 F1 F2 f0 i0 w0 f1 i1 w1 F3 I0 W0 f2 i2 w2 I1 W1 f3 i3 w3 I2 W2 I3 W3",
        "F0 f0 F1 f1 i0 w0 F2 I0 W0 f2 i1 w1 F3 I1 W1 f3 i2 w2 I2 i3 I3 W2 w3 W3",
    ]


@pytest.mark.parametrize("order", [zb_h1, zb_h2, zb_v])
def test_a_pipeline_that_is_not_full_keeps_the_order_of_the_full_one(order: Callable[[int, int], Order]) -> None:
    few = [[slot for slot in slots if slot.microbatch < 2] for slots in order(4, 7)]
    assert order(4, 2) == few


def test_dualpipe_pairs_forwards_of_one_way_with_backwards_of_the_other() -> None:
    """The eight steps of the published implementation, for four stages and eight microbatches."""
    order = dualpipe(4, 8)
    assert [written(s) for s in order[:2]] == [
        "F0 F2 F4 f1 i1 w1 f3 F6 b3 f5 B0 b5 f7 B2 b7 I4 W4 I6 W6",
        "F0 f1 F2 f3 F4 b1 f5 B0 F6 b3 f7 B2 b5 B4 i7 I6 w7 W6",
    ]


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (4, 8), (4, 10), (8, 20)])
def test_dualpipe_looks_the_same_from_both_ends(stages: int, microbatches: int) -> None:
    order = dualpipe(stages, microbatches)
    assert turned_over(order) == order


def test_each_move_of_a_phase_takes_the_next_microbatch_and_a_whole_backward_leaves_no_half() -> None:
    phases = [([(F, 0)], 3), ([(B, 0)], 1), ([(I, 0), (W, 0)], 1), ([(I, 0)], 1), ([(W, 0)], 1)]
    assert written(play(phases, tapes(3))) == "F0 F1 F2 B0 I1 W1 I2 W2"


def test_interleaving_needs_whole_groups_of_microbatches() -> None:
    with pytest.raises(StrategyError, match=r"num_microbatches=6 is not a multiple of pp=4; use 8 microbatches"):
        interleaved(4, 6, 2)


def test_dualpipe_needs_an_even_number_of_stages() -> None:
    with pytest.raises(StrategyError, match=r"dualpipe with pp=3: .* pp must be even; use pp=4 or schedule=zb-v"):
        dualpipe(3, 8)


@pytest.mark.parametrize(("microbatches", "better"), [(6, 8), (7, 8), (9, 10)])
def test_dualpipe_needs_an_even_number_of_microbatches_and_two_per_stage(microbatches: int, better: int) -> None:
    with pytest.raises(
        StrategyError, match=rf"num_microbatches={microbatches} over pp=4: .* use {better} microbatches"
    ):
        dualpipe(4, microbatches)
    assert len(dualpipe(4, better)) == 4


@pytest.mark.parametrize(("name", "order"), [("gpipe", gpipe), ("zb-h1", zb_h1), ("zb-h2", zb_h2)])
def test_orders_without_virtual_stages_refuse_them(name: str, order: Callable[[int, int, int], Order]) -> None:
    with pytest.raises(
        StrategyError, match=f"{name} with virtual_stages=2: it has no virtual stages; use virtual_stages=1"
    ):
        order(2, 2, 2)


@pytest.mark.parametrize(("name", "order"), [("zb-v", zb_v), ("dualpipe", dualpipe)])
def test_orders_with_two_chunks_of_their_own_take_no_other_number(
    name: str, order: Callable[[int, int, int], Order]
) -> None:
    assert order(2, 4, 2) == order(2, 4, 1)
    with pytest.raises(StrategyError, match=f"{name} with virtual_stages=3: every stage always holds 2 chunks"):
        order(2, 4, 3)


@pytest.mark.parametrize("order", EVERY)
@pytest.mark.parametrize("numbers", [(0, 4, 1), (2, 0, 1), (2, 4, 0)])
def test_numbers_below_one_are_refused(order: Callable[[int, int, int], Order], numbers: tuple[int, int, int]) -> None:
    with pytest.raises(StrategyError, match=r"pp=\d, num_microbatches=\d, virtual_stages=\d: each must be at least 1"):
        order(*numbers)


def test_routes_say_where_the_pieces_of_the_model_stand() -> None:
    assert loop(2, 2) == [[(0, 0), (1, 0), (0, 1), (1, 1)]]
    assert vee(2, 2) == [[(0, 0), (1, 0), (1, 1), (0, 1)]]
    assert both_ways(2, 2) == [[(0, 0), (1, 0)], [(1, 1), (0, 1)]]


def test_merging_puts_every_slot_after_what_it_needs() -> None:
    merged = merge(one_forward_one_backward(2, 2), loop(2, 1))
    assert [(stage, written([slot])) for stage, slot in merged] == [
        (0, "F0"),
        (0, "F1"),
        (1, "F0"),
        (1, "B0"),
        (1, "F1"),
        (1, "B1"),
        (0, "B0"),
        (0, "B1"),
    ]


@pytest.mark.parametrize(
    "slots",
    [
        [Slot(B, 0), Slot(F, 0)],
        [Slot(F, 0), Slot(W, 0), Slot(I, 0)],
        [Slot(F, 0, 1), Slot(F, 0, 0), Slot(B, 0, 1), Slot(B, 0, 0)],
        [Slot(F, 0, 0), Slot(F, 0, 1), Slot(B, 0, 0), Slot(B, 0, 1)],
    ],
    ids=["backward first", "weights first", "last chunk first", "first chunk backward first"],
)
def test_an_order_that_can_never_run_is_a_deadlock(slots: list[Slot]) -> None:
    with pytest.raises(SimulationError, match="deadlocks: 1 of 1 stages wait for slots that can never run: stage 0"):
        merge([slots], loop(1, 1 + max(s.chunk for s in slots)))


def test_a_deadlock_names_the_slots_that_stages_wait_for() -> None:
    crossed = [[Slot(F, 0), Slot(B, 0), Slot(F, 1), Slot(B, 1)], [Slot(F, 1), Slot(B, 1), Slot(F, 0), Slot(B, 0)]]
    check(crossed, loop(2, 1), 2)
    with pytest.raises(SimulationError) as refused:
        merge(crossed, loop(2, 1))
    assert str(refused.value) == (
        "the pipeline schedule deadlocks: 2 of 2 stages wait for slots that can never run: "
        "stage 0 for the backward pass of microbatch 0 through chunk 0; "
        "stage 1 for the forward pass of microbatch 1 through chunk 0; order every slot after those it needs"
    )


def test_a_slot_off_its_route_is_refused() -> None:
    with pytest.raises(SimulationError, match="the forward pass of microbatch 1 through chunk 0 on stage 0, which its"):
        merge([[Slot(F, 1, 0)]], both_ways(1, 2))


def test_an_order_that_leaves_out_a_piece_is_refused() -> None:
    order = one_forward_one_backward(2, 3)
    order[1] = [slot for slot in order[1] if slot.microbatch != 2]
    with pytest.raises(SimulationError, match="runs nothing of microbatch 2 through chunk 0 on stage 1; expected a"):
        check(order, loop(2, 1), 3)


@pytest.mark.parametrize(
    "passes", [[F], [B], [F, F, B], [F, B, B], [F, I], [F, W], [F, B, W], [F, B, I, W], [F, I, W, W]], ids=str
)
def test_an_order_that_leaves_out_or_doubles_a_pass_is_refused(passes: list[Pass]) -> None:
    order = [[Slot(F, 0), Slot(B, 0), *(Slot(what, 1) for what in passes)]]
    told = ", ".join(what.name.lower() for what in passes)
    with pytest.raises(SimulationError) as refused:
        check(order, loop(1, 1), 2)
    assert str(refused.value) == (
        f"the pipeline schedule runs {told} of microbatch 1 through chunk 0 on stage 0; "
        "expected a forward and a backward pass, or a forward, an input and a weight pass"
    )


def test_an_order_with_a_microbatch_too_many_is_refused() -> None:
    with pytest.raises(
        SimulationError, match="microbatch 2 through chunk 0 on stage 0; expected nothing, as its route"
    ):
        check(gpipe(1, 3), loop(1, 1), 2)


def test_an_order_of_another_number_of_stages_is_refused() -> None:
    with pytest.raises(SimulationError, match="orders 3 stages; expected pp=2"):
        check(gpipe(3, 4), loop(2, 1), 4)


def test_schedules_are_found_by_name() -> None:
    assert sorted(SCHEDULES) == ["1f1b", "breadth-first", "dualpipe", "gpipe", "interleaved", "zb-h1", "zb-h2", "zb-v"]
    assert load_schedule("gpipe").order is gpipe
    assert load_schedule("zb-v") == PipelineSchedule(order=zb_v, routes=vee, chunks=2, splits_backward=True)
    with pytest.raises(UnknownNameError, match="did you mean dualpipe"):
        load_schedule("dualpip")


FOLDED = PipelineSchedule(order=zb_v, routes=vee, chunks=2)


def test_a_schedule_of_ones_own_is_an_order_or_a_whole_schedule() -> None:
    assert load_schedule(f"{__name__}:zb_h1") == PipelineSchedule(order=zb_h1)
    assert load_schedule(f"{__name__}:FOLDED") is FOLDED
    with pytest.raises(RequestError, match="EVERY is not callable"):
        load_schedule(f"{__name__}:EVERY")
