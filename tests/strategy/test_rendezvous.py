"""Where stages post messages and wait for them, against ``torch.distributed.pipelining``, which does so over gloo."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pytest

from traincast.strategy import SCHEDULES
from traincast.strategy.exchange.rendezvous import Post, Run, moves_of, timetable
from traincast.strategy.schedules import Pass
from traincast.strategy.schedules.skeleton import skeleton

SIZES = [(p, m) for p in (2, 3, 4) for m in (4, 6, 8)]


class Told(NamedTuple):
    """One move, in words that both sides have: ``run``, ``post`` or ``wait``; what; piece of the model; microbatch."""

    verb: str
    what: str
    piece: int
    microbatch: int


def ours(name: str, stages: int, microbatches: int, chunks: int = 1) -> list[list[Told]]:
    """The moves of every stage; messages are named after the piece that the stage itself runs."""
    slots = skeleton(name, stages, microbatches, chunks)

    def told(verb: str, slot: int, stage: int) -> Told:
        sends = int(slots.stage[slot]) == stage
        forward = slots.what[slot] == Pass.FORWARD
        piece = int(slots.piece[slot]) + (0 if sends else 1 if forward else -1)
        way = "" if verb == "run" else "send " if sends else "receive "
        return Told(verb, way + ("forward" if forward else "backward"), piece, int(slots.microbatch[slot]))

    found = []
    for stage, moves in enumerate(moves_of(slots, name)):
        own: list[Told] = []
        for move in moves:
            if isinstance(move, Run):
                own.append(told("run", move.slot, stage))
            elif isinstance(move, Post):
                own.append(told("post", move.slot, stage))
            else:
                own += [told("wait", slot, stage) for slot in move.slots]
        found.append(own)
    return found


@dataclass
class Recorder:
    """A stage of PyTorch's that writes down every pass and every message instead of running it."""

    stage_index: int
    num_stages: int
    told: list[Told] = field(default_factory=list)
    has_backward: bool = True

    @property
    def is_last(self) -> bool:
        return False

    def forward_one_chunk(self, microbatch: int, *_: Any, **__: Any) -> None:
        self.told.append(Told("run", "forward", self.stage_index, microbatch))

    def backward_one_chunk(self, microbatch: int, **_: Any) -> None:
        self.told.append(Told("run", "backward", self.stage_index, microbatch))

    def get_fwd_recv_ops(self, microbatch: int) -> list[Told]:
        return self._message("receive forward", microbatch) if self.stage_index else []

    def get_bwd_send_ops(self, microbatch: int) -> list[Told]:
        return self._message("send backward", microbatch) if self.stage_index else []

    def get_fwd_send_ops(self, microbatch: int) -> list[Told]:
        return self._message("send forward", microbatch) if self.stage_index < self.num_stages - 1 else []

    def get_bwd_recv_ops(self, microbatch: int) -> list[Told]:
        return self._message("receive backward", microbatch) if self.stage_index < self.num_stages - 1 else []

    def _message(self, what: str, microbatch: int) -> list[Told]:
        return [Told("post", what, self.stage_index, microbatch)]

    def perform_reduce_grad(self, _: int) -> None:
        pass

    def post(self, messages: list[Told], **_: Any) -> list[Told]:
        self.told += messages
        return messages

    def post_by_peer(self, messages: list[Told], **_: Any) -> dict[int, list[Told]]:
        return {0: self.post(messages)} if messages else {}

    def wait(self, messages: list[Told]) -> None:
        self.told += [message._replace(verb="wait") for message in messages]


@pytest.mark.parametrize(("stages", "microbatches"), SIZES)
@pytest.mark.parametrize(("name", "kind"), [("gpipe", "ScheduleGPipe"), ("1f1b", "Schedule1F1B")])
def test_one_chunk_per_stage_posts_and_waits_as_pytorch_does(
    name: str, kind: str, stages: int, microbatches: int
) -> None:
    pipelining = pytest.importorskip("torch.distributed.pipelining.schedules")
    made = getattr(pipelining, kind)
    theirs = []
    for number in range(stages):
        stage = Recorder(number, stages)
        with (
            patch.object(made, "_initialize_stage"),
            patch.object(made, "_update_losses"),
            patch.object(pipelining, "_batch_p2p", stage.post),
            patch.object(pipelining, "_sorted_batch_p2p", stage.post_by_peer),
            patch.object(pipelining, "_wait_batch_p2p", stage.wait),
        ):
            made(stage, microbatches)._step_microbatches()
        theirs.append(stage.told)
    assert ours(name, stages, microbatches) == theirs


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (2, 8), (3, 6), (4, 8)])
@pytest.mark.parametrize("virtual", [2, 3])
def test_interleaved_receives_are_posted_where_pytorch_posts_them(stages: int, microbatches: int, virtual: int) -> None:
    pipelining = pytest.importorskip("torch.distributed.pipelining.schedules")
    stand_ins = [
        SimpleNamespace(
            num_stages=stages * virtual, group_size=stages, group_rank=0, submod=None, is_last=False, stage_index=n
        )
        for n in range(virtual)
    ]
    made = pipelining.ScheduleInterleaved1F1B(stand_ins, microbatches)
    words = {
        "FORWARD": ("run", "forward"),
        "FULL_BACKWARD": ("run", "backward"),
        "SEND_F": ("post", "send forward"),
        "SEND_B": ("post", "send backward"),
        "RECV_F": ("post", "receive forward"),
        "RECV_B": ("post", "receive backward"),
    }
    theirs = [
        [
            Told(*words[a.computation_type.name], a.stage_index, a.microbatch_index)
            for a in made.pipeline_order_with_comms[rank]
            if a.computation_type.name in words
        ]
        for rank in range(stages)
    ]
    found = [[t for t in own if t.verb != "wait"] for own in ours("interleaved", stages, microbatches, virtual)]
    assert found == theirs


@pytest.mark.parametrize("name", sorted(SCHEDULES))
@pytest.mark.parametrize("stages", [2, 4])
def test_every_slot_and_message_has_one_place_after_all_that_it_waits_for(name: str, stages: int) -> None:
    chunks = SCHEDULES[name].chunks or (2 if SCHEDULES[name].interleaves else 1)
    slots, table = skeleton(name, stages, 8, chunks), timetable(name, stages, 8, chunks)
    assert sorted(table.slot[~table.sends].tolist()) == list(range(len(slots.stage)))
    assert sorted(table.slot[table.sends].tolist()) == np.flatnonzero(slots.link >= 0).tolist()
    assert (table.joins[:, 1] < table.joins[:, 0]).all()
    place = {int(slot): n for n, slot in enumerate(table.slot) if table.sends[n]}
    joins = {tuple(join) for join in table.joins.tolist()}
    for n, slot in enumerate(table.slot.tolist()):
        source = int(slots.source[slot])
        if not table.sends[n] and source >= 0 and slots.link[source] >= 0:
            assert (n, place[source]) in joins
