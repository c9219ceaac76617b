"""Finished parts of a search, kept in a folder: one that was stopped goes on where it was.

Each part is one file of plain arrays, named after all that its result depends on, written beside its place and moved
there; so a file is whole or not there, and one of another search is never taken for it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Final
from zipfile import BadZipFile

import numpy as np

from traincast.errors import FileFormatError
from traincast.estimate import CostModel, LearnedCostModel
from traincast.files import make_folder, writing
from traincast.forecast import default_cost_model
from traincast.searching.columns import COLUMNS, StrategyColumns
from traincast.searching.problem import Problem, SpaceCounts, Task

VERSION: Final = 1


def _identity(model: CostModel) -> tuple[str, ...]:
    """What tells cost models apart: the kind, and all that was fitted of a learned one."""
    if not isinstance(model, LearnedCostModel):
        return (type(model).__name__,)
    fitted = [bundle.card["sha256"] for bundle in model.bundles]
    curves = [(c.card, c.weights["knot_log_seconds"].tobytes()) for c in model.collectives]
    return type(model).__name__, *fitted, hashlib.sha256(repr(curves).encode()).hexdigest()


class SearchJournal:
    """The parts of one problem that are done."""

    def __init__(self, folder: Path, problem: Problem) -> None:
        if folder.exists() and not folder.is_dir():
            raise FileFormatError(f"cannot keep parts of a search in {folder}: it is no folder; name another one")
        make_folder(folder)
        self._folder = folder
        model, request = _identity(problem.cost_model or default_cost_model()), problem.request
        self._about = repr((VERSION, request, request.graph, problem.axes, problem.most_memory, problem.reach, model))

    def _path(self, task: Task) -> Path:
        name = hashlib.sha256(f"{self._about}{task}".encode()).hexdigest()[:32]
        return self._folder / f"{name}.npz"

    def read(self, task: Task) -> tuple[StrategyColumns, SpaceCounts] | None:
        """The result of a task, if it is there and whole."""
        path = self._path(task)
        if not path.is_file():
            return None
        try:
            with np.load(path, allow_pickle=False) as found:
                start, flat = found["cut_start"].tolist(), found["cut_layers"].tolist()
                cuts = tuple(tuple(flat[a:b]) for a, b in pairwise(start))
                columns = StrategyColumns(**{name: found[name] for name in COLUMNS}, cuts=cuts)
                counts = SpaceCounts(**json.loads(str(found["counts"])))
        except (OSError, EOFError, ValueError, KeyError, TypeError, BadZipFile) as error:
            raise FileFormatError(f"{path} is damaged: take it away, and that part is searched again") from error
        return columns, counts

    def write(self, task: Task, columns: StrategyColumns, counts: SpaceCounts) -> None:
        """Keep the result of a task."""
        arrays = {name: getattr(columns, name) for name in COLUMNS}
        start = np.cumsum([0, *map(len, columns.cuts)])
        layers = np.array([n for cut in columns.cuts for n in cut], dtype=np.int64)
        with writing(self._path(task)) as file:
            np.savez(file, cut_start=start, cut_layers=layers, counts=np.array(json.dumps(asdict(counts))), **arrays)
