"""Every (source, operator, phase) of a table of measured operators, before and after a change: what became worse.

    python -m benchmarks.cells DATA                     # against the figures in benchmarks/data/operator_cells.csv
    python -m benchmarks.cells DATA --base COMMIT       # against the code and the bundle of a commit
    python -m benchmarks.cells DATA --base FOLDER       # against another bundle, with the code of today
    python -m benchmarks.cells DATA --write             # write the figures of the shipped bundle

DATA is ``operators.parquet``, or a folder that has it. Rows are estimated as ``traincast validate operators`` does, by
the cell that their framework, device and dtype lead to: this also judges the choice of a cell, which the scores in a
bundle's card do not. Only rows that neither bundle was trained on count, at most ``--rows`` of each (source, operator,
phase), the same on both sides. If a change reads rows as other operators, other rows are held back; then few rows may
remain. Cells of few measurements are fitted to all their rows, so that their figures only tell how close the fit is.

It exits with 1 if an error grew by more than a fifth. It takes three minutes and 2 GB for two million rows.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from benchmarks.markdown import percent, table
from traincast.estimate import LearnedCostModel
from traincast.estimate.bundle import SHIPPED, load_bundle
from traincast.fitting.rows.dataset import OperatorTable, read_operators
from traincast.fitting.split import protocol_split
from traincast.validating.metrics import Summary, summarize
from traincast.validating.operators import validate_operators

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
Key: TypeAlias = tuple[str, str, str]
"""Source, operator and phase."""

ROOT: Final = Path(__file__).parents[1]
FIGURES: Final = ROOT / "benchmarks" / "data" / "operator_cells.csv"
SHARE: Final = 0.2
"""By how much of itself an error may grow."""
ROWS: Final = 400
"""Held-back rows of each cell, spread evenly: enough to tell a tenth of an error."""
_COLUMNS: Final = ("source", "operator", "phase", "rows", "mape", "median", "bias")
_HELD_BACK: Final = """
import sys
from pathlib import Path
import numpy as np
from traincast.fitting.dataset import read_operators
from traincast.fitting.split import protocol_split
table = read_operators(Path(sys.argv[1]))
split = protocol_split(table.key, table.groups, table.seconds, seed=int(sys.argv[2]))
np.save(sys.argv[3], table.index[split.test.rows])
"""
"""Run by the code of a commit: the numbers of the rows that its split holds back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellFigures:
    """Errors of some held-back rows of one cell, in per cent (see :class:`Summary`)."""

    rows: int
    mape: float
    median: float
    bias: float

    @staticmethod
    def of(found: Summary) -> CellFigures:
        return CellFigures(rows=found.n, mape=found.mape, median=found.median_ape, bias=found.bias)


Figures: TypeAlias = Mapping[Key, CellFigures]


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge the shipped bundle, print what changed, and return 1 if something became worse."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--base", help="a commit, or the folder of a bundle")
    parser.add_argument("--rows", type=int, default=ROWS, metavar="N")
    parser.add_argument("--write", action="store_true", help=f"write {FIGURES.name}")
    parser.add_argument("--all", action="store_true", help="print every cell")
    given = parser.parse_args(arguments)
    if given.write and given.base:
        parser.error("--write takes all rows that are held back, --base those that both hold back: give one of them")
    data = given.data / "operators.parquet" if given.data.is_dir() else given.data
    with tempfile.TemporaryDirectory() as folder:
        then, now, digest = _judge(data, given.base, given.rows, Path(folder))
    if then is None:
        then, known = read_figures()
        if then and known["rows"] != digest:
            print("other rows are held back than when the figures were written: --base COMMIT compares the same rows")
    print(report(then, now, every=given.all))
    if given.write:
        write_figures(now, {"bundle": load_bundle(SHIPPED / "operators").card["sha256"], "rows": digest})
    return 1 if worse(then, now) else 0


def worse(then: Figures, now: Figures) -> list[Key]:
    """The cells whose mean error grew by more than :data:`SHARE`."""
    return [key for key in now if key in then and now[key].mape > (1.0 + SHARE) * then[key].mape]


def report(then: Figures, now: Figures, *, every: bool = False) -> str:
    """What changed by more than :data:`SHARE`, or ``every`` cell, as a table, and a sentence."""
    bad, good = worse(then, now), worse(now, then)
    shown = [key for key in sorted(now) if every or key in bad or key in good or key not in then]
    rows = []
    for key in shown:
        told = "worse" if key in bad else "better" if key in good else "" if key in then else "new"
        before, after = then.get(key), now[key]
        rows.append(
            [
                *key, f"{after.rows}", *([percent(before.mape), _signed(before)] if before else ["", ""]),
                percent(after.mape), _signed(after), told,
            ]
        )  # fmt: skip
    columns = ("source", "operator", "phase", "rows", "error before", "bias", "error now", "bias", "")
    said = f"{len(now)} cells: {len(bad)} worse by more than a fifth, {len(good)} better"
    return f"{table(columns, rows, numbers=range(3, 8))}\n\n{said}" if rows else said


def _signed(figures: CellFigures) -> str:
    return percent(figures.bias, signed=True)


