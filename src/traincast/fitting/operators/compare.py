"""Compare FI-Net with its rivals on every cell of a table of measured operators, as swPredictor does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from traincast.fitting.operators.examples import cells_of, rows_of
from traincast.fitting.operators.rivals import Budget, RivalScore, compare
from traincast.fitting.rows.dataset import OperatorTable
from traincast.fitting.split import protocol_split

FEWEST = 40
"""Measured operators that a comparison needs."""


def compare_cells(
    table: OperatorTable,
    *,
    seed: int = 0,
    names: Sequence[str] | None = None,
    budget: Budget | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[RivalScore]:
    """Scores of every rival in every cell of ``table``, all on the same split."""
    split = protocol_split(table.key, table.groups, table.seconds, seed=seed)
    scores: list[RivalScore] = []
    for key, rows in cells_of(table).items():
        inside = np.zeros(len(table), dtype=bool)
        inside[rows] = True
        train, test = (
            rows_of(key[0], table, side.take(inside[side.first]), by_setting=False)
            for side in (split.train, split.test)
        )
        if len(train) + len(test) < FEWEST or not len(train) or not len(test):
            continue
        cell = "/".join(key)
        if progress is not None:
            progress(f"{cell}: comparing on {len(train)} operators")
        found = compare(train, test, names=names, seed=seed, budget=budget or Budget())
        scores += [replace(score, cell=cell) for score in found]
    return scores
