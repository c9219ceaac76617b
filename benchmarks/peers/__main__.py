"""Runs the peers that are on this machine, and Traincast on the same rows."""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, get_args

import numpy as np

from benchmarks import peers
from benchmarks.markdown import percent, table
from benchmarks.markers import write
from benchmarks.peers.calculon import Calculon
from benchmarks.peers.case import MissingPeerError, NotExpressibleError, Peer
from benchmarks.peers.llm_analysis import LlmAnalysis
from benchmarks.peers.naive import Naive
from benchmarks.peers.simumax import SimuMax
from benchmarks.unseen import Role, role_of
from traincast.errors import TraincastError
from traincast.forecast import forecast
from traincast.measured import Measured, source_of, steps
from traincast.measured.calibrations import without_calibration
from traincast.measured.table import completed
from traincast.tables import RowError, read_rows

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "peers.md"
PEERS: Final[dict[str, Callable[[Path | None], Peer]]] = {
    "--calculon": Calculon,
    "--llm-analysis": LlmAnalysis,
    "--simumax": SimuMax,
}
"""What makes each peer, given the folder of its checkout; by the option that names the folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A measured step: its source and the source's role, its seconds, and Traincast's forecast of them."""

    source: str
    role: Role
    measured: Measured
    seconds: float
    forecast: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Errors of a peer and of Traincast on one row, in per cent without sign."""

    source: str
    role: Role
    peer: float
    own: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A peer, the rows that it forecast, and how many rows it could not express, by reason."""

    peer: Peer
    pairs: Sequence[Pair]
    refused: Counter[str]


def main(arguments: list[str] | None = None) -> None:
    """Compare and print; with ``--write``, write the tables into docs/peers.md."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.peers", description=peers.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="folder with tables of measured steps")
    for option in PEERS:
        parser.add_argument(option, type=Path, metavar="DIR")
    parser.add_argument("--most", type=int, default=60, metavar="ROWS", help="rows of a source that are drawn")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args(arguments)
    present = [Naive(), *found_peers({option: getattr(given, _field(option)) for option in PEERS})]
    runs = list(forecast_runs(given.data, most=given.most))
    if not runs:
        parser.error(f"no measured steps in tables named steps*.parquet below {given.data}")
    compared = [compare(peer, runs) for peer in present]
    page = text(compared, rows=len(runs), most=given.most)
    print(page)
    for made in compared:
        for reason, rows in made.refused.most_common():
            print(f"{made.peer.name}: {rows} rows left out: {reason}", file=sys.stderr)
    if given.write:
        write(PAGE, "peers", page)


def found_peers(folders: dict[str, Path | None]) -> Iterator[Peer]:
    """Yield the peers on this machine; print one line for each that is missing."""
    for option, make in PEERS.items():
        try:
            peer = make(folders.get(option))
        except MissingPeerError as error:
            print(error, file=sys.stderr)
            continue
        peer.version = commit_of(getattr(peer, "folder", None))
        yield peer


def commit_of(folder: Path | None) -> str:
    """Return the commit of a checkout; "" if it is none."""
    if folder is None or not (folder / ".git").exists():
        return ""
    asked = ["git", "-C", str(folder), "rev-parse", "--short=9", "HEAD"]
    said = subprocess.run(asked, capture_output=True, text=True, check=False)
    return said.stdout.strip()


def forecast_runs(data: Path, *, most: int) -> Iterator[Run]:
    """Yield the measured steps of all tables, at most ``most`` of a source, with Traincast's zero-shot forecasts."""
    of_source: dict[str, list[Measured]] = defaultdict(list)
    for path in sorted(data.rglob("steps*.parquet")):
        for index, row in enumerate(completed(read_rows(path, needs=()))):
            try:
                of_source[source_of(row)].append(steps.read_timed_run(index, row))
            except (RowError, TraincastError):
                continue
    for source, every in sorted(of_source.items()):
        for run in random.Random(1).sample(every, min(most, len(every))):
            try:
                made = forecast(without_calibration(run.request)).report.step_s
            except TraincastError:
                continue
            if run.seconds:
                role = role_of("steps", source)
                yield Run(source=source, role=role, measured=run, seconds=run.seconds, forecast=made)


def compare(peer: Peer, runs: Iterable[Run]) -> Compared:
    """Return the errors of a peer and of Traincast on the rows that the peer can express."""
    pairs, refused = [], Counter[str]()
    for run in runs:
        try:
            said = peer.seconds(without_calibration(run.measured.request))
        except NotExpressibleError as error:
            refused[str(error)] += 1
            continue
        errors = (100 * abs(made / run.seconds - 1) for made in (said, run.forecast))
        pairs.append(Pair(source=run.source, role=run.role, peer=next(errors), own=next(errors)))
    return Compared(peer=peer, pairs=pairs, refused=refused)


def text(compared: Sequence[Compared], *, rows: int, most: int) -> str:
    """Return the tables as Markdown: all peers by role, then each peer by source."""
    versions = ", ".join(f"{made.peer.name} {made.peer.version}".strip() for made in compared[1:]) or "none"
    parts = [
        f"Run on {datetime.now(UTC):%Y-%m-%d} at commit {commit_of(ROOT) or 'unknown'}; {rows} rows, at most {most} of "
        f"a source. Peers: {versions}. In each cell: median / mean of the errors without sign.",
        table(
            ["peer, sources", "sources", "rows", "peer", "Traincast", "ratio", "peer, all rows", "Traincast, all rows"],
            [_summary(made, role) for made in compared for role in get_args(Role) if _of_role(made, role)],
        ),
    ]
    for made in compared:
        lines = [
            [f"{source} ({role})", str(len(own)), _cell([p.peer for p in own]), _cell([p.own for p in own])]
            for (role, source), own in _by_source(made.pairs)
        ]
        parts += [f"## {made.peer.name}", table(["source", "rows", "peer", "Traincast"], lines)]
    return "\n\n".join(parts)


def weighted(pairs: Iterable[Pair], error: Callable[[Pair], float]) -> tuple[float, float]:
    """Return the mean over sources of their median and of their mean errors."""
    sources = [[error(pair) for pair in own] for _, own in _by_source(pairs)]
    return float(np.mean([np.median(own) for own in sources])), float(np.mean([np.mean(own) for own in sources]))


def _summary(made: Compared, role: str) -> list[str]:
    pairs = _of_role(made, role)
    own, theirs = weighted(pairs, lambda pair: pair.own), weighted(pairs, lambda pair: pair.peer)
    return [
        f"{made.peer.name}, {role}",
        str(len(_by_source(pairs))),
        str(len(pairs)),
        _shown(*theirs),
        _shown(*own),
        " / ".join(f"{mine / other:.2f}" for mine, other in zip(own, theirs, strict=True)),
        _cell([pair.peer for pair in pairs]),
        _cell([pair.own for pair in pairs]),
    ]


def _of_role(made: Compared, role: str) -> list[Pair]:
    return [pair for pair in made.pairs if pair.role == role]


def _by_source(pairs: Iterable[Pair]) -> list[tuple[tuple[str, str], list[Pair]]]:
    groups: dict[tuple[str, str], list[Pair]] = defaultdict(list)
    for pair in pairs:
        groups[pair.role, pair.source].append(pair)
    return sorted(groups.items())


def _cell(errors: Sequence[float]) -> str:
    return _shown(float(np.median(errors)), float(np.mean(errors)))


def _shown(median: float, mean: float) -> str:
    return f"{percent(median)} / {percent(mean)}"


def _field(option: str) -> str:
    return option.strip("-").replace("-", "_")


if __name__ == "__main__":
    main()
