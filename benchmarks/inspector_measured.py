"""Predictors of resource use on measured runs of the testbed: every run by those that saw no model of its family.

    python -m benchmarks.inspector_measured benchmarks/data/resource_runs.parquet -o measured.json [--base BUNDLE]

Compares the simulated timeline, the mean, boosted trees, an inspector trained on the other folds, and with ``--base``
one that was trained on simulated runs and adapted to the other folds. Forecasts are kept in the output; the command
resumes after an interruption.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from benchmarks.inspector import figures
from traincast.estimate.inspector.bundle import load_inspector
from traincast.estimate.inspector.grouping import Grouping
from traincast.estimate.resource_use import RESOURCES, ResourceUse
from traincast.files import write_json
from traincast.fitting.inspector.fit import examples_of, folds, predictions, types_of
from traincast.fitting.inspector.make import simulated_uses
from traincast.fitting.inspector.rivals import mean_rival, trees_rival
from traincast.fitting.inspector.runs import ObservedRun, observed_run
from traincast.fitting.inspector.scores import score, uses_of_runs
from traincast.fitting.inspector.train import InspectorTraining, train
from traincast.tables import read_rows

Floats = npt.NDArray[np.float64]
FOLDS: Final = 5
TESTBED: Final = "testbed.toml"
"""The node of the testbed, beside this table; the rows replace its device and its link."""


def measured_runs(path: Path) -> list[ObservedRun]:
    """Return the runs of a table of ``benchmarks.resource_table``."""
    found = []
    for row in read_rows(path, needs=("spec", "strategy", "device", "rate_bytes_per_s", "workers")):
        described = {
            **row,
            "model": row["spec"],
            "cluster": f"{TESTBED}:{row['workers']}",
            "link_bytes_s": row["rate_bytes_per_s"],
            "precision": "fp32",
            "runtime": "gloo",
            "setting": f"{row['workers']} workers, {row['servers']} servers, {row['device']}",
        }
        found.append(observed_run(described, beside=Path(__file__).parent / "data"))
    return found


def timeline_uses(runs: Sequence[ObservedRun], kept: dict[str, Any], output: Path) -> list[dict[str, ResourceUse]]:
    """Return the uses of the simulated timeline of each run; those already in ``kept`` are not simulated again."""
    found = []
    for run in runs:
        key = f"{run.model} {run.request.strategy} {run.setting} {run.request.global_batch} {run.step_s:.6g}"
        if key not in kept.setdefault("forecasts", {}):
            uses, step_s = simulated_uses(run.request)
            kept["forecasts"][key] = {"step_s": step_s, **{name: asdict(use) for name, use in uses.items()}}
            write_json(output, kept)
        found.append({name: ResourceUse(**kept["forecasts"][key][name]) for name in RESOURCES})
    return found


def compare(runs: Sequence[ObservedRun], *, epochs: int, base: Path | None, said: Floats) -> dict[str, Any]:
    """Return the errors of every predictor on all runs; ``said`` are the values of the timeline."""
    fold = folds(runs, by="models", number=FOLDS)
    training = InspectorTraining(epochs=epochs)
    given = load_inspector(base) if base else None
    grouping = given.grouping if given else Grouping()
    examples = examples_of(runs, grouping=grouping, types=given.types if given else types_of(runs))
    values = {name: np.full_like(said, np.nan) for name in ("mean", "LightGBM", "inspector", "adapted inspector")}
    for number in range(FOLDS):
        known, unknown = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        learned, asked = examples.take(known), examples.take(unknown)
        values["mean"][unknown] = mean_rival(learned, asked)
        values["LightGBM"][unknown] = trees_rival(learned, asked)
        values["inspector"][unknown] = predictions(train(learned, config=training), asked)[0]
        if given:
            adapted = train(learned, config=training, start=given.network)
            values["adapted inspector"][unknown] = predictions(adapted, asked)[0]
    values["timeline"] = said
    real = examples.uses.values
    return {name: figures(score(one, real)) for name, one in values.items() if np.isfinite(one).any()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare predictors on measured runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--base", type=Path)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--most", type=int, default=None, help="use only the first N runs")
    asked = parser.parse_args(arguments)
    kept: dict[str, Any] = json.loads(asked.output.read_text()) if asked.output.exists() else {}
    runs = measured_runs(asked.table)[: asked.most]
    columns = uses_of_runs(timeline_uses(runs, kept, asked.output))
    kept["runs"] = len(runs)
    kept["compared"] = compare(runs, epochs=asked.epochs, base=asked.base, said=columns.values)
    kept["patterns"] = float((columns.pattern == uses_of_runs([run.uses for run in runs]).pattern).mean())
    write_json(asked.output, kept)


if __name__ == "__main__":
    main()
