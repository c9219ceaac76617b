"""Whether stated probabilities hold: of meeting a deadline, and of being the better of two GPUs, scales or strategies.

    python -m benchmarks.chances DATA [--write]      # about ten minutes on one core

DATA is a folder with ``steps.parquet``, ``dp_steps.parquet`` and, if they exist, ``steps_more.parquet`` and
``dp_steps_more.parquet``. Measured runs are forecast twice: without calibration, and with the calibrated cluster of the
catalog. The latter was fitted to most runs of the first two tables, so its figures there are too good; it has not seen
the runs of the other two, which were gathered later. Two runs are compared by their device-seconds per sample, which a
search draws for both. Prints Markdown; with ``--write`` the tables in docs/search.md are replaced.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from benchmarks.markers import write
from traincast.errors import TraincastError
from traincast.forecast import Forecast, forecast
from traincast.measured import Measured, dp_steps, steps
from traincast.measured.calibrations import with_calibration, without_calibration
from traincast.searching.odds import odds
from traincast.searching.sureness import Draws
from traincast.strategy import Request
from traincast.tables import Row, RowError, read_rows, text

Floats = npt.NDArray[np.float64]
PAGE: Final = Path(__file__).parents[1] / "docs" / "search.md"
DRAWS: Final = 256
MOST_RUNS: Final = 150
"""The most runs of one source, device and runtime that are forecast, drawn at random."""
MOST_PAIRS: Final = 12
"""The most pairs of one source, model and runtime that are compared, drawn at random."""
STATED: Final = (0.05, 0.1, 0.25, 0.5, 0.75, 0.8, 0.9, 0.95)
BINS: Final = ((0.5, 0.6), (0.6, 0.7), (0.7, 0.8), (0.8, 0.9), (0.9, 0.97), (0.97, 1.0001))
KINDS: Final = {"device": "two GPUs", "scale": "two scales", "strategy": "two strategies"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A measured step, its forecast without and with calibration, and whether calibration may have seen it."""

    source: str
    seen: bool
    seconds: float
    plain: Forecast
    known: Forecast | None

    @property
    def request(self) -> Request:
        """The request that was run."""
        return self.plain.request

    @property
    def group(self) -> Hashable:
        """Runs with the same source, device and runtime have the same group."""
        return self.source, self.request.cluster.device.name, self.request.runtime.name

    @property
    def task(self) -> Hashable:
        """Runs that trained the same model with the same framework have the same task."""
        r = self.request
        return self.source, r.graph.name, r.graph.tokens_per_sample, r.precision.name, r.runtime.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two runs: the probability that the first takes fewer device-seconds per sample, whether it did, and the quantile
    of the measured ratio among the drawn ones.
    """

    kind: str
    chance: float
    first: bool
    quantile: float


def main(arguments: list[str] | None = None) -> None:
    """Make the study and print it; with ``--write``, write it into its page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args(arguments)
    runs = list(_runs(given.data))
    tables = {"deadlines": _deadlines(runs), "pairs": _pairs_table(runs)}
    for name, table in tables.items():
        print(f"\n{table}")
        if given.write:
            write(PAGE, name, table)


def _runs(data: Path) -> Iterator[Run]:
    """Yield the forecast runs of all tables that exist."""
    random = np.random.default_rng(0)
    for name, read in (
        ("steps", steps.read_timed_run),
        ("steps_more", steps.read_timed_run),
        ("dp_steps", dp_steps.read_run),
        ("dp_steps_more", dp_steps.read_run),
    ):
        path = data / f"{name}.parquet"
        if not path.is_file():
            continue
        groups: dict[Hashable, list[tuple[str, Measured]]] = defaultdict(list)
        for source, measured in _readable(read_rows(path, needs=()), read, name):
            request = measured.request
            groups[source, request.cluster.device.name, request.runtime.name].append((source, measured))
        for members in groups.values():
            chosen = random.permutation(len(members))[:MOST_RUNS]
            for n in sorted(chosen.tolist()):
                made = _forecast(*members[n], seen=not name.endswith("_more"))
                if made is not None:
                    yield made


def _readable(rows: Sequence[Row], read: Callable[[int, Row], Measured], name: str) -> Iterator[tuple[str, Measured]]:
    for index, row in enumerate(rows):
        try:
            measured = read(index, row)
        except (RowError, TraincastError):
            continue
        if measured.seconds:
            yield (text(row, "source") if name.startswith("steps") else dp_steps.group_of(row)), measured


def _forecast(source: str, measured: Measured, *, seen: bool) -> Run | None:
    assert measured.seconds is not None
    request = without_calibration(measured.request)
    taught = with_calibration(request)
    try:
        plain = forecast(request)
        known = forecast(taught) if taught.cluster.calibration else None
    except TraincastError as error:
        print(f"left out: {source} {measured.index}: {error}", file=sys.stderr)
        return None
    return Run(source=source, seen=seen, seconds=measured.seconds, plain=plain, known=known)


