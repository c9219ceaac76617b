"""Forecasts of all runs in tables of measured runs: zero-shot, calibrated, and with the whole source left out.

    python -m benchmarks.study --steps steps.parquet --dp-steps dp_steps.parquet -o study.json [--clusters DIR]

Runs are grouped by source, device and framework, data-parallel ones also by what their models read. A few runs of
several frameworks on one maker's compiler are one group. Each group is calibrated, and every run is forecast by
calibrations that have not seen it: with its configuration left out, with its model left out, and with its whole source
left out (no calibration). ``--clusters`` writes the calibrated clusters of the catalog. Finished fits are saved in a
folder beside the output, and the same command resumes from them if it was stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from traincast.calibrating.intervals import bounds, crossed
from traincast.calibrating.procedure import Calibrated, calibrate_runs
from traincast.calibrating.runs import MeasuredRun, prepare_runs
from traincast.calibrating.study import fold_numbers, held_out
from traincast.cluster import Calibration, find_node, load_device, write_calibrated
from traincast.estimate.operators.efficiency import achievable
from traincast.measured import Measured, dp_steps, source_of
from traincast.measured import steps as language_steps
from traincast.measured.table import completed
from traincast.report.outlook import UNCALIBRATED
from traincast.strategy.model_kind import model_kind
from traincast.tables import Row, read_rows, text

EXAMPLES: Final = "deep-learning-examples"
"""Who published the data-parallel steps. Groups of them are named by what their models read, and by this."""
_POOLED_BELOW: Final = 30
_REPEATED: Final = 0.8
_LOADED: Final = 0.7
"""Share of a step from which the time of loading its samples hides that of the device."""
_COLUMNS: Final = (
    "model",
    "n_gpus",
    "dp",
    "tp",
    "pp",
    "cp",
    "ep",
    "vp",
    "zero",
    "micro_batch",
    "recompute",
    "precision",
)
Entry = dict[str, Any]


def main(arguments: list[str] | None = None) -> None:
    """Make the study and write it."""
    parser = argparse.ArgumentParser(prog="benchmarks.study", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--steps", type=Path, metavar="FILE", help="measured steps of language models")
    parser.add_argument("--dp-steps", type=Path, metavar="FILE", help="measured data-parallel steps")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.json")
    parser.add_argument("--clusters", type=Path, metavar="DIR", help="write calibrated clusters into this folder")
    parser.add_argument("--curves", nargs="*", default=["llm-foundry"], help="sources whose learning curves to draw")
    given = parser.parse_args(arguments)
    if given.steps is None and given.dp_steps is None:
        parser.error("give --steps FILE, --dp-steps FILE, or both")
    study = make(given.steps, given.dp_steps, journals=given.output.with_suffix(".journals"), curves=given.curves)
    given.output.write_text(json.dumps(study["data"]), encoding="utf-8")
    if given.clusters is not None:
        write_clusters(given.clusters, study["calibrated"])  # then python -m benchmarks.clusters writes their index
    print(f"written: {given.output}")


def make(
    steps: Path | None, dp: Path | None, *, journals: Path | None = None, curves: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the study: ``data`` as plain values, ``calibrated`` the result of each group, ``runs`` and ``groups``."""
    entries: list[Entry] = []
    skipped: list[Entry] = []
    runs: list[MeasuredRun] = []
    if steps is not None:
        read = language_steps.read_timed_run
        _prepare("steps", completed(read_rows(steps, needs=())), read, source_of, runs, entries, skipped)
    if dp is not None:
        _prepare("dp-steps", read_rows(dp, needs=()), dp_steps.read_run, dp_steps.group_of, runs, entries, skipped)
    for run, entry in zip(runs, entries, strict=True):
        entry["zero_shot"] = run.simulated(Calibration())
    groups: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for i, (run, entry) in enumerate(zip(runs, entries, strict=True)):
        request = run.measured.request
        place = entry["source"] if entry["table"] == "steps" else entry.pop("publisher")
        place = entry["group"] = f"{entry['kind']}-{place}" if place == EXAMPLES else place
        groups[place, request.cluster.device.name, request.runtime.name].append(i)
    groups = together(groups, runs)
    results: dict[tuple[str, str, str], Calibrated] = {}
    for number_, (key, members) in enumerate(sorted(groups.items())):
        _say(f"calibrating {number_ + 1}/{len(groups)}: {' '.join(key)}, {len(members)} runs")
        sizes = (0, 1, 3, 5, 10, 15, 30, 40) if key[0] in curves else (0, 1, 3, 10, 30) if len(members) > 100 else ()
        journal = journals / f"{'-'.join(key)}.json".replace("/", "_") if journals else None
        if journals:
            journals.mkdir(parents=True, exist_ok=True)
        results[key] = calibrate_runs([runs[i] for i in members], curve=sizes, journal=journal)
        if key[0].endswith(EXAMPLES):
            calibration = replace(results[key].calibration, models=(entries[members[0]]["kind"],))
            results[key] = replace(results[key], calibration=calibration)
        _note(entries, members, results[key])
        _note_repeats(entries, members, runs, results[key])
    _note_intervals(entries, groups, results)
    results = _pooled(results)
    _left_out(entries)
    data = {
        "rows": entries,
        "skipped": skipped,
        "groups": [
            {"source": key[0], "device": key[1], "runtime": key[2], **result.to_dict()}
            for key, result in sorted(results.items())
        ],
    }
    return {"data": data, "calibrated": results, "runs": runs, "groups": dict(groups)}


