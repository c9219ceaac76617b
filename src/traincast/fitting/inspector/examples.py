"""Examples from runs: the number of groups of each graph, its input, and parts that hold out models or settings."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from traincast.errors import TraincastError
from traincast.fitting.inspector.runs import ObservedRun
from traincast.fitting.inspector.train import RunExamples
from traincast.graph.zoo import card
from traincast.resources.inspector.amounts import amounts_of, type_weights
from traincast.resources.inspector.communities import Ints
from traincast.resources.inspector.features import inputs_of
from traincast.resources.inspector.grouping import Grouping, batches_by_size
from traincast.resources.inspector.targets import uses_of_runs

Split = Literal["models", "settings", "runs"]


def types_of(runs: Sequence[ObservedRun]) -> dict[str, float]:
    """Return the weights of the types of operators in the graphs of ``runs``, each graph counted once."""
    return type_weights({id(run.request.graph): amounts_of(run.request.graph) for run in runs}.values())


def examples_of(
    runs: Sequence[ObservedRun], *, grouping: Grouping, types: Mapping[str, float], batch: int = 32
) -> RunExamples:
    """Return the examples of ``runs``; with proportional grouping, batches of similar graphs share their number."""
    sizes = [amounts_of(run.request.graph).operators for run in runs]
    groups = [0] * len(runs)
    for rows in batches_by_size(sizes, batch):
        number = grouping.number(float(np.mean([sizes[row] for row in rows.tolist()])))
        for row in rows.tolist():
            groups[row] = number
    return RunExamples(
        inputs=[
            inputs_of(run.request, grouping=grouping, weights=types, groups=number)
            for run, number in zip(runs, groups, strict=True)
        ],
        uses=uses_of_runs([run.uses for run in runs]),
    )


def family_of(model: str) -> str:
    """Return the family of a model: models of one family are too alike for one to be unseen when another is known."""
    try:
        return card(model).family
    except TraincastError:
        return model.partition(":")[0]


def folds(runs: Sequence[ObservedRun], *, by: Split, number: int = 5, seed: int = 0) -> Ints:
    """Return the fold of each run: all runs of one family, of one setting, or single runs fall into the same fold."""
    keys = [
        {"models": family_of(run.model), "settings": run.setting, "runs": f"{index}"}[by]
        for index, run in enumerate(runs)
    ]
    mixed = {key: hashlib.sha256(f"{seed} {key}".encode()).digest() for key in set(keys)}
    order = {key: place for place, key in enumerate(sorted(mixed, key=lambda key: mixed[key]))}
    return np.array([order[key] % number for key in keys], dtype=np.int64)
