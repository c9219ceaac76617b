"""The page of a search: its answer and plots as one HTML file that needs nothing else.

All values are embedded as one JSON document, which the template's script draws and whose strings it treats as text.
Of many candidates the plot of time and memory has the number in each of its cells.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traincast.report.embed import page_text
from traincast.report.trace import replacing
from traincast.searching.answer import Answer

Floats = npt.NDArray[np.float64]

CELLS: Final = (150, 90)
"""Cells of the plot, along time and memory."""
SLOWEST: Final = 20.0
"""Strategies that take more than so many times the shortest step are counted, not drawn."""


def write_page(answer: Answer, path: Path) -> None:
    """Write ``answer`` as one self-contained HTML file."""
    text = page_text("traincast.searching", "search.html", _page_data(answer))
    with replacing(path) as file:
        file.write(text)


def _page_data(answer: Answer) -> dict[str, Any]:
    report = answer.best.report
    return {
        **answer.as_dict(),
        "where": report.cluster,
        "tokens_per_sample": report.tokens_per_sample,
        "num_parameters": report.num_parameters,
        "num_trainable_parameters": report.num_trainable_parameters,
        "plot": _plot(answer),
    }


def _plot(answer: Answer) -> dict[str, Any]:
    """Cells of the plot with how many candidates each holds, and the edge of least memory for each time."""
    runs = np.isfinite(answer.columns.seconds)
    seconds, memory = answer.columns.seconds[runs], answer.columns.memory[runs]
    near = seconds <= SLOWEST * seconds.min()
    x, y = np.log(seconds[near]), memory[near].astype(np.float64)
    counts, cells = _cells(x, y)
    order = np.lexsort((y, x))
    least = np.minimum.accumulate(y[order])
    edge = order[np.concatenate([[True], least[1:] < least[:-1]])]
    return {
        "cells": [[math.exp(a), b, n] for (a, b), n in zip(cells.tolist(), counts.tolist(), strict=True)],
        "edge": [[float(seconds[near][row]), float(y[row])] for row in edge],
        "drawn": int(near.sum()),
        "slower": int((~near).sum()),
        "slowest": SLOWEST,
    }


def _cells(x: Floats, y: Floats) -> tuple[npt.NDArray[np.int64], Floats]:
    """How many points are in each cell that has any, and where the first of them is."""
    number = np.zeros(len(x), dtype=np.int64)
    for values, count in zip((x, y), CELLS, strict=True):
        low, high = float(values.min()), float(values.max())
        scale = count / (high - low) if high > low else 0.0
        number = number * count + np.minimum(count - 1, ((values - low) * scale).astype(np.int64))
    _, first, counts = np.unique(number, return_index=True, return_counts=True)
    return counts, np.stack([x[first], y[first]], axis=1)