def together(
    groups: Mapping[tuple[str, str, str], list[int]], runs: Sequence[MeasuredRun]
) -> dict[tuple[str, str, str], list[int]]:
    """Return the groups, with all runtimes of a source and device in one if each has few runs and all share a compiler.

    Frameworks of TPU, Trainium and Gaudi run on their maker's compiler, so what a calibration learns belongs to the
    device. A joined group has the name of its first runtime.
    """
    joined: dict[tuple[str, str, str], list[int]] = {}
    for key, members in groups.items():
        alike = sorted(other for other in groups if other[:2] == key[:2])
        compiled = not achievable(runs[members[0]].measured.request.cluster.device).graphics
        few = max(len(groups[other]) for other in alike) < _POOLED_BELOW
        joined.setdefault(alike[0] if compiled and few else key, []).extend(members)
    return joined


def _prepare(  # noqa: PLR0917
    table: str,
    rows: Sequence[Row],
    measure: Callable[[int, Row], Measured],
    source: Callable[[Row], str],
    runs: list[MeasuredRun],
    entries: list[Entry],
    skipped: list[Entry],
) -> None:
    made, why = prepare_runs(rows, measure, progress=_progress(table))
    for run in made:
        if run.measured.loading_s > _LOADED * run.seconds:
            why[run.measured.index] = "the loader of samples sets the time of this run, not the cluster"
            continue
        row, request = rows[run.measured.index], run.measured.request
        entry: Entry = {name: row.get(name) for name in _COLUMNS}
        entry |= {
            "table": table,
            "index": run.measured.index,
            "source": source(row),
            "family": request.graph.name.partition(":")[0],
            "device": request.cluster.device.name,
            "nodes": request.cluster.num_nodes,
            "runtime": request.runtime.name,
            "kind": model_kind(request.graph),
            "strategy": str(request.strategy),
            "moe": request.strategy.ep > 1 or any("grouped" in part and s > 0 for part, s in run.by_part.items()),
            "measured": run.seconds,
            "measured_memory": run.measured.memory_bytes,
            "predicted_memory": run.predicted_memory,
            "assumed": list(run.measured.assumed),
            "parts": {name: seconds for name, seconds in run.by_part.items() if seconds > 0.0},
        }
        if table != "steps":
            entry["publisher"] = _publisher(row)
        runs.append(run)
        entries.append(entry)
    for index, reason in why.items():
        skipped.append({"table": table, "index": index, "source": source(rows[index]), "reason": reason})


def _publisher(row: Row) -> str:
    """Return the repository that a row was published in, or the one of all rows that do not say."""
    where = text(row, "where").partition(":")[0]
    return where.rpartition("/")[2].lower() or EXAMPLES


def _note(entries: list[Entry], members: Sequence[int], result: Calibrated) -> None:
    """Add the forecasts by calibrations that had not seen a run to its entry."""
    held, by_model, kept = result.held, result.held_by_model, result.correction_kept
    for place, i in enumerate(members):
        entry = entries[i]
        entry["stall_chance"] = _plain(held.chance[place])
        for name, one in (("calibrated", held), ("unseen_model", by_model)):
            entry[name] = _plain(one.forecast(corrected=kept)[place])
            entry[f"{name}_physics"] = _plain(one.forecast(corrected=False)[place])
        factor = held.factor[place] * held.own[place] if kept else held.own_plain[place]
        usual, slow = held.usual[place] * factor, max(held.stalled[place], held.usual[place]) * factor
        entry["usual"], entry["stalled"] = _plain(usual), _plain(slow)


def _note_repeats(
    entries: list[Entry], members: Sequence[int], runs: Sequence[MeasuredRun], result: Calibrated
) -> None:
    """Add forecasts by fits that may have seen another run of the same configuration, if there are repeats."""
    kept = [runs[i] for i in members]
    configurations = {(entries[i]["strategy"], entries[i]["model"], entries[i]["n_gpus"]) for i in members}
    if len(configurations) > _REPEATED * len(members) or len(members) < 5:
        return
    held = held_out(kept, fold_numbers(kept, lambda run: run.measured.index))
    for i, seconds in zip(members, held.forecast(corrected=result.correction_kept).tolist(), strict=True):
        entries[i]["repeat_seen"] = _plain(seconds)


