"""Pipelines whose messages move only once both sides have asked for them.

This is what ``torch.distributed.pipelining`` does over gloo. A stage posts sends and receives and waits for them at
fixed places of its schedule:

* ``gpipe``: it receives before each pass, and waits for all sends of forwards, and later of backwards, in the end.
* ``1f1b``: while it warms up and cools down, it waits for a send before it posts the next one. In between, it posts
  the send of one direction together with the receive of the other, and waits for both.
* All other schedules: receives are posted as early as the senders' orders allow, and sends are waited for at the end.

A message starts when both its sides are posted. Messages that one stage sends follow one another. A receive that a
stage posts while it sends to the same neighbour becomes known there only after that payload.

The result is an order of slots and messages in which everything stands after what it waits for. It depends on the
schedule and on the rough time of a message, not on durations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from traincast.cluster import Cluster
from traincast.graph import Operator
from traincast.strategy.program.block import BlockProgram
from traincast.strategy.schedules.skeleton import Skeleton, skeleton
from traincast.strategy.schedules.slots import Pass

Ints = npt.NDArray[np.int64]


class Run(NamedTuple):
    """Runs a slot."""

    slot: int


class Post(NamedTuple):
    """Posts one side of the message that carries the result of ``slot``."""

    slot: int
    sends: bool


class Wait(NamedTuple):
    """Waits for the messages that carry the results of ``slots``."""

    slots: tuple[int, ...]


Move = Run | Post | Wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Timetable:
    """Slots and messages in order.

    Place i runs slot ``slot[i]`` or, if ``sends[i]``, the message with its result. Each row (a, b) of ``joins`` says
    that place a waits for place b; if b exchanges gradients, a waits for these as well. ``last`` has, by stage, the
    places that the end of the stage's step waits for.
    """

    slot: Ints
    sends: npt.NDArray[np.bool_]
    joins: Ints
    last: tuple[tuple[int, ...], ...]


@lru_cache(maxsize=256)
def timetable(name: str, stages: int, microbatches: int, chunks: int, message: float = 1.0) -> Timetable:
    """The order of slots and messages of the schedule ``name``; ``message`` is the rough time of one in forwards.

    A stage may be sending to the neighbour from which it expects a message, or be about to. Which of the two it is
    depends on how long messages take.
    """
    slots = skeleton(name, stages, microbatches, chunks)
    return _Table(slots, message).run(moves_of(slots, name))


def rough_message(pieces: Sequence[Sequence[BlockProgram]], cluster: Cluster) -> float:
    """The rough time of a message between ``pieces``, where a piece's forward takes 1: a power of 2 from 1/64 to 64."""
    works = [item.work for piece in pieces for program in piece for item in program.forward]
    peak, bandwidth = cluster.device.peak("fp32"), cluster.device.memory_bandwidth
    computed = sum(max(w.flops / peak, w.nbytes / bandwidth) for w in works if isinstance(w, Operator)) / len(pieces)
    sent = [piece[-1].boundary_bytes / cluster.nic_bandwidth_per_device for piece in pieces[:-1]]
    if not computed or not any(sent):
        return 1.0
    return 2.0 ** min(6, max(-6, round(math.log2(sum(sent) / len(sent) / computed))))


def moves_of(slots: Skeleton, name: str) -> list[list[Move]]:
    """What each stage does in turn, as PyTorch's schedule ``name`` does it."""
    messages, stages = _Messages(slots), len(slots.order)
    held = [np.flatnonzero(slots.stage == stage).tolist() for stage in range(stages)]
    if len(slots.routes[0]) == stages and name in _ALONE:
        return [list(_ALONE[name](messages, own, stages - stage)) for stage, own in enumerate(held)]
    return _posted_early(messages, held, slots)


class _Messages:
    """Which messages a slot receives and sends, each named by the slot that produces it."""

    def __init__(self, slots: Skeleton) -> None:
        self.forward: list[bool] = (slots.what == Pass.FORWARD).tolist()
        sent = slots.link >= 0
        crosses = (slots.source >= 0) & sent[slots.source]
        self.received: list[int] = np.where(crosses, slots.source, -1).tolist()
        self.sent: list[bool] = sent.tolist()

    def receive(self, slot: int) -> list[int]:
        """The message that ``slot`` waits for, if any."""
        return [self.received[slot]] if self.received[slot] >= 0 else []

    def send(self, slot: int) -> list[int]:
        """The message that ``slot`` produces, if any."""
        return [slot] if self.sent[slot] else []


