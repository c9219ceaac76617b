"""Whether runs lower the doubt about other runs as much as ``traincast next`` says.

    python -m benchmarks.doubt_left DATA [--write]      # some minutes on one core

DATA is a folder with ``steps.parquet`` and, if they exist, ``steps_more.parquet`` and ``third/steps.parquet``. Runs of
one source, model and device form a group. A few runs of a group are seen; the worlds are conditioned on them, and the
others are forecast anew and compared with what was measured. Every source has the same weight. The doubt that is left
is the spread of these errors: 1.48 times their median size, which a few stalled runs do not rule. Prints Markdown; with
``--write`` the table in docs/search.md is replaced.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.markers import write
from benchmarks.regret import PAGE, TABLES, sources
from traincast.errors import TraincastError
from traincast.forecast import forecast
from traincast.measured import Measured, steps
from traincast.measured.calibrations import without_calibration
from traincast.searching.sureness import REPEATS
from traincast.searching.worlds import DrawnStep, Seen, Worlds, step_of
from traincast.tables import RowError, read_rows, text

SEEN: Final = (0, 1, 3)
"""Numbers of runs that are seen."""
FEWEST: Final = 5
MOST_ROWS: Final = 8
MOST_GROUPS: Final = 3
"""Fewest runs of a group, and the most runs of a group and groups of a source that are forecast."""
SETS: Final = 6
"""Sets of seen runs that are tried for each group."""


@dataclass(frozen=True, slots=True)
class Run:
    """A forecast step with its unknowns, and how far the measured one was from its median (logarithm)."""

    step: DrawnStep
    away: float


@dataclass(frozen=True, slots=True)
class Told:
    """The doubt that was said to be left about a run, and the error that was left."""

    source: str
    said: float
    error: float


def main(arguments: list[str] | None = None) -> None:
    """Make the study and print it; with ``--write``, write it into its page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args(arguments)
    groups = list(_groups(given.data))
    found = {count: [told for source, runs in groups for told in _told(source, runs, count)] for count in SEEN}
    table = _table(found)
    print(table)
    if given.write:
        write(PAGE, "doubt", table)


def _groups(data: Path) -> Iterator[tuple[str, list[Run]]]:
    """Yield groups of runs, a sample of each source."""
    members: dict[tuple[str, str, str], list[Measured]] = defaultdict(list)
    for path in (data / name for name in TABLES):
        for index, row in enumerate(read_rows(path, needs=()) if path.is_file() else ()):
            try:
                measured = steps.read_timed_run(index, row)
            except (RowError, TraincastError):
                continue
            if measured.seconds:
                request = measured.request
                members[text(row, "source"), request.graph.name, request.cluster.device.name].append(measured)
    random, taken = np.random.default_rng(0), defaultdict[Hashable, int](int)
    for (source, _, _), rows in members.items():
        if len(rows) < FEWEST or taken[source] == MOST_GROUPS:
            continue
        taken[source] += 1
        chosen = [rows[n] for n in sorted(random.permutation(len(rows))[:MOST_ROWS].tolist())]
        found = list(_runs(chosen))
        if len(found) >= FEWEST:
            print(f"{source}: {len(found)} runs", file=sys.stderr, flush=True)
            yield source, found


def _runs(rows: Sequence[Measured]) -> Iterator[Run]:
    for row in rows:
        try:
            step = step_of(forecast(without_calibration(row.request)))
        except TraincastError:
            continue
        assert row.seconds is not None
        yield Run(step, math.log(row.seconds) - step.median)


def _told(source: str, runs: Sequence[Run], count: int) -> Iterator[Told]:
    """Yield the doubt and the error of runs after ``count`` others of their group were seen."""
    random = np.random.default_rng(1)
    for _ in range(SETS if count else 1):
        order = random.permutation(len(runs)).tolist()
        shown, others = [runs[n] for n in order[:count]], [runs[n] for n in order[count:]]
        seen = [
            Seen(effects={name: e for name, e in run.step.effects.items() if name[0] != "repeats"}, noise=REPEATS)
            for run in shown
        ]
        for run in others:
            known = Worlds([run.step])
            expected = known.mean(0, seen, [each.away for each in shown]) - run.step.median if seen else 0.0
            yield Told(source, known.spread(0, seen), run.away - expected)


def _table(found: dict[int, list[Told]]) -> str:
    lines = [
        "| runs seen | sources | number of sources | doubt said | doubt left | left / said |",
        "| ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    for kind in ("guide", "judge"):
        for count, every in found.items():
            by_source: dict[str, list[Told]] = defaultdict(list)
            for told in every:
                if told.source in sources(kind):
                    by_source[told.source].append(told)
            if not by_source:
                continue
            said = float(np.median([np.median([t.said for t in each]) for each in by_source.values()]))
            left = float(np.median([1.4826 * np.median([abs(t.error) for t in each]) for each in by_source.values()]))
            lines.append(f"| {count} | {kind}s | {len(by_source)} | {said:.1%} | {left:.1%} | {left / said:.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
