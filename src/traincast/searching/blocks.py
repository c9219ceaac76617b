"""What the blocks of a model take under one way to run them: four numbers for each pass of each block.

A run of works on a device that its host launches one by one is told by three numbers (see
:class:`traincast.strategy.plan.Segment`): the host's ``lead`` before the device can start, the ``device``'s seconds and
the ``host``'s. Two runs in line are one with

    lead = max(lead₁, host₁ − device₁ + lead₂),   device = device₁ + device₂,   host = host₁ + host₂,

so a stage is put together from its blocks without looking at their works again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traincast.compiled import Compiled
from traincast.graph import Operator
from traincast.searching.works import Works
from traincast.strategy.plan import ragged
from traincast.strategy.program import BlockProgram, Item
from traincast.strategy.schedules import Pass

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LEAD, DEVICE, HOST, OPERATORS = range(4)
"""Columns of a table of runs; the last is what of the device's seconds is operators."""
PASSES: Final = len(Pass)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTable:
    """Works of every pass of every block, by number: row ``block · PASSES + pass``.

    ``works`` below zero are overlaps: −1 is the first of ``overlaps``, whose works that hide them are ``behind``.
    """

    start: Ints
    launches: Ints
    works: Ints
    operators: npt.NDArray[np.bool_]
    overlaps: Ints
    terms: Floats
    behind_start: Ints
    behind: Ints

    @classmethod
    def of(cls, programs: Sequence[BlockProgram], works: Works) -> BlockTable:
        """The table of ``programs``, whose works are entered in ``works``."""
        parts = [program.items(what) for program in programs for what in Pass]
        numbers: dict[int, tuple[int, int]] = {}
        overlaps: list[tuple[int, float, float, float]] = []
        behind: list[list[int]] = []

        def cost(item: Item) -> int:
            number = works.number(item.work)
            if item.behind is None:
                return number
            overlaps.append((number, item.behind.share, item.behind.interference, float(item.behind.waited)))
            behind.append([works.number(work) for work in item.behind.works])
            return -len(overlaps)

        for item in (item for part in parts for item in part):
            if id(item) not in numbers:  # halves of a backward are made of the same items as the whole
                numbers[id(item)] = works.number(item.launches), cost(item)
        start, found = ragged([[id(item) for item in part] for part in parts])
        pairs = np.array([numbers[i] for i in found.tolist()], dtype=np.int64).reshape(-1, 2)
        flags = [isinstance(item.work, Operator) and item.behind is None for part in parts for item in part]
        behind_start, hiding = ragged(behind)
        table = np.array(overlaps, dtype=np.float64).reshape(-1, 4)
        return cls(
            start=start,
            launches=pairs[:, 0].copy(),
            works=pairs[:, 1].copy(),
            operators=np.array(flags, dtype=bool),
            overlaps=table[:, 0].astype(np.int64),
            terms=table[:, 1:].copy(),
            behind_start=behind_start,
            behind=hiding,
        )

    def runs(self, seconds: Floats) -> Floats:
        """Lead, device, host and operators of every row, for given seconds of the works."""
        table = np.empty((len(self.start) - 1, 4))
        _runs_compiled(
            self.start,
            self.launches,
            self.works,
            self.operators,
            self.overlaps,
            self.terms,
            self.behind_start,
            self.behind,
            seconds,
            table,
        )
        return table


def _runs(  # noqa: PLR0917  (Numba takes positional arguments)
    start: Any,
    launches: Any,
    works: Any,
    operators: Any,
    overlaps: Any,
    terms: Any,
    behind_start: Any,
    behind: Any,
    seconds: Any,
    table: Any,
) -> None:
    """Fill the table of runs; costs of overlaps as :class:`traincast.strategy.plan.Overlap` has them."""
    hidden = np.empty(len(overlaps))
    for number in range(len(overlaps)):
        here, there = seconds[overlaps[number]], 0.0
        for i in range(behind_start[number], behind_start[number + 1]):
            there += seconds[behind[i]]
        there *= terms[number, 0]
        hidden[number] = terms[number, 1] * min(here, there)
        if terms[number, 2] > 0.0:
            hidden[number] += max(0.0, here - there)
    for row in range(len(start) - 1):
        lead, device, host, computing = 0.0, 0.0, 0.0, 0.0
        for i in range(start[row], start[row + 1]):
            host += seconds[launches[i]]
            lead = max(lead, host - device)
            cost = seconds[works[i]] if works[i] >= 0 else hidden[-1 - works[i]]
            device += cost
            if operators[i]:
                computing += cost
        table[row, 0], table[row, 1], table[row, 2], table[row, 3] = lead, device, host, computing


_runs_compiled = Compiled(_runs)
