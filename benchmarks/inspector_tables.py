"""The tables of docs/inspector.md, from the results of ``benchmarks.inspector`` and ``benchmarks.inspector_measured``.

python -m benchmarks.inspector_tables study.json [--measured measured.json]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.markers import write
from traincast.estimate.inspector.targets import TARGETS
from traincast.estimate.resource_use import RESOURCES

PAGE: Final = Path(__file__).parents[1] / "docs" / "inspector.md"
ORDER: Final = ("timeline", "adapted inspector", "inspector", "LightGBM", "mean")
WORDS: Final = {"burst_amount": "amount", "burst_s": "burst", "idle_s": "pause"}
PAPER: Final = {
    "uniform": "−12 % against none",
    "proportional": "−46 % against none",
}
"""Changes of the NRMSE that the paper reports."""
Result = Mapping[str, Any]


def twelve(results: Mapping[str, Result]) -> Iterator[str]:
    """Yield the lines of a table: one row per figure, one column per predictor; mean and median error and NRMSE."""
    names = [name for name in ORDER if name in results]
    yield "| resource | figure | runs | " + " | ".join(names) + " |"
    yield "|---|---|---|" + "---|" * len(names)
    for resource, figure in TARGETS:
        key = f"{resource} {figure}"
        found = [results[name]["scores"].get(key) for name in names]
        if found[0] is None:
            continue
        least = min(one["mape"] for one in found)
        cells = [f"{_strong(one['mape'], least)} ({one['median_ape']:.0f}; {one['nrmse']:.3f})" for one in found]
        yield f"| {resource} | {WORDS[figure]} | {found[0]['n']} | " + " | ".join(cells) + " |"
    for resource in RESOURCES:
        each = [results[name]["by_resource"][resource] for name in names]
        yield f"| {resource} | mean of three | | " + " | ".join(_strong(one, min(each)) for one in each) + " |"
    wins = [_wins(results, name, names) for name in names]
    yield "| | best of twelve | | " + " | ".join(str(count) for count in wins) + " |"


def _strong(value: float, least: float) -> str:
    text = f"{value:.0f} %" if value >= 9.95 else f"{value:.1f} %"
    return f"**{text}**" if value <= least else text


def _wins(results: Mapping[str, Result], name: str, names: Sequence[str]) -> int:
    keys = [f"{resource} {figure}" for resource, figure in TARGETS]
    keys = [key for key in keys if key in results[name]["scores"]]
    return sum(min(names, key=lambda other: results[other]["scores"][key]["mape"]) == name for key in keys)


def measured(results: Mapping[str, Any]) -> str:
    """Return the section on measured runs."""
    lines = [f"{results['runs']} runs; mean error (median error; NRMSE). Figures in bold are the least of a row.", ""]
    lines += twelve(results["compared"])
    lines += ["", f"The timeline has the right pattern in {results['patterns']:.0%} of all cases."]
    return "\n".join(lines)


def rivals(results: Mapping[str, Any]) -> str:
    """Return the section on rivals: a table for models left out, and a summary of the three ways to hold out."""
    lines = ["Models left out; mean error (median error; NRMSE):", ""]
    lines += twelve({name: results[f"rivals models {name}"] for name in ("inspector", "LightGBM", "mean")})
    lines += ["", "| held out | predictor | mean error | mean of medians | mean NRMSE | training, s of one core |"]
    lines += ["|---|---|---|---|---|---|"]
    for split in ("models", "settings", "runs"):
        for name in ("inspector", "LightGBM", "mean"):
            one = results.get(f"rivals {split} {name}")
            if one:
                lines.append(
                    f"| {split} | {name} | {one['mape']:.0f} % | {one['median_ape']:.0f} % | {one['nrmse']:.3f} | "
                    f"{one['train_s']:.1f} |"
                )
    return "\n".join(lines)


def ablations(results: Mapping[str, Any]) -> str:
    """Return the section on ablations, and the one on groupings of small graphs."""
    named = {key.removeprefix("ablation "): one for key, one in results.items() if key.startswith("ablation ")}
    base = next(iter(named.values()))
    lines = [
        "| inspector | mean of medians | mean NRMSE | against the default | training, s of one core | ms per graph |",
        "|---|---|---|---|---|---|",
    ]
    for name, one in named.items():
        change = one["nrmse"] / base["nrmse"] - 1.0
        lines.append(
            f"| {name} | {one['median_ape']:.0f} % | {one['nrmse']:.3f} | {change:+.0%} | {one['train_s']:.0f} | "
            f"{1e3 * one['inference_s']:.1f} |"
        )
    groups = {key.removeprefix("grouping "): one for key, one in results.items() if key.startswith("grouping ")}
    if "none" in groups:
        lines += ["", "Groupings, on graphs of at most 160 stored operators:", ""]
        lines += ["| grouping | mean of medians | mean NRMSE | NRMSE against none | Driple | training, s of one core |"]
        lines += ["|---|---|---|---|---|---|"]
        for name, one in groups.items():
            change = one["nrmse"] / groups["none"]["nrmse"] - 1.0
            lines.append(
                f"| {name} | {one['median_ape']:.0f} % | {one['nrmse']:.3f} | {change:+.0%} | {PAPER.get(name, '')} | "
                f"{one['train_s']:.0f} |"
            )
    return "\n".join(lines)


def transfer(results: Mapping[str, Any]) -> str:
    """Return the section on transfer: errors by number of runs, and the time to reach the error from nothing."""
    found: dict[str, dict[tuple[str, int], Result]] = {}
    for key, one in results.items():
        if key.startswith("transfer "):
            name, way, runs = key.removeprefix("transfer ").split(" | ")
            found.setdefault(name, {})[way, int(runs)] = one
    lines = [
        "| target | training | runs | error at the end | seconds of one core | seconds to the error from nothing |",
        "|---|---|---|---|---|---|",
    ]
    for name, ways in found.items():
        most = max(count for _, count in ways)
        goal = ways["from nothing", most]["curve"][-1][1]
        for (way, count), one in ways.items():
            curve = one["curve"]
            when = next((seconds for seconds, error in curve if error <= goal * 1.0001), None)
            reached = "not reached" if when is None else f"{when:.2f}"
            lines.append(f"| {name} | {way} | {count} | {curve[-1][1]:.3f} | {curve[-1][0]:.1f} | {reached} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the tables for which there are results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, nargs="*")
    parser.add_argument("--measured", type=Path)
    asked = parser.parse_args(arguments)
    results: dict[str, Any] = {}
    for path in asked.study:
        results |= json.loads(path.read_text())
    if any(key.startswith("rivals models") for key in results):
        write(PAGE, "rivals", rivals(results))
    if any(key.startswith("ablation ") for key in results):
        write(PAGE, "ablations", ablations(results))
    if any(key.startswith("transfer ") for key in results):
        write(PAGE, "transfer", transfer(results))
    if asked.measured:
        write(PAGE, "measured", measured(json.loads(asked.measured.read_text())))


if __name__ == "__main__":
    main()