def read_figures(path: Path = FIGURES) -> tuple[Figures, dict[str, str]]:
    """Return the figures in a file, and what its first line says: the bundle and a digest of the rows judged."""
    if not path.exists():
        return {}, {"bundle": "", "rows": ""}
    first, *lines = path.read_text().splitlines()
    known = dict(pair.split("=") for pair in first.lstrip("# ").split())
    figures = {
        (row["source"], row["operator"], row["phase"]): CellFigures(
            rows=int(row["rows"]), **{name: float(row[name]) for name in ("mape", "median", "bias")}
        )
        for row in csv.DictReader(lines)
    }
    return figures, known


def write_figures(figures: Figures, known: Mapping[str, str], path: Path = FIGURES) -> None:
    """Write what :func:`read_figures` reads."""
    text = io.StringIO()
    text.write(f"# {' '.join(f'{name}={value}' for name, value in known.items())}\n")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for key, found in sorted(figures.items()):
        writer.writerow([*key, found.rows, f"{found.mape:.3f}", f"{found.median:.3f}", f"{found.bias:.3f}"])
    path.write_text(text.getvalue())


def _judge(data: Path, base: str | None, most: int, folder: Path) -> tuple[Figures | None, Figures, str]:
    """Return the figures of ``base``, if one is given, those of today, and a digest of the rows that were judged."""
    place = None if base is None or Path(base).is_dir() else _checked_out(base, folder)
    seed = load_bundle(SHIPPED / "operators").card["seed"]
    others = None if place is None else _held_back_by(place, data, seed, folder)
    index, keys = _chosen(read_operators(data), seed, others, most)
    sample = folder / "sample.parquet"
    pq.write_table(pq.read_table(data).take(index), sample)
    now = validate_operators(sample)
    kept = now.table.index
    columns = {"now": now.predicted, "measured": now.table.seconds}
    if place is not None:
        columns["then"] = _predicted_by(place, sample)[kept]
    elif base is not None:
        model = LearnedCostModel(bundles=(load_bundle(Path(base)),))
        columns["then"] = validate_operators(
            sample, model_for=lambda framework: replace(model, framework=framework)
        ).predicted
    known = np.all([np.isfinite(column) for column in columns.values()], axis=0)  # a commit may refuse a row
    columns = {name: column[known] for name, column in columns.items()}
    of_rows = [keys[i] for i in kept[known].tolist()]
    digest = hashlib.sha256(index.astype("<i8").tobytes()).hexdigest()[:16]
    then = _figures(of_rows, columns["measured"], columns["then"]) if base is not None else None
    return then, _figures(of_rows, columns["measured"], columns["now"]), digest


def _chosen(table: OperatorTable, seed: int, others: Ints | None, most: int) -> tuple[Ints, list[Key]]:
    """Return the numbers of the rows to judge, in the order of the file, and the cell of each."""
    split = protocol_split(table.key, table.groups, table.seconds, seed=seed)
    rows = np.sort(split.test.rows)
    if others is not None:
        rows = rows[np.isin(table.index[rows], others)]
    cells: dict[Key, list[int]] = {}
    for row, source, number in zip(
        rows.tolist(), table.source[rows].tolist(), table.configuration[rows].tolist(), strict=True
    ):
        operator, _, phase = table.configurations[number].name.rpartition(".")
        cells.setdefault((source, operator or phase, phase if operator else ""), []).append(row)
    chosen: dict[int, Key] = {}
    for key, members in cells.items():
        places = np.unique(np.linspace(0, len(members) - 1, min(most, len(members))).astype(np.int64))
        chosen |= {int(table.index[members[i]]): key for i in places.tolist()}
    order = sorted(chosen)
    return np.array(order, dtype=np.int64), [chosen[i] for i in order]


def _figures(keys: Sequence[Key], measured: Floats, predicted: Floats) -> Figures:
    members: dict[Key, list[int]] = {}
    for i, key in enumerate(keys):
        members.setdefault(key, []).append(i)
    return {
        key: CellFigures.of(summarize(*([column[i] for i in rows] for column in (measured, *[predicted] * 3))))
        for key, rows in members.items()
    }


def _checked_out(commit: str, folder: Path) -> Path:
    """Unpack the package as it was at ``commit``, and return its ``src``."""
    done = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"--base {commit}: neither a commit of this repository nor a folder")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder / "src"


def _run(place: Path, arguments: Sequence[str]) -> str:
    environment = {**os.environ, "PYTHONPATH": str(place)}
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=place, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"the code of the base failed: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout


def _held_back_by(place: Path, data: Path, seed: int, folder: Path) -> Ints:
    file = folder / "held_back.npy"
    _run(place, ["-c", _HELD_BACK, str(data.resolve()), str(seed), str(file)])
    found: Ints = np.load(file)
    return found


def _predicted_by(place: Path, sample: Path) -> Floats:
    """Seconds of every row of ``sample`` by the code in ``place``; NaN of a row that it does not estimate."""
    rows = json.loads(_run(place, ["-m", "traincast", "validate", "operators", str(sample), "--json"]))["rows"]
    return np.array([np.nan if row["predicted"] is None else row["predicted"] for row in rows])


if __name__ == "__main__":
    sys.exit(main())
