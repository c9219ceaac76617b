"""The inspector against its rivals, its ablations, and its transfer between settings, on the same runs.

    traincast resources simulate -o runs.csv.gz --runs 3000
    python -m benchmarks.inspector runs.csv.gz -o study.json [--parts rivals,ablations,transfer,measured]
        [--measured benchmarks/data/resource_runs.parquet]

Results of finished parts are kept in the output; the command resumes after an interruption. Seconds are processor time
of one thread.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traincast.estimate.inspector.amounts import amounts_of
from traincast.estimate.inspector.evaluate import InspectorShape, TrainedInspector
from traincast.estimate.inspector.grouping import Grouping
from traincast.files import write_json
from traincast.fitting.inspector.fit import Split, examples_of, folds, predictions, types_of
from traincast.fitting.inspector.rivals import Rival, mean_rival, trees_rival
from traincast.fitting.inspector.runs import ObservedRun, read_runs
from traincast.fitting.inspector.scores import FigureScore, by_resource, score
from traincast.fitting.inspector.train import FEWEST_RUNS, InspectorTraining, RunExamples, default_shape, train

Floats = npt.NDArray[np.float64]
PARTS: Final = ("rivals", "ablations", "grouping", "transfer")
MEMBERS: Final = 3
"""Networks of the inspector that is compared with rivals, as `fit resources` trains them; ablations have one."""
SMALL: Final = 160
"""Operators of the largest graphs in the study without grouping: without it, larger ones take hours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A way to build and train an inspector."""

    shape: InspectorShape = field(default_factory=default_shape)
    grouping: Grouping = field(default_factory=Grouping)
    config: InspectorTraining


def ablations(epochs: int) -> dict[str, Variant]:
    """Return the default inspector and others, each with one change."""
    config = InspectorTraining(epochs=epochs)
    usual = Variant(config=config)
    return {
        "default: proportional, factor 4, GRU, K = m/2, Set2Set, log targets": usual,
        "proportional, factor 2": replace(usual, grouping=Grouping(factor=2.0)),
        "proportional, factor 8": replace(usual, grouping=Grouping(factor=8.0)),
        "uniform, 10 groups": replace(usual, grouping=Grouping(method="uniform", groups=10)),
        "one group": replace(usual, grouping=Grouping(method="uniform", groups=1)),
        "GCN without GRU": replace(usual, shape=default_shape(layer="gcn")),
        "K = 1": replace(usual, shape=default_shape(depth=10.0, most_steps=1)),
        "K = m/4": replace(usual, shape=default_shape(depth=0.25)),
        "K = m": replace(usual, shape=default_shape(depth=1.0)),
        "mean read-out": replace(usual, shape=default_shape(read_out="mean")),
        "targets over their maximum": replace(usual, config=replace(config, scaling="maximum")),
        "twice as wide (64, as Driple's)": replace(usual, shape=default_shape(hidden=64)),
    }


def groupings(epochs: int) -> dict[str, Variant]:
    """Return inspectors with and without grouping, for small graphs; all take the same number of steps."""
    usual = Variant(config=InspectorTraining(epochs=epochs))
    return {
        "proportional": usual,
        "uniform": replace(usual, grouping=Grouping(method="uniform", groups=10)),
        "none": replace(usual, grouping=Grouping(method="none"), shape=default_shape(most_steps=5)),
    }


class Study:
    """Runs, and the results so far; a result that is there already is not computed again."""

    def __init__(self, runs: Sequence[ObservedRun], output: Path, *, epochs: int) -> None:
        self.runs, self.output, self.epochs = list(runs), output, epochs
        self.results: dict[str, Any] = json.loads(output.read_text()) if output.exists() else {}
        self._made: dict[tuple[Grouping, int], RunExamples] = {}

    def kept(self, name: str, make: Callable[[], Any]) -> Any:
        """Return the result ``name``; compute and save it if it is not there."""
        if name not in self.results:
            self.results[name] = make()
            write_json(self.output, self.results)
        return self.results[name]

    def examples(self, grouping: Grouping, runs: Sequence[ObservedRun]) -> RunExamples:
        """Return the examples of ``runs``, computed once."""
        key = (grouping, len(runs))
        if key not in self._made:
            self._made[key] = examples_of(runs, grouping=grouping, types=types_of(runs))
        return self._made[key]

    def inspector(self, variant: Variant, runs: Sequence[ObservedRun], fold: npt.NDArray[np.int64]) -> dict[str, Any]:
        """Train an inspector on all folds but the first; return its errors on the first, and its times."""
        examples = self.examples(variant.grouping, runs)
        began = time.process_time()
        network = train(examples.take(np.flatnonzero(fold > 0)), shape=variant.shape, config=variant.config)
        train_s = time.process_time() - began
        asked = examples.take(np.flatnonzero(fold == 0))
        began = time.process_time()
        values, patterns = predictions(network, asked)
        return {
            **figures(score(values, asked.uses.values)),
            "patterns": patterns,
            "train_s": train_s,
            "inference_s": (time.process_time() - began) / len(asked),
            "parameters": sum(weight.size for one in network.members for weight in one.values()),
        }

    def rival(self, rival: Rival, runs: Sequence[ObservedRun], fold: npt.NDArray[np.int64]) -> dict[str, Any]:
        """Return the errors of a rival on the first fold."""
        examples = self.examples(Grouping(), runs)
        learned, asked = (examples.take(np.flatnonzero(chosen)) for chosen in (fold > 0, fold == 0))
        began = time.process_time()
        values = rival(learned, asked)
        return {**figures(score(values, asked.uses.values)), "train_s": time.process_time() - began}


def figures(scores: Mapping[tuple[str, str], FigureScore]) -> dict[str, Any]:
    """Return scores as plain values, with means over the twelve figures and over those of each resource."""
    return {
        "scores": {f"{resource} {figure}": asdict(one) for (resource, figure), one in scores.items()},
        "by_resource": by_resource(scores),
        "mape": float(np.mean([one.mape for one in scores.values()])),
        "median_ape": float(np.mean([one.median_ape for one in scores.values()])),
        "nrmse": float(np.mean([one.nrmse for one in scores.values()])),
    }


def rivals(study: Study) -> None:
    """Compare the inspector with the mean and boosted trees on three ways to hold out runs."""
    splits: tuple[Split, ...] = ("models", "settings", "runs")
    for split in splits:
        fold = folds(study.runs, by=split)
        usual = Variant(config=InspectorTraining(epochs=study.epochs, members=MEMBERS))
        study.kept(f"rivals {split} mean", partial(study.rival, mean_rival, study.runs, fold))
        study.kept(f"rivals {split} inspector", partial(study.inspector, usual, study.runs, fold))
        study.kept(f"rivals {split} LightGBM", partial(study.rival, trees_rival, study.runs, fold))


def compare_ablations(study: Study) -> None:
    """Change one thing of the inspector at a time, models held out."""
    fold = folds(study.runs, by="models")
    for name, variant in ablations(study.epochs).items():
        study.kept(f"ablation {name}", partial(study.inspector, variant, study.runs, fold))


def compare_groupings(study: Study) -> None:
    """Compare groupings with none, on small graphs."""
    small = [run for run in study.runs if amounts_of(run.request.graph).operators <= SMALL]
    fold = folds(small, by="models")
    for name, variant in groupings(study.epochs).items():
        study.kept(f"grouping {name}", partial(study.inspector, variant, small, fold))


def transfer(study: Study) -> None:
    """Learn one setting from another: errors over the number of runs and over time, from nothing and adapted.

    The base knows all settings but those of the target's device or links. Targets are settings of one kind, with
    runs of other models held out.
    """
    for name, wanted in TARGET_SETTINGS.items():
        inside = np.array([wanted(run.setting) for run in study.runs])
        target = [run for run, own in zip(study.runs, inside, strict=True) if own]
        others = [run for run, own in zip(study.runs, inside, strict=True) if not own]
        fold = folds(target, by="models")
        learned, asked = np.flatnonzero(fold > 0), np.flatnonzero(fold == 0)
        types = types_of(others)
        examples = examples_of(target, grouping=Grouping(), types=types)
        rows = np.random.default_rng(0).permutation(learned)
        base: list[TrainedInspector] = []

        def pretrained(
            base: list[TrainedInspector] = base, others: list[ObservedRun] = others, types: Any = types
        ) -> Any:
            if not base:
                made = examples_of(others, grouping=Grouping(), types=types)
                base.append(train(made, config=InspectorTraining(epochs=study.epochs)))
            return base[0]

        for count in (len(rows), 2 * len(rows) // 5, len(rows) // 5, len(rows) // 10):
            if count < FEWEST_RUNS:
                continue
            some = examples.take(rows[:count])
            for way, options in WAYS.items():
                if way not in ("from nothing", "adapted: half of the steps and the head") and count < len(rows):
                    continue
                judge = partial(watched, options, some, examples.take(asked), pretrained, study)
                study.kept(f"transfer {name} | {way} | {count}", judge)


WAYS: Final[dict[str, dict[str, Any]]] = {
    "from nothing": {},
    "adapted: half of the steps and the head": {"late": 0.5},
    "adapted: the head": {"late": 0.0},
    "adapted: all steps and the head": {"late": 1.0},
    "adapted: everything": {"whole": True},
}
TARGET_SETTINGS: Final[dict[str, Callable[[str], bool]]] = {
    "five machines, 1 Gbit/s": lambda setting: setting.endswith("1G") and setting[:2].strip().isdigit(),
    "Titan RTX": lambda setting: "TitanRTX" in setting,
    "V100, one machine": lambda setting: setting[:2].strip().isdigit() and "V100" in setting and "1G" not in setting,
    "2080 Ti, 40 Gbit/s": lambda setting: "2080Ti" in setting and setting.endswith("40G"),
}


def watched(
    options: Mapping[str, Any],
    learned: RunExamples,
    asked: RunExamples,
    base: Callable[[], TrainedInspector],
    study: Study,
) -> dict[str, Any]:
    """Train, and return the mean error on ``asked`` after each epoch with the processor time until then."""
    start = base() if options else None
    curve: list[tuple[float, float]] = []
    spent = 0.0
    began = time.process_time()

    def watch(epoch: int, network: TrainedInspector) -> bool:
        nonlocal spent, began
        spent += time.process_time() - began
        values, _ = predictions(network, asked)
        logs = np.abs(np.log(values / asked.uses.values))
        curve.append((spent, float(np.nanmean(logs))))
        began = time.process_time()
        return False

    config = InspectorTraining(epochs=study.epochs, watch=watch)
    network = train(learned, config=config, start=start, **options)
    values, _ = predictions(network, asked)
    return {"runs": len(learned), "curve": curve, **figures(score(values, asked.uses.values))}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the parts of the study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--most", type=int, default=None, help="use only the first N runs")
    asked = parser.parse_args(arguments)
    runs, _ = read_runs([asked.table])
    study = Study(runs[: asked.most], asked.output, epochs=asked.epochs)
    parts = {"rivals": rivals, "ablations": compare_ablations, "grouping": compare_groupings, "transfer": transfer}
    for part in asked.parts.split(","):
        parts[part](study)


if __name__ == "__main__":
    main()
