"""Memory that the backward of a block needs in addition to the tensors kept for it.

Autograd frees the tensors that a forward operator kept as soon as its backward has run, and a gradient as soon as all
its readers have run. So memory need not peak at the largest operator: much of the block may be freed by then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardBytes:
    """The memory of one backward operator, in bytes.

    ``reads`` are the numbers of the operators whose results it reads. ``given`` is true if it reads a gradient that the
    next block made. Other operators read the ``writes`` bytes; only this one needs the ``needs`` bytes, while it runs.
    ``frees`` bytes kept for backward are free when it has run. At least ``least`` bytes are held while it runs.
    """

    reads: tuple[int, ...]
    given: bool
    writes: float
    needs: float
    frees: float
    least: float = 0.0


def most_beside(operators: Sequence[BackwardBytes], *, arrives: float) -> float:
    """Returns the largest number of bytes that ``operators``, run in order, hold in addition to the kept tensors.

    ``arrives`` are the bytes of the gradients that the next block made.
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
