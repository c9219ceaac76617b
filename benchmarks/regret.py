"""How much is lost by running the strategy that a search would pick, on measured runs.

    python -m benchmarks.regret DATA [--most 40] [--write]      # some minutes on one core

DATA is a folder with ``steps.parquet`` and, if they exist, ``steps_more.parquet`` and ``third/steps.parquet``. Wherever
a source measured five or more strategies of one model on the same devices with the same batch, these are forecast
without calibration, and one is picked: that with the shortest forecast (plain), or that with the least median regret
in common draws (robust), or others for comparison. The regret of a pick is how much longer it took than the best one.
A source's own runs are no evidence for its techniques. Sources that may guide choices and those that only judge are
told apart. Prints Markdown; with ``--write`` the table in docs/search.md is replaced.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from benchmarks.markers import write
from traincast.errors import TraincastError
from traincast.evidence import measured_runs, support, traits_of
from traincast.evidence.support import TECHNIQUES
from traincast.forecast import Forecast, forecast
from traincast.measured import Measured, steps
from traincast.measured.calibrations import without_calibration
from traincast.searching.sureness import drawn_seconds, median_regrets, regrets
from traincast.tables import RowError, read_rows, text

Floats = npt.NDArray[np.float64]
PAGE: Final = Path(__file__).parents[1] / "docs" / "search.md"
SOURCES: Final = Path(__file__).parent / "data" / "sources.toml"
TABLES: Final = ("steps.parquet", "steps_more.parquet", "third/steps.parquet")
FEWEST: Final = 5
"""Least number of strategies in a group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Strategies of one model on the same devices: measured seconds, and the seconds of each (column) in every draw."""

    source: str
    measured: Floats
    forecast: Floats
    drawn: Floats


def main(arguments: list[str] | None = None) -> None:
    """Make the study and print it; with ``--write``, write it into its page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--most", type=int, default=40, help="strategies of a group that are forecast at most")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args(arguments)
    print(_techniques())
    found = list(_groups(given.data, given.most))
    table = _table(found)
    print(f"\n{table}")
    if given.write:
        write(PAGE, "regret", table)


def sources(kind: str) -> set[str]:
    """Return the sources of steps that guide or judge."""
    return set(tomllib.loads(SOURCES.read_text(encoding="utf-8"))["steps"][kind])


def _techniques() -> str:
    """Return how much further from their forecasts the runs are that use a technique."""
    runs, guides = measured_runs(), sources("guide")
    error = np.log(runs["measured_s"] / runs["predicted_s"])
    keys = list(zip(runs["source"].tolist(), runs["model"].tolist(), runs["device"].tolist(), strict=True))
    kinds = runs["kind"].tolist()
    found: list[float] = []
    for technique in TECHNIQUES.values():
        used = np.asarray(technique.used(runs.__getitem__), dtype=bool)
        groups: dict[tuple[str, str, str], tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
        for n, key in enumerate(keys):
            if key[0] in guides and kinds[n] in ("language", "experts"):
                groups[key][int(used[n])].append(float(error[n]))
        by_source: dict[str, list[float]] = defaultdict(list)
        for (source, _, _), (without, having) in groups.items():
            if without and having:
                by_source[source].append(float(np.median(having) - np.median(without)))
        found += [float(np.mean(each)) for each in by_source.values()]
    differences = np.array(found)
    return (
        f"{len(found)} pairs of a source and a technique: mean {differences.mean():+.3f}, "
        f"root mean square {np.sqrt((differences**2).mean()):.3f} (logarithm)"
    )


def _groups(data: Path, most: int) -> Iterator[Group]:
    """Yield the groups of strategies that can be compared."""
    members: dict[Hashable, dict[str, list[Measured]]] = defaultdict(lambda: defaultdict(list))
    named: dict[Hashable, str] = {}
    for path in (data / name for name in TABLES):
        for index, row in enumerate(read_rows(path, needs=()) if path.is_file() else ()):
            try:
                measured = steps.read_timed_run(index, row)
            except (RowError, TraincastError):
                continue
            request = measured.request
            key = (
                text(row, "source"),
                request.graph.name,
                request.graph.tokens_per_sample,
                request.cluster.device.name,
                request.cluster.num_devices,
                request.global_batch,
                request.precision.name,
                request.runtime.name,
            )
            if measured.seconds:
                named[key] = text(row, "source")
                members[key][request.strategy.complete_text].append(measured)
    random = np.random.default_rng(0)
    for one, strategies in members.items():
        if len(strategies) < FEWEST:
            continue
        chosen = [list(strategies.values())[n] for n in sorted(random.permutation(len(strategies))[:most].tolist())]
        group = _group(named[one], chosen)
        if group is not None:
            print(f"{named[one]}: {len(group.measured)} strategies", file=sys.stderr, flush=True)
            yield group


def _group(source: str, strategies: Sequence[Sequence[Measured]]) -> Group | None:
    made: list[Forecast] = []
    seconds: list[float] = []
    lacking: list[tuple[str, ...]] = []
    runs = measured_runs()
    elsewhere = runs.of_numbers(np.flatnonzero(runs["source"] != source).tolist())
    for same in strategies:
        request = without_calibration(same[0].request)
        try:
            made.append(forecast(request))
        except TraincastError:
            continue
        seconds.append(float(np.median([each.seconds for each in same if each.seconds])))
        found = support(traits_of(request), runs=elsewhere)
        lacking.append(tuple(each.technique for each in found if not each.supported))
    if len(made) < FEWEST:
        return None
    return Group(
        source=source,
        measured=np.array(seconds),
        forecast=np.array([each.report.step_s for each in made]),
        drawn=drawn_seconds(made, without=lacking),
    )


def _high(group: Group) -> Floats:
    lost: Floats = np.quantile(group.drawn / group.drawn.min(axis=1, keepdims=True), 0.9, axis=0)
    return lost


PICKS: Final[dict[str, Callable[[Group], Floats]]] = {
    "plain: shortest forecast": lambda group: group.forecast,
    "robust: least median regret": lambda group: median_regrets(group.drawn),
    "least expected regret": lambda group: regrets(group.drawn),
    "least 90th percentile of regret": _high,
    "least expected time": lambda group: group.drawn.mean(axis=0),
}
"""What each way to pick minimizes."""


def _table(groups: Sequence[Group]) -> str:
    lines = [
        "| pick | sources | groups | mean regret | 90th percentile | mean over sources |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for kind in ("guide", "judge"):
        inside = [group for group in groups if group.source in sources(kind)]
        for name, pick in PICKS.items():
            lost = [float(g.measured[int(pick(g).argmin())] / g.measured.min() - 1.0) for g in inside]
            by_source: dict[str, list[float]] = defaultdict(list)
            for group, each in zip(inside, lost, strict=True):
                by_source[group.source].append(each)
            if lost:
                mean = float(np.mean([np.mean(found) for found in by_source.values()]))
                high = np.quantile(lost, 0.9)
                lines.append(f"| {name} | {kind}s | {len(lost)} | {np.mean(lost):.1%} | {high:.1%} | {mean:.1%} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