def _note_intervals(
    entries: list[Entry], groups: dict[tuple[str, str, str], list[int]], results: dict[tuple[str, str, str], Calibrated]
) -> None:
    """Add intervals from errors of other folds of the group; small groups of a source share their errors."""
    together: dict[tuple[str, ...], list[tuple[str, str, str]]] = defaultdict(list)
    for key in groups:
        together[key if len(groups[key]) >= _POOLED_BELOW else key[:1]].append(key)
    for keys in together.values():
        members = [i for key in keys for i in groups[key]]
        left = np.concatenate([results[k].held.left_over(corrected=results[k].correction_kept) for k in keys])
        fold = np.concatenate([results[k].held.fold for k in keys])
        known = np.isfinite(left)
        ends = np.full((len(members), 2), np.nan)
        if known.any():
            ends[known] = crossed(left[known], fold[known], otherwise=UNCALIBRATED)
        for i, (low, high) in zip(members, ends.tolist(), strict=True):
            entry = entries[i]
            chance, usual, slow = (entry[name] or 0.0 for name in ("stall_chance", "usual", "stalled"))
            entry["low"] = _plain((slow if chance > 0.95 else usual) * low)
            entry["high"] = _plain((slow if chance > 0.05 else usual) * high)


def _pooled(results: dict[tuple[str, str, str], Calibrated]) -> dict[tuple[str, str, str], Calibrated]:
    """Return the results with the interval of all groups of the source in groups that have few runs."""
    errors: dict[str, list[float]] = defaultdict(list)
    for key, result in results.items():
        for held in (result.held, result.held_by_model):
            left = held.left_over(corrected=result.correction_kept)
            errors[key[0]] += left[np.isfinite(left)].tolist()
    pooled = {}
    for key, result in results.items():
        if result.calibration.runs < _POOLED_BELOW:
            low, high = bounds(errors[key[0]], otherwise=UNCALIBRATED)
            own = result.calibration
            if own.seen and not result.moves:  # factors of models alone: their own errors are not among those above
                low, high = min(low, own.low), max(high, own.high)
            rest = 1.0 - (own.few.share if own.few else 0.0)
            pooled[key] = replace(result, calibration=replace(own, low=low**rest, high=high**rest))
        else:
            pooled[key] = result
    return pooled


def _left_out(entries: list[Entry]) -> None:
    """Add intervals for a source without calibration: from the errors of all others, with the same weight for each."""
    left = defaultdict(list)
    for entry in entries:
        left[entry["source"]].append(float(np.log(entry["measured"] / entry["zero_shot"])))
    every = {}
    for source in left:
        others = [np.quantile(values, np.linspace(0.0, 1.0, 201)) for name, values in left.items() if name != source]
        every[source] = bounds(np.concatenate(others)) if others else UNCALIBRATED
    for entry in entries:
        low, high = every[entry["source"]]
        entry["left_out_low"], entry["left_out_high"] = entry["zero_shot"] * low, entry["zero_shot"] * high
    everything = np.concatenate([np.quantile(values, np.linspace(0.0, 1.0, 201)) for values in left.values()])
    _say(f"on a cluster without calibration, 90 % of runs take {bounds(everything)} times their forecast")


def write_clusters(folder: Path, results: dict[tuple[str, str, str], Calibrated]) -> None:
    """Write each calibrated cluster as a file of the catalog."""
    for (source, device, runtime), result in sorted(results.items()):
        name = f"{device}-{runtime}-{source}".replace("_", "-")
        write_calibrated(
            folder / f"{name}.toml",
            extends=_node_of(device),
            device=device,
            calibration=result.calibration,
            name=name,
            num_nodes=result.calibration.nodes[1],
            source=f"calibrated with {result.calibration.runs} runs published by {_published(source)}; see NOTICE",
            comments={m.name: f"± {100 * m.sure:.0f} %" for m in result.moves if m.taught > 0.05},
        )


def _published(source: str) -> str:
    """Return who published the runs of a group: those of data-parallel steps are divided by kinds of models."""
    return EXAMPLES if source.endswith(EXAMPLES) else source


def _node_of(device: str) -> str:
    return find_node(load_device(device), 8, None).name


def _plain(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _progress(what: str) -> Callable[[int, int], None]:
    def show(done: int, total: int) -> None:
        if done % 200 == 0 or done == total:
            _say(f"{what}: {done}/{total}")

    return show


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
