"""Orders written as phases: a stage repeats a few moves, and each move takes the next microbatch that lacks it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Final, TypeAlias

from traincast.errors import StrategyError
from traincast.strategy.schedules.slots import Pass, Slot

Move: TypeAlias = tuple[Pass, int]
"""A pass of one of the chunks of a stage."""
Phase: TypeAlias = tuple[Sequence[Move], int]
"""Moves in turn, and how often; where they repeat, each occurs once."""

# A whole backward leaves neither half to do, so both halves count on.
_COUNTS: Final[dict[Pass, tuple[Pass, ...]]] = {
    Pass.FORWARD: (Pass.FORWARD,),
    Pass.BACKWARD: (Pass.INPUT, Pass.WEIGHT),
    Pass.INPUT: (Pass.INPUT,),
    Pass.WEIGHT: (Pass.WEIGHT,),
}


def tapes(microbatches: int, *, chunks: int = 1) -> dict[Move, list[Slot]]:
    """The slots of every move in order of microbatch; all stages share them."""
    return {(what, c): [Slot(what, m, c) for m in range(microbatches)] for what in Pass for c in range(chunks)}


def play(phases: Iterable[Phase], tape: Mapping[Move, Sequence[Slot]]) -> list[Slot]:
    """The slots of one stage: each move takes the next of its tape."""
    taken: dict[Move, int] = dict.fromkeys(((what, chunk) for what in Pass for _, chunk in tape), 0)
    slots: list[Slot] = []
    for moves, times in phases:
        columns = []
        for what, chunk in moves:
            start = taken[_COUNTS[what][0], chunk]
            columns.append(tape[what, chunk][start : start + times])
            for half in _COUNTS[what]:
                taken[half, chunk] = start + times
        slots += chain.from_iterable(zip(*columns, strict=True))
    return slots


def check_counts(name: str, stages: int, microbatches: int, virtual: int, *, chunks: int) -> None:
    """Refuse numbers below one, and virtual stages where a schedule has ``chunks`` by itself (0: any number)."""
    if min(stages, microbatches, virtual) < 1:
        raise StrategyError(
            f"{name} with pp={stages}, num_microbatches={microbatches}, virtual_stages={virtual}: "
            "each must be at least 1"
        )
    if chunks == 1 and virtual != 1:
        raise StrategyError(
            f"{name} with virtual_stages={virtual}: it has none; use virtual_stages=1 or schedule=interleaved"
        )
    if chunks > 1 and virtual not in (1, chunks):
        raise StrategyError(
            f"{name} with virtual_stages={virtual}: every stage holds {chunks} chunks by itself; leave "
            "virtual_stages out"
        )
