"""The cost of every pass of every block of a model: four numbers each, from the seconds of its works.

A pass of a block is a segment (see :class:`traincast.strategy.plan.Segment`): the host's ``lead`` before the device can
start, the ``device``'s seconds and the ``host``'s. Segments in line are one segment
(:func:`traincast.strategy.costs.in_line`), so a stage is put together from its blocks without looking at their works
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.graph import Operator
from traincast.searching.bulk.works import Works
from traincast.strategy.costs import Composition, CostTable, ragged
from traincast.strategy.program.block import BlockProgram
from traincast.strategy.program.item import Item
from traincast.strategy.schedules import Pass

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LEAD, DEVICE, HOST, OPERATORS = range(4)
"""Columns of a table of blocks; OPERATORS is the part of the device's seconds that operators take."""
PASSES: Final = len(Pass)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTable:
    """The works of every pass of every block; segment ``block · PASSES + pass`` is one pass.

    ``segment`` and ``operator`` say of every work which segment it belongs to, and whether it is an operator that runs
    in line (1) or anything else (0).
    """

    composition: Composition
    segment: Ints
    operator: Floats

    @classmethod
    def of(cls, programs: Sequence[BlockProgram], works: Works) -> BlockTable:
        """The table of ``programs``; enters their works in ``works``."""
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
            return -len(overlaps)  # more works may follow: overlaps are counted from the end

        for item in (item for part in parts for item in part):
            if id(item) not in numbers:  # halves of a backward are made of the same items as the whole
                numbers[id(item)] = works.number(item.launches), cost(item)
        start, found = ragged([[id(item) for item in part] for part in parts])
        pairs = np.array([numbers[i] for i in found.tolist()], dtype=np.int64).reshape(-1, 2)
        flags = [isinstance(item.work, Operator) and item.behind is None for part in parts for item in part]
        behind_start, hiding = ragged(behind[::-1])
        table = np.array(overlaps[::-1], dtype=np.float64).reshape(-1, 4)
        composition = Composition(
            overlap_work=table[:, 0].astype(np.int64),
            terms=table[:, 1:].copy(),
            behind_start=behind_start,
            behind=hiding,
            segment_start=start,
            launches=pairs[:, 0].copy(),
            works=pairs[:, 1].copy(),
        )
        segment = np.repeat(np.arange(len(parts)), np.diff(start))
        return cls(composition=composition, segment=segment, operator=np.array(flags, dtype=np.float64))

    def runs(self, seconds: Floats) -> Floats:
        """Lead, device, host and operators of every pass, in seconds, for given seconds of the works."""
        table = CostTable(self.composition, len(seconds), tails=False)
        table.fill(seconds)
        operators = table.leaves[self.composition.works] * self.operator
        count = len(table.segments)
        return np.column_stack([table.segments, np.bincount(self.segment, weights=operators, minlength=count)])