def _deadlines(runs: Sequence[Run]) -> str:
    """Return the shares of runs that met a deadline of each probability; every group has the same weight."""
    columns = {
        "not calibrated": [(r, r.plain) for r in runs],
        "not calibrated, gathered later": [(r, r.plain) for r in runs if not r.seen],
        "calibrated with them": [(r, r.known) for r in runs if r.known and r.seen],
        "calibrated with others": [(r, r.known) for r in runs if r.known and not r.seen],
    }
    reached = {name: _reached(members) for name, members in columns.items() if members}
    lines = ["| chance stated | " + " | ".join(f"{n} ({len(columns[n])} runs)" for n in reached) + " |"]
    lines.append("| ---: |" + " ---: |" * len(reached))
    for n, stated in enumerate(STATED):
        lines.append(f"| {stated:.0%} | " + " | ".join(f"{found[n]:.0%}" for found in reached.values()) + " |")
    return "\n".join(lines)


def _reached(members: Sequence[tuple[Run, Forecast]]) -> list[float]:
    counts: dict[Hashable, int] = defaultdict(int)
    for run, _ in members:
        counts[run.group] += 1
    weights = np.array([1.0 / counts[run.group] for run, _ in members])
    chances = []
    for run, made in members:
        report, calibrated = made.report, made.request.cluster.calibration is not None
        likely = odds(report.step_s, report.low_s, report.high_s, calibrated=calibrated)
        chances.append(likely.chance(run.seconds))
    found = np.array(chances)
    return [float(np.average(found <= stated, weights=weights)) for stated in STATED]


def _pairs_table(runs: Sequence[Run]) -> str:
    """Return how often the more likely of two runs was the better one, by its probability."""
    by_task: dict[Hashable, list[Run]] = defaultdict(list)
    for run in runs:
        by_task[run.task].append(run)
    chosen = list(_chosen(by_task))
    plain = _compared(chosen, lambda run: run.plain)
    known = _compared([p for p in chosen if p[1].known and p[2].known], lambda run: run.known)
    lines = [
        "| | likelier one's chance | pairs | mean chance | it was better | | pairs | mean chance | it was better |"
    ]
    lines.append("| --- | --- | ---: | ---: | ---: | --- | ---: | ---: | ---: |")
    for kind, name in KINDS.items():
        for low, high in BINS:
            cells = [_bin([p for p in found if p.kind == kind], low, high) for found in (plain, known)]
            lines.append(f"| {name} | {low:.0%} to {min(high, 1.0):.0%} | {cells[0]} | | {cells[1]} |")
        cells = [_whole([p for p in found if p.kind == kind]) for found in (plain, known)]
        lines.append(f"| **{name}** | **all: pairs, Brier score, ratio inside its 90 %** | {cells[0]} | | {cells[1]} |")
    return "\n".join(lines)


def _chosen(by_task: dict[Hashable, list[Run]]) -> Iterator[tuple[str, Run, Run]]:
    """Yield pairs of runs of one task with what they differ in, a sample of each kind."""
    random = np.random.default_rng(0)
    for members in by_task.values():
        found: dict[str, list[tuple[Run, Run]]] = defaultdict(list)
        order = [members[n] for n in random.permutation(len(members)).tolist()]
        for a, b in combinations(order, 2):
            kind = _kind(a.request, b.request)
            if kind:
                found[kind].append((a, b))
        for kind, pairs in found.items():
            for n in random.permutation(len(pairs))[:MOST_PAIRS].tolist():
                yield kind, *pairs[n]


def _kind(a: Request, b: Request) -> str:
    same_device = a.cluster.device.name == b.cluster.device.name
    same_number = a.cluster.num_devices == b.cluster.num_devices
    if not same_device:
        return "device" if same_number else ""
    if not same_number:
        return "scale"
    return "strategy" if a.global_batch == b.global_batch and a.strategy != b.strategy else ""


def _compared(chosen: Sequence[tuple[str, Run, Run]], made: Callable[[Run], Forecast | None]) -> list[Pair]:
    draws = Draws(DRAWS, 0)
    kept: dict[int, Floats] = {}

    def drawn(run: Run) -> Floats:
        if id(run) not in kept:
            found = made(run)
            assert found is not None
            kept[id(run)] = draws.seconds(found)
        return kept[id(run)]

    result = []
    for kind, a, b in chosen:
        per_sample = [r.request.cluster.num_devices / r.request.global_batch for r in (a, b)]
        ratio = drawn(a) * per_sample[0] / (drawn(b) * per_sample[1])
        real = a.seconds * per_sample[0] / (b.seconds * per_sample[1])
        result.append(
            Pair(kind=kind, chance=float((ratio < 1).mean()), first=real < 1, quantile=float((ratio < real).mean()))
        )
    return result


def _likelier(pairs: Sequence[Pair]) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Return the probability of the more likely run of each pair, and whether it was the better one."""
    chance, first = np.array([p.chance for p in pairs]), np.array([p.first for p in pairs], dtype=bool)
    return np.maximum(chance, 1.0 - chance), np.where(chance >= 0.5, first, ~first)


def _bin(pairs: Sequence[Pair], low: float, high: float) -> str:
    chance, better = _likelier(pairs)
    inside = (chance >= low) & (chance < high)
    if not inside.any():
        return "0 | | "
    return f"{int(inside.sum())} | {chance[inside].mean():.0%} | {better[inside].mean():.0%}"


def _whole(pairs: Sequence[Pair]) -> str:
    if not pairs:
        return "0 | | "
    chance, better = _likelier(pairs)
    covered = np.mean([0.05 <= p.quantile <= 0.95 for p in pairs])
    return f"**{len(pairs)}** | **{np.mean((chance - better) ** 2):.3f}** | **{covered:.0%}**"


if __name__ == "__main__":
    main()
