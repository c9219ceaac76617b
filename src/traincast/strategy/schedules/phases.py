"""Orders written as phases: a stage repeats a few moves, and each move runs its next microbatch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Final, TypeAlias

from traincast.errors import StrategyError
from traincast.strategy.schedules.slots import Pass, Slot

Move: TypeAlias = tuple[Pass, int]
"""(pass, chunk): one pass of one of a stage's chunks."""
Phase: TypeAlias = tuple[Sequence[Move], int]
"""(moves, times): these moves in turn, repeated; if ``times`` is above 1, no move may occur twice among them."""

# A whole backward includes both halves, so the next microbatch is due for each of them.
_COUNTS: Final[dict[Pass, tuple[Pass, ...]]] = {
    Pass.FORWARD: (Pass.FORWARD,),
    Pass.BACKWARD: (Pass.INPUT, Pass.WEIGHT),
    Pass.INPUT: (Pass.INPUT,),
    Pass.WEIGHT: (Pass.WEIGHT,),
}


def tapes(microbatches: int, *, chunks: int = 1) -> dict[Move, list[Slot]]:
    """The slots of each move in order of microbatch; all stages share them."""
    return {(what, c): [Slot(what, m, c) for m in range(microbatches)] for what in Pass for c in range(chunks)}


def play(phases: Iterable[Phase], tape: Mapping[Move, Sequence[Slot]]) -> list[Slot]:
    """The slots of one stage: each move takes the next slot of its tape."""
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
    """Refuses numbers below 1, and virtual stages if the schedule has a fixed number of ``chunks`` (0: any number)."""
    if min(stages, microbatches, virtual) < 1:
        raise StrategyError(
            f"{name} with pp={stages}, num_microbatches={microbatches}, virtual_stages={virtual}: "
            "each must be at least 1"
        )
    if chunks == 1 and virtual != 1:
        raise StrategyError(
            f"{name} with virtual_stages={virtual}: it has no virtual stages; use virtual_stages=1 or "
            "schedule=interleaved"
        )
    if chunks > 1 and virtual not in (1, chunks):
        raise StrategyError(
            f"{name} with virtual_stages={virtual}: every stage always holds {chunks} chunks; leave out virtual_stages"
        )