def _posts(sends: list[int], receives: list[int]) -> Iterator[Move]:
    """Posts sends, then receives."""
    yield from (Post(slot, True) for slot in sends)
    yield from (Post(slot, False) for slot in receives)


def _gpipe(messages: _Messages, own: list[int], _: int) -> Iterator[Move]:
    sent: list[int] = []
    for n, slot in enumerate(own):
        if n and messages.forward[own[n - 1]] and not messages.forward[slot]:
            yield Wait(tuple(sent))
            sent = []
        received = messages.receive(slot)
        yield from _posts([], received)
        yield Wait(tuple(received))
        yield Run(slot)
        yield from _posts(messages.send(slot), [])
        sent += messages.send(slot)
    yield Wait(tuple(sent))


def _one_f_one_b(messages: _Messages, own: list[int], ahead: int) -> Iterator[Move]:
    warm = min(ahead, sum(messages.forward[slot] for slot in own))
    before: list[int] = []
    for n, slot in enumerate(own[:warm]):
        received = messages.receive(slot)
        yield from _posts([], received)
        yield Wait(tuple(received))
        yield Run(slot)
        yield Wait(tuple(before))
        before = messages.send(slot) if n < warm - 1 else []
        yield from _posts(before, [])
    alternating = 2 * (sum(messages.forward[slot] for slot in own) - warm) + 1
    left = messages.send(own[warm - 1])
    for slot in own[warm : warm + alternating]:
        received = messages.receive(slot)
        yield from _posts(left, received)
        yield Wait((*left, *received))
        yield Run(slot)
        left = messages.send(slot)
    yield from _posts(left, [])
    for slot in own[warm + alternating :]:
        received = messages.receive(slot)
        yield from _posts([], received)
        yield Wait(tuple(received))
        yield Run(slot)
        yield Wait(tuple(left))
        left = messages.send(slot)
        yield from _posts(left, [])
    yield Wait(tuple(left))


_ALONE: Final = {"gpipe": _gpipe, "1f1b": _one_f_one_b}
"""Schedules of one chunk per stage that place their own sends and receives."""


def _posted_early(messages: _Messages, held: list[list[int]], slots: Skeleton) -> list[list[Move]]:
    """Stages take turns; the slot that sends also posts the receive on the other stage, at the place it has reached.

    A slot whose receive is not posted yet passes its turn. After the last gradient of a chunk, two turns go to the
    reduction of its gradients and to the release of its parameters.
    """
    to = {source: int(slots.stage[slot]) for slot, source in enumerate(messages.received) if source >= 0}
    moves: list[list[Move]] = [[] for _ in held]
    sent: list[list[int]] = [[] for _ in held]
    posted: set[int] = set()
    at, idle = [0] * len(held), [0] * len(held)
    while any(at[stage] < len(own) for stage, own in enumerate(held)):
        for stage, own in enumerate(held):
            if idle[stage] or at[stage] == len(own):
                idle[stage] = max(0, idle[stage] - 1)
                continue
            slot = own[at[stage]]
            received = messages.receive(slot)
            if not posted.issuperset(received):
                continue
            moves[stage] += [Wait(tuple(received)), Run(slot)]
            at[stage] += 1
            idle[stage] = 2 * int(slots.last[slot])
            for message in messages.send(slot):
                moves[stage].append(Post(message, True))
                moves[to[message]].append(Post(message, False))
                sent[stage].append(message)
                posted.add(message)
    return [[*own, Wait(tuple(reversed(sent[stage])))] for stage, own in enumerate(moves)]


@dataclass(slots=True)
class _Stage:
    """A stage on its way through its moves: its rough time, and the places that its next move waits for."""

    moves: list[Move]
    at: int = 0
    clock: float = 0.0
    reached: tuple[int, ...] = ()


