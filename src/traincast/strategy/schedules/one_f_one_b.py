"""GPipe, 1F1B and its interleaved form: forwards and whole backwards, one stage after the other."""

from __future__ import annotations

from typing import Final

from traincast.errors import StrategyError
from traincast.strategy.schedules.phases import Move, check_counts, play, tapes
from traincast.strategy.schedules.slots import Order, Pass, Slot

_F: Final[Move] = (Pass.FORWARD, 0)
_B: Final[Move] = (Pass.BACKWARD, 0)


def gpipe(stages: int, microbatches: int, virtual: int = 1) -> Order:
    """All forwards, then all backwards (Huang et al. 2019). Bubble fraction (p−1)/(m+p−1)."""
    check_counts("gpipe", stages, microbatches, virtual, chunks=1)
    tape = tapes(microbatches)
    return [play([([_F], microbatches), ([_B], microbatches)], tape) for _ in range(stages)]


def one_forward_one_backward(stages: int, microbatches: int, virtual: int = 1) -> Order:
    """Warm up, then alternate (Narayanan et al. 2019, PipeDream-Flush). GPipe's bubble, p microbatches in flight."""
    if virtual != 1:
        return interleaved(stages, microbatches, virtual)
    check_counts("1f1b", stages, microbatches, virtual, chunks=1)
    tape = tapes(microbatches)
    return [_alternate(stages - stage - 1, tape) for stage in range(stages)]


def interleaved(stages: int, microbatches: int, virtual: int = 1) -> Order:
    """1F1B over ``virtual`` chunks per stage (Narayanan et al. 2021): the bubble shrinks by that factor.

    Chunks take turns for groups of p microbatches, so microbatches come in whole groups.
    """
    if virtual == 1:
        return one_forward_one_backward(stages, microbatches)
    check_counts("interleaved schedule", stages, microbatches, virtual, chunks=0)
    if microbatches % stages:
        raise StrategyError(
            f"interleaved schedule: num_microbatches={microbatches} is not a multiple of pp={stages}; "
            f"use {-(-microbatches // stages) * stages} microbatches or virtual_stages=1"
        )
    turns = [
        (group + within, chunk)
        for group in range(0, microbatches, stages)
        for chunk in range(virtual)
        for within in range(stages)
    ]
    tape = {
        _F: [Slot(Pass.FORWARD, m, chunk) for m, chunk in turns],
        _B: [Slot(Pass.BACKWARD, m, virtual - 1 - chunk) for m, chunk in turns],
    }
    return [_alternate((stages - stage - 1) * 2 + (virtual - 1) * stages, tape) for stage in range(stages)]


def _alternate(ahead: int, tape: dict[Move, list[Slot]]) -> list[Slot]:
    """``ahead`` forwards, then one forward and one backward in turn, then the remaining backwards."""
    total = len(tape[_F])
    warm = min(ahead, total)
    return play([([_F], warm), ([_F, _B], total - warm), ([_B], warm)], tape)
