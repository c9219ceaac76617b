"""``fit resources``: train an inspector on tables of runs, judge it on models held out, and write it as a bundle."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from traincast.ask import File, verb
from traincast.errors import RequestError, TraincastError
from traincast.estimate.bundle import check_output
from traincast.estimate.inspector.amounts import Amounts, Floats, amounts_of
from traincast.estimate.inspector.bundle import InspectorModel, inspector_path, load_inspector, save_inspector
from traincast.estimate.inspector.communities import Ints
from traincast.estimate.inspector.evaluate import TrainedInspector
from traincast.estimate.inspector.features import inputs_of
from traincast.estimate.inspector.grouping import Grouping
from traincast.estimate.inspector.targets import TARGETS
from traincast.fitting.inspector.ask import ResourceFitAsk
from traincast.fitting.inspector.rivals import mean_rival, trees_rival
from traincast.fitting.inspector.runs import ObservedRun, read_runs
from traincast.fitting.inspector.scores import FigureScore, by_resource, score, spread, uses_of_runs
from traincast.fitting.inspector.train import FEWEST_RUNS, InspectorTraining, RunExamples, train
from traincast.graph.zoo import card
from traincast.resources.inspected import setting_of

Split = Literal["models", "settings", "runs"]


def types_of(runs: Sequence[ObservedRun]) -> dict[str, float]:
    """Return the weights of the types of operators in the graphs of ``runs``, each graph counted once."""
    return type_weights({id(run.request.graph): amounts_of(run.request.graph) for run in runs}.values())


def type_weights(graphs: Iterable[Amounts]) -> dict[str, float]:
    """Return the weight of each type of operator: minus the logarithm (base 10) of its share in all ``graphs``."""
    total: Counter[str] = Counter()
    for graph in graphs:
        for kind, count in zip(graph.kind, graph.count.tolist(), strict=True):
            total[kind] += int(count)
    every = sum(total.values())
    return {kind: round(float(-np.log10(count / every)), 6) for kind, count in sorted(total.items())}


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
            inputs_of(run.request.graph, setting_of(run.request), grouping=grouping, weights=types, groups=number)
            for run, number in zip(runs, groups, strict=True)
        ],
        uses=uses_of_runs([run.uses for run in runs]),
    )


def batches_by_size(sizes: Sequence[int], batch: int) -> list[Ints]:
    """Return the numbers of the graphs of each batch: sorted by size, so that graphs of a batch are alike."""
    order = np.argsort(np.asarray(sizes), kind="stable").astype(np.int64)
    return [order[i : i + batch] for i in range(0, len(order), batch)]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceFit:
    """The result of a fit: the bundle that was written, and errors on runs that were held out.

    ``scores`` has the errors of each of the twelve figures, ``patterns`` the share of resources whose pattern was
    predicted, ``rivals`` the errors of other models on the same runs. ``held_out`` says what was held out.
    """

    bundle: Path
    model: InspectorModel
    runs: int
    held_out: str
    scores: Mapping[tuple[str, str], FigureScore]
    patterns: float
    train_s: float
    rivals: Mapping[str, Mapping[tuple[str, str], FigureScore]] = field(default_factory=dict)
    left_out: Sequence[str] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return what ``traincast fit resources --json`` prints."""
        return {
            "bundle": str(self.bundle),
            "runs": self.runs,
            "held_out": self.held_out,
            "scores": _nested(self.scores),
            "by_resource": by_resource(self.scores),
            "patterns": self.patterns,
            "train_s": self.train_s,
            "rivals": {name: _nested(scores) for name, scores in self.rivals.items()},
            "left_out": list(self.left_out),
        }


@verb(ResourceFitAsk)
def fit_resources(ask: ResourceFitAsk) -> ResourceFit:
    """Train an inspector on the runs of ``tables``, and write it to the folder ``output``.

    ``start`` is a bundle (or ``shipped``) to adapt to the setting of the tables: it keeps its grouping, and its first
    layers. One fifth of the models (whole families) is held out to judge the inspector; then it is trained again on all
    runs. A table of fewer than five families holds out single runs instead.
    """
    check_output(Path(ask.output))
    config = ask.config or InspectorTraining()
    base = None if ask.start is None else load_inspector(inspector_path(ask.start))
    runs, problems = read_runs([Path(table) for table in ask.tables])
    if ask.warn is not None and problems:
        ask.warn(problems)
    by: Split = "models" if len({family_of(run.model) for run in runs}) >= 5 else "runs"
    if len(runs) < FEWEST_RUNS:
        raise RequestError(f"{len(runs)} runs to learn from: an inspector needs at least {FEWEST_RUNS}")
    fold = folds(runs, by=by, seed=config.seed)
    known, unknown = np.flatnonzero(fold > 0), np.flatnonzero(fold == 0)
    grouping = ask.grouping or (Grouping() if base is None else base.grouping)
    if base is not None and grouping != base.grouping:
        raise RequestError("an adapted inspector keeps the grouping of its base: leave out the grouping")
    types = types_of(runs) if base is None else base.types
    examples = examples_of(runs, grouping=grouping, types=types, batch=config.batch)
    learned, asked = examples.take(known), examples.take(unknown)
    first = None if base is None else base.network
    began = time.perf_counter()
    judged = train(learned, shape=ask.shape, config=config, start=first)
    train_s = time.perf_counter() - began
    values, right = predictions(judged, asked)
    scores = score(values, asked.uses.values)
    final = train(examples, shape=ask.shape, config=config, start=first)
    model = InspectorModel(
        network=final,
        grouping=grouping,
        types=types,
        spread=spread(values, asked.uses.values),
        settings=tuple(sorted({run.setting for run in runs})),
        scores=by_resource(scores),
    )
    save_inspector(Path(ask.output), model, data=_data(ask.tables, runs, by))
    others = {"mean": mean_rival, "LightGBM": trees_rival} if ask.rivals else {}
    return ResourceFit(
        bundle=Path(ask.output),
        model=model,
        runs=len(runs),
        held_out=f"{len(unknown)} runs" + (" of other families of models" if by == "models" else ""),
        scores=scores,
        patterns=right,
        train_s=train_s,
        rivals={name: score(rival(learned, asked), asked.uses.values) for name, rival in others.items()},
        left_out=problems,
    )


def predictions(network: TrainedInspector, examples: RunExamples) -> tuple[Floats, float]:
    """Return the twelve values for every example, and the share of patterns that are right."""
    said = [network(one) for one in examples.inputs]
    patterns = np.stack([pattern for _, pattern in said])
    return np.stack([values for values, _ in said]), float((patterns == examples.uses.pattern).mean())


def _data(tables: Sequence[File], runs: Sequence[ObservedRun], by: Split) -> dict[str, Any]:
    digest = hashlib.sha256(b"".join(Path(table).read_bytes() for table in tables)).hexdigest()
    return {
        "tables": [Path(table).name for table in tables],
        "sha256": digest,
        "runs": len(runs),
        "models": len({run.model for run in runs}),
        "held_out": by,
    }


def _nested(scores: Mapping[tuple[str, str], FigureScore]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for resource, figure in TARGETS:
        if (resource, figure) in scores:
            found.setdefault(resource, {})[figure] = asdict(scores[resource, figure])
    return found
