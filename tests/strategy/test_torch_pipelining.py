"""Orders of slots against those of ``torch.distributed.pipelining``, which runs them.

PyTorch's schedules are built with stand-ins for their stages, so that no process group is needed. Where an order
differs, the two follow different published algorithms; the difference is what is asserted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from traincast import StrategyError
from traincast.strategy import SCHEDULES, Slot
from traincast.strategy.schedules import Order, Pass

pipelining = pytest.importorskip("torch.distributed.pipelining.schedules")

PASSES = {
    "FORWARD": Pass.FORWARD,
    "FULL_BACKWARD": Pass.BACKWARD,
    "BACKWARD_INPUT": Pass.INPUT,
    "BACKWARD_WEIGHT": Pass.WEIGHT,
}


def torch_order(kind: str, stages: int, microbatches: int, virtual: int = 1) -> Order:
    """Slots of every rank in PyTorch's schedule ``kind``; its steps without work are left out."""
    total = stages * virtual
    stand_ins = [
        SimpleNamespace(num_stages=total, group_size=stages, group_rank=0, submod=None, is_last=False, stage_index=n)
        for n in range(virtual)
    ]
    made = getattr(pipelining, kind)(stand_ins, microbatches)
    return [list(_slots(made.pipeline_order[rank], rank, stages)) for rank in range(stages)]


def _slots(actions: list[Any], rank: int, stages: int) -> Iterator[Slot]:
    for action in actions:
        for part in (action.sub_actions or (action,)) if action is not None else ():
            # Stages of a rank are numbered along the model, so the place of one on its rank is its round.
            yield Slot(PASSES[part.computation_type.name], part.microbatch_index, part.stage_index // stages)


@dataclass
class RecordingStage:
    """A stage that writes down which passes a schedule asks it for."""

    stage_index: int
    num_stages: int
    slots: list[Slot] = field(default_factory=list)
    is_last: bool = False
    has_backward: bool = True

    def forward_one_chunk(self, microbatch: int, *_: Any, **__: Any) -> None:
        self.slots.append(Slot(Pass.FORWARD, microbatch))

    def backward_one_chunk(self, microbatch: int, **_: Any) -> None:
        self.slots.append(Slot(Pass.BACKWARD, microbatch))

    def no_messages(self, _: int) -> list[Any]:
        return []

    get_fwd_recv_ops = get_fwd_send_ops = get_bwd_recv_ops = get_bwd_send_ops = no_messages

    def perform_reduce_grad(self, _: int) -> None:
        pass


@contextmanager
def _without_setup(kind: type) -> Iterator[None]:
    """Shapes of messages are not asked for, and no losses are added up."""
    with patch.object(kind, "_initialize_stage"), patch.object(kind, "_update_losses"):
        yield


def torch_run(kind: str, stages: int, microbatches: int) -> Order:
    """Slots of every stage as PyTorch's schedule ``kind`` runs them.

    Schedules of one stage per rank also list an order, but 1F1B's list begins at microbatch 1 on the last stage.
    """
    made = getattr(pipelining, kind)
    order = []
    with _without_setup(made):
        for number in range(stages):
            stage = RecordingStage(number, stages)
            made(stage, microbatches)._step_microbatches()
            order.append(stage.slots)
    return order


SIZES = [(p, m) for p in (1, 2, 3, 4, 7, 8) for m in (1, 2, 3, 4, 6, 8, 12, 15, 16, 24)]


@pytest.mark.parametrize(("stages", "microbatches"), SIZES)
def test_gpipe_and_1f1b_run_as_in_pytorch(stages: int, microbatches: int) -> None:
    assert SCHEDULES["gpipe"](stages, microbatches) == torch_run("ScheduleGPipe", stages, microbatches)
    if microbatches >= stages:  # PyTorch refuses fewer
        assert SCHEDULES["1f1b"](stages, microbatches) == torch_run("Schedule1F1B", stages, microbatches)


@pytest.mark.parametrize("virtual", [2, 3, 4])
@pytest.mark.parametrize(("stages", "rounds"), [(p, r) for p in (2, 3, 4, 8) for r in (1, 2, 3, 5)])
def test_the_interleaved_order_is_that_of_pytorch(stages: int, rounds: int, virtual: int) -> None:
    ours = SCHEDULES["interleaved"](stages, stages * rounds, virtual)
    assert ours == torch_order("ScheduleInterleaved1F1B", stages, stages * rounds, virtual)


def test_pytorch_interleaves_rounds_of_more_microbatches_than_stages_which_we_refuse() -> None:
    """Narayanan et al. 2021 need whole rounds of p microbatches, as Megatron-LM does; PyTorch stretches its rounds."""
    assert torch_order("ScheduleInterleaved1F1B", 4, 10, 2)
    with pytest.raises(StrategyError, match="multiple of pp=4; use 12 microbatches"):
        SCHEDULES["interleaved"](4, 10, 2)


@pytest.mark.parametrize("virtual", [1, 2, 3])
@pytest.mark.parametrize(("stages", "microbatches"), SIZES)
def test_breadth_first_differs_from_pytorch_in_the_order_of_backward_microbatches_alone(
    stages: int, microbatches: int, virtual: int
) -> None:
    """Lamy-Poirier 2022 runs microbatches backward in the order in which they came; PyTorch in reverse."""
    for ours, theirs in zip(
        SCHEDULES["breadth-first"](stages, microbatches, virtual),
        torch_order("ScheduleLoopedBFS", stages, microbatches, virtual),
        strict=True,
    ):
        forwards = microbatches * virtual
        assert theirs[:forwards] == ours[:forwards]
        mirrored = [slot._replace(microbatch=microbatches - 1 - slot.microbatch) for slot in ours[forwards:]]
        assert theirs[forwards:] == mirrored


@pytest.mark.parametrize(("stages", "microbatches"), [(p, m) for p, m in SIZES if m >= p and m % (m // p) == 0])
def test_zb_h1_is_the_zero_bubble_order_of_pytorch_with_one_stage_per_rank(stages: int, microbatches: int) -> None:
    ours = SCHEDULES["zb-h1"](stages, microbatches)
    assert ours == torch_order("ScheduleInterleavedZeroBubble", stages, microbatches)


@pytest.mark.parametrize(("stages", "microbatches"), SIZES)
def test_zb_v_is_that_of_pytorch(stages: int, microbatches: int) -> None:
    assert SCHEDULES["zb-v"](stages, microbatches, 2) == torch_order("ScheduleZBVZeroBubble", stages, microbatches, 2)


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("more", [0, 1, 2, 5])
def test_half_of_dualpipe_is_the_dualpipev_of_pytorch(stages: int, more: int) -> None:
    """DualPipeV is DualPipe cut in the middle and folded (DeepSeek, 2025).

    The first half of DualPipe's 2p stages runs what the p ranks of DualPipeV run: what arrives from the far end in
    DualPipe comes back from the middle in DualPipeV, so the n-th microbatch of either way is microbatch n.
    """
    microbatches = 2 * stages + more
    ours = SCHEDULES["dualpipe"](2 * stages, 2 * microbatches, 2)[:stages]
    folded = [[slot._replace(microbatch=slot.microbatch // 2) for slot in slots] for slots in ours]
    assert folded == torch_order("ScheduleDualPipeV", stages, microbatches, 2)