class _Side(NamedTuple):
    """One side of a message: its stage, the places that it waits for, and the rough time at which they have ended."""

    stage: int
    after: tuple[int, ...]
    clock: float


@dataclass(slots=True)
class _Table:
    """Collects places and joins while all stages go through their moves.

    ``message`` is the rough time of a message, where a forward takes 1. ``latest`` has the last message from one stage
    to another and its rough end, ``free`` the rough time at which a stage has sent its last message.
    """

    slots: Skeleton
    message: float
    slot: list[int] = field(default_factory=list)
    sends: list[bool] = field(default_factory=list)
    joins: list[tuple[int, int]] = field(default_factory=list)
    sides: dict[tuple[int, bool], _Side] = field(default_factory=dict)
    place: dict[int, int] = field(default_factory=dict)
    ended: dict[int, float] = field(default_factory=dict)
    latest: dict[tuple[int, int], tuple[int, float]] = field(default_factory=dict)
    free: dict[int, float] = field(default_factory=dict)

    def run(self, moves: list[list[Move]]) -> Timetable:
        """Lets the stage whose next move is the earliest make it, until all have ended."""
        stages = [_Stage(moves=own) for own in moves]
        while True:
            times = [(self._time(state), number) for number, state in enumerate(stages)]
            time, number = min(times)
            if time == _NEVER:
                break
            self._make(stages[number], number, time)
        assert all(state.at == len(state.moves) for state in stages), "a schedule that PyTorch runs does not deadlock"
        return Timetable(
            slot=np.array(self.slot, dtype=np.int64),
            sends=np.array(self.sends, dtype=bool),
            joins=np.array(self.joins, dtype=np.int64).reshape(-1, 2),
            last=tuple(state.reached for state in stages),
        )

    def _time(self, state: _Stage) -> float:
        """The rough time of a stage's next move; never, if it has ended or waits for a message that cannot start."""
        if state.at == len(state.moves):
            return _NEVER
        move = state.moves[state.at]
        if isinstance(move, Wait):
            return max([state.clock, *(self.ended.get(slot, _NEVER) for slot in move.slots)])
        return state.clock

    def _make(self, state: _Stage, number: int, time: float) -> None:
        """Makes the next move of stage ``number``."""
        move = state.moves[state.at]
        state.at, state.clock = state.at + 1, time
        if isinstance(move, Run):
            state.reached = (self._placed(move.slot, False, state.reached),)
            state.clock += _LENGTHS[Pass(int(self.slots.what[move.slot]))]
        elif isinstance(move, Wait):
            state.reached = tuple(dict.fromkeys((*state.reached, *(self.place[slot] for slot in move.slots))))
        else:
            side = _Side(number, state.reached, time)
            opposite = self.latest.get((number, int(self.slots.stage[move.slot])))
            if opposite and not move.sends:  # the sender learns of this receive after that payload
                side = _Side(number, (*side.after, opposite[0]), max(time, opposite[1]))
            self.sides[move.slot, move.sends] = side
            if (move.slot, not move.sends) in self.sides:
                self._start(move.slot)

    def _start(self, slot: int) -> None:
        """Places the message of ``slot``, both sides of which are posted."""
        here, there = self.sides[slot, True], self.sides[slot, False]
        self.place[slot] = self._placed(slot, True, (*here.after, *there.after))
        end = max(here.clock, there.clock, self.free.get(here.stage, 0.0)) + self.message
        self.ended[slot] = self.free[here.stage] = end
        self.latest[here.stage, there.stage] = (self.place[slot], end)

    def _placed(self, slot: int, sends: bool, after: tuple[int, ...]) -> int:
        place = len(self.slot)
        self.slot.append(slot)
        self.sends.append(sends)
        self.joins += [(place, source) for source in dict.fromkeys(after)]
        return place


_LENGTHS: Final = {Pass.FORWARD: 1.0, Pass.BACKWARD: 2.0, Pass.INPUT: 1.0, Pass.WEIGHT: 1.0}
"""Rough lengths of passes. They decide which of two independent messages stands first, and nothing else."""
_NEVER: Final = float("inf")
