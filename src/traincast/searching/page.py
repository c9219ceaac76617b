"""Writes the page of a search: its answer and plots in one HTML file that loads nothing.

This module makes the data of the page. The views in :mod:`traincast.pages` draw them.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traincast.cluster import Cluster, load_cluster
from traincast.errors import TraincastError
from traincast.files import write_text
from traincast.pages import page_text
from traincast.searching.answer import Answer, Candidate
from traincast.searching.bulk.columns import StrategyColumns

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

CELLS: Final = (150, 90)
"""Number of cells of the plot along time and along memory."""
SLOWEST: Final = 20.0
"""Strategies that take more than this many times the shortest step are counted, not drawn."""
_SHOWN: Final = (
    "dp", "tp", "pp", "cp", "ep", "micro_batch", "num_microbatches", "virtual_stages", "zero", "schedule", "recompute",
    "sequence_parallel", "offload", "cut",
)  # fmt: skip
"""Columns of a strategy that a point of the plot names."""
_USUAL: Final = {
    "cp": 1,
    "ep": 1,
    "virtual_stages": 1,
    "zero": 0,
    "recompute": "none",
    "offload": "none",
    "cut": "even",
}
"""Defaults, which a point of the plot leaves out."""


def write_page(answer: Answer, path: Path) -> None:
    """Write ``answer`` as one self-contained HTML file."""
    write_text(path, page_text("search", _page_data(answer)))


def _page_data(answer: Answer) -> dict[str, Any]:
    report = answer.best.report
    data = answer.to_dict()
    words: dict[int, str | None] = {}
    for name, candidates in (("candidates", answer.candidates), ("pareto", answer.pareto)):
        for entry, candidate in zip(data[name], candidates, strict=True):
            entry["command"] = command_of(candidate, words)
    return {
        **data,
        "where": report.cluster,
        "tokens_per_sample": report.tokens_per_sample,
        "num_parameters": report.num_parameters,
        "num_trainable_parameters": report.num_trainable_parameters,
        "plot": _plot(answer),
    }


def command_of(candidate: Candidate, words: dict[int, str | None]) -> str | None:
    """Return the command line that forecasts ``candidate``; ``None`` if the catalog does not have its cluster.

    ``words`` caches the names of clusters by ``id``, so that each cluster is looked up once.
    """
    request, report = candidate.request, candidate.report
    key = id(request.cluster)
    if key not in words:
        words[key] = cluster_word(request.cluster)
    name = words[key]
    if name is None:
        return None
    options = {
        "--cluster": name,
        "--global-batch": str(request.global_batch),
        "--seq": str(report.tokens_per_sample) if report.tokens_per_sample > 1 else "",
        "--precision": report.precision,
        "--runtime": report.runtime,
        "--strategy": request.strategy.complete_text,
    }
    given = [word for option, value in options.items() if value for word in (option, value)]
    return shlex.join(["traincast", "predict", report.model, *given])


def cluster_word(cluster: Cluster) -> str | None:
    """Return the name with which the catalog gives exactly this cluster, if there is one."""
    name = f"{cluster.name}:{cluster.num_nodes}x{cluster.devices_per_node}"
    try:
        found = load_cluster(name)
    except TraincastError:
        return None
    return name if found == cluster else None


def _plot(answer: Answer) -> dict[str, Any]:
    """Return the cells of the plot with the number of strategies in each, and the least memory for each time."""
    runs = np.flatnonzero(np.isfinite(answer.columns.seconds))
    runs = runs[np.argsort(answer.columns.seconds[runs], kind="stable")]
    every = answer.columns.seconds[runs]
    rows = runs[every <= SLOWEST * every[0]]
    seconds, memory = answer.columns.seconds[rows], answer.columns.memory[rows].astype(np.float64)
    counts, first = _cells(np.log(seconds), memory)
    order = np.lexsort((memory, seconds))
    least = np.minimum.accumulate(memory[order])
    edge = order[np.concatenate([[True], least[1:] < least[:-1]])]
    drawn = zip(seconds[first].tolist(), memory[first].tolist(), counts.tolist(), strict=True)
    return {
        "cells": [list(cell) for cell in drawn],
        "columns": _named(answer.columns, rows[first]),
        "edge": [[float(seconds[row]), float(memory[row])] for row in edge],
        "drawn": len(rows),
        "slower": len(runs) - len(rows),
        "slowest": SLOWEST,
    }


def _named(columns: StrategyColumns, rows: Ints) -> dict[str, list[Any]]:
    """Return the values that name the strategies of ``rows``, by column; default values are empty."""
    found: dict[str, list[Any]] = {}
    for name in _SHOWN:
        numbers, place = np.unique(getattr(columns, name)[rows], return_inverse=True)
        at = {number: int(rows[np.argmax(place == n)]) for n, number in enumerate(numbers.tolist())}
        texts = [columns.value(name, row) for row in at.values()]
        usual = _USUAL.get(name)
        texts = ["" if text == usual or text is False else "on" if text is True else text for text in texts]
        if any(text != "" for text in texts):
            found[name] = [texts[n] for n in place.tolist()]
    return found


def _cells(x: Floats, y: Floats) -> tuple[Ints, Ints]:
    """Count the points in each cell that has any; return the counts and the first point of each."""
    number = np.zeros(len(x), dtype=np.int64)
    for values, count in zip((x, y), CELLS, strict=True):
        low, high = float(values.min()), float(values.max())
        scale = count / (high - low) if high > low else 0.0
        number = number * count + np.minimum(count - 1, ((values - low) * scale).astype(np.int64))
    _, first, counts = np.unique(number, return_index=True, return_counts=True)
    return counts, first
