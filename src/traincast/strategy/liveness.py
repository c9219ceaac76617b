"""What a block's backward needs beside what is kept for it: gradients come and go, and so do the tensors it has used.

Autograd lets go of what a forward operator kept as soon as its backward has run, and of a gradient once everyone who
reads it has. So the fullest moment is not that of the largest operator: by then much of the block may be gone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardBytes:
    """One backward operator: bytes that it writes and others read, and that only it needs while it runs.

    ``given`` is true if it reads a gradient that the next block made, ``frees`` are bytes kept for backward that nobody
    needs once it has run. All in all, no less than ``least`` bytes are held while it runs.
    """

    reads: tuple[int, ...]
    given: bool
    writes: float
    needs: float
    frees: float
    least: float = 0.0


def most_beside(operators: Sequence[BackwardBytes], *, arrives: float) -> float:
    """The most that ``operators``, run in order, hold beside all that was kept for them.

    Operators read what others of them wrote, by number; ``arrives`` bytes are the gradients that the next block made.
    """
    last: dict[int, int] = {}
    for number, operator in enumerate(operators):
        last.update(dict.fromkeys(operator.reads, number))
    given = max((n for n, operator in enumerate(operators) if operator.given), default=-1)
    gone: defaultdict[int, float] = defaultdict(float)
    for number, reader in last.items():
        gone[reader] += operators[number].writes
    gone[given] += arrives
    alive = most = arrives if given >= 0 else 0.0
    for number, operator in enumerate(operators):
        alive += operator.writes
        most = max(most, alive + operator.needs, operator.least)
        alive -= operator.frees + gone[number]
    return most
