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
schedule alone, and not on any duration.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

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
def timetable(name: str, stages: int, microbatches: int, chunks: int) -> Timetable:
    """The order of slots and messages of the schedule ``name``."""
    slots = skeleton(name, stages, microbatches, chunks)
    return _Table(slots).run(moves_of(slots, name))


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
    """A stage on its way through its moves.

    ``clock`` counts passes, so that stages advance together. ``reached`` are the places that the next message or slot
    waits for. ``posts`` counts what was posted to and received from each neighbour.
    """

    moves: list[Move]
    at: int = 0
    clock: float = 0.0
    reached: tuple[int, ...] = ()
    posts: int = 0


@dataclass(slots=True)
class _Side:
    """One side of a message: what its stage had reached when it was posted, when that was, and its number there."""

    reached: tuple[int, ...]
    clock: float
    number: int


@dataclass(slots=True)
class _Table:
    """Collects places and joins while all stages go through their moves."""

    slots: Skeleton
    slot: list[int] = field(default_factory=list)
    sends: list[bool] = field(default_factory=list)
    joins: list[tuple[int, int]] = field(default_factory=list)
    sides: dict[tuple[int, bool], _Side] = field(default_factory=dict)
    place: dict[int, int] = field(default_factory=dict)
    ended: dict[int, float] = field(default_factory=dict)
    latest: dict[tuple[int, int], list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))

    def run(self, moves: list[list[Move]]) -> Timetable:
        """Lets the stage that is least far ahead make its next move, until all have ended."""
        stages = [_Stage(moves=own) for own in moves]
        to = {
            int(source): int(self.slots.stage[slot])
            for slot, source in enumerate(self.slots.source)
            if source >= 0 and self.slots.link[source] >= 0
        }
        while True:
            able = [
                (state.clock, number)
                for number, state in enumerate(stages)
                if state.at < len(state.moves) and self._can(state.moves[state.at])
            ]
            if not able:
                break
            _, number = min(able)
            state = stages[number]
            # A stage goes on until it has run a pass or must wait.
            while state.at < len(state.moves) and self._can(state.moves[state.at]):
                move = state.moves[state.at]
                state.at += 1
                self._make(move, number, state, to)
                if isinstance(move, Run):
                    break
        assert all(state.at == len(state.moves) for state in stages), "a schedule that PyTorch runs does not deadlock"
        return Timetable(
            slot=np.array(self.slot, dtype=np.int64),
            sends=np.array(self.sends, dtype=bool),
            joins=np.array(self.joins, dtype=np.int64).reshape(-1, 2),
            last=tuple(state.reached for state in stages),
        )

    def _can(self, move: Move) -> bool:
        return not isinstance(move, Wait) or all(slot in self.place for slot in move.slots)

    def _make(self, move: Move, number: int, state: _Stage, to: dict[int, int]) -> None:
        if isinstance(move, Run):
            place = self._placed(move.slot, False, state.reached)
            state.reached = (place,)
            state.clock += _LENGTHS[Pass(int(self.slots.what[move.slot]))]
        elif isinstance(move, Post):
            state.posts += 1
            self.sides[move.slot, move.sends] = _Side(state.reached, state.clock, state.posts)
            if (move.slot, not move.sends) in self.sides:
                self._start(move.slot, to[move.slot])
        elif move.slots:
            state.reached = tuple(dict.fromkeys((*state.reached, *(self.place[slot] for slot in move.slots))))
            state.clock = max(state.clock, *(self.ended[slot] for slot in move.slots))

    def _start(self, slot: int, receiver: int) -> None:
        """Places the message of ``slot``, both sides of which are posted."""
        sender = int(self.slots.stage[slot])
        here, there = self.sides[slot, True], self.sides[slot, False]
        # The receiver's own payloads to the sender that it posted before this receive go first.
        earlier = reversed(self.latest[receiver, sender])
        opposite = next(((place,) for post, place in earlier if post < there.number), ())
        self.place[slot] = self._placed(slot, True, (*here.reached, *there.reached, *opposite))
        self.ended[slot] = max(here.clock, there.clock)
        self.latest[sender, receiver].append((here.number, self.place[slot]))

    def _placed(self, slot: int, sends: bool, after: tuple[int, ...]) -> int:
        place = len(self.slot)
        self.slot.append(slot)
        self.sends.append(sends)
        self.joins += [(place, source) for source in dict.fromkeys(after)]
        return place


_LENGTHS: Final = {Pass.FORWARD: 1.0, Pass.BACKWARD: 2.0, Pass.INPUT: 1.0, Pass.WEIGHT: 1.0}
"""Rough lengths of passes. They decide which of two independent messages stands first, and nothing else."""
