"""Journals of searches: one file in a folder for each problem, with the results of its finished parts."""

from __future__ import annotations

import hashlib
import inspect
import json
import pickle
import secrets
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import asdict
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from traincast.errors import FileFormatError
from traincast.estimate import CostModel, LearnedCostModel
from traincast.files import make_folder
from traincast.forecast import default_cost_model
from traincast.journal import Journal, key_of
from traincast.searching.bulk.columns import COLUMNS, StrategyColumns
from traincast.searching.problem import Problem, SpaceCounts, Task


def search_journal(folder: Path, problem: Problem) -> Journal:
    """Open the journal of ``problem`` in ``folder``, which is created if it does not exist.

    The file name is a digest of everything that the results depend on: the request with its model, cluster and runtime,
    the space, the limits, the cost model with its fitted parameters, and the code of this version. Many searches can
    share a folder, and none reads the results of another.
    """
    if folder.exists() and not folder.is_dir():
        raise FileFormatError(f"cannot save finished parts in {folder}: it is not a folder; name a folder")
    make_folder(folder)
    model = identity_of(problem.cost_model or default_cost_model())
    key = key_of(problem.request, problem.axes, problem.most_memory, problem.reach, problem.lean, model)
    return Journal(folder / f"{key[:32]}.journal", kind="a search", key=key)


def part_name(task: Task) -> str:
    """Return the name of a task in a journal."""
    return repr(task)


def to_json(columns: StrategyColumns, counts: SpaceCounts) -> dict[str, Any]:
    """Return the result of a task as plain values; the arrays become the bytes of a NumPy file, in base 64."""
    arrays = {name: getattr(columns, name) for name in COLUMNS}
    start = np.cumsum([0, *map(len, columns.cuts)])
    layers = np.array([n for cut in columns.cuts for n in cut], dtype=np.int64)
    file = BytesIO()
    np.savez(file, cut_start=start, cut_layers=layers, **arrays)
    return {"arrays": b64encode(file.getvalue()).decode(), "counts": asdict(counts)}


def from_json(value: Any, path: Path | None) -> tuple[StrategyColumns, SpaceCounts]:
    """Return the result from the plain values of :func:`to_json`; an error names ``path``, the journal."""
    try:
        with np.load(BytesIO(b64decode(value["arrays"], validate=True)), allow_pickle=False) as found:
            start, flat = found["cut_start"].tolist(), found["cut_layers"].tolist()
            cuts = tuple(tuple(flat[a:b]) for a, b in pairwise(start))
            columns = StrategyColumns(**{name: found[name] for name in COLUMNS}, cuts=cuts)
        return columns, SpaceCounts(**value["counts"])
    except (OSError, EOFError, ValueError, KeyError, TypeError, BadZipFile) as error:
        raise FileFormatError(f"{path} is damaged: delete it, and its parts are searched again") from error


def identity_of(model: CostModel) -> tuple[object, ...]:
    """Return what identifies a cost model: its class, the source of the class, and all fitted and set parameters.

    A cost model without a source file, or one that cannot be pickled, gets a new identity each time. A search with it
    never resumes.
    """
    kind = type(model)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(model, LearnedCostModel):
        fitted = [bundle.card["sha256"] for bundle in model.bundles]
        curves = [(_digest(c.weights), c.card, c.given) for c in model.collectives]
        return name, fitted, curves, model.framework, model.given, identity_of(model.otherwise)
    try:
        source, state = inspect.getsource(kind), pickle.dumps(model)
    except (OSError, TypeError, AttributeError, pickle.PicklingError):
        return name, secrets.token_hex()
    return name, source, hashlib.sha256(state).hexdigest()


def _digest(arrays: Mapping[str, Any]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(json.dumps([name, str(arrays[name].dtype), arrays[name].shape]).encode())
        digest.update(arrays[name].tobytes())
    return digest.hexdigest()
