"""Collectives of systems that nobody measured: leave out one system at a time, and give it none, ten or thirty points.

    python -m benchmarks.left_out_systems DATA      # DATA has the tables of collectives named in TABLES

Prints Markdown tables of the errors; ``--write`` also replaces those in docs/collectives.md, and ``--ship`` puts the
prior into the shipped bundle, whose curves stay as they are. The prior is fitted to the systems that
benchmarks/data/sources.toml lists as guides. Each of these is judged by a prior without it; those listed as judges are
never fitted. A cell is the median over the variants of one size in one setting of a system. Frameworks' own kernels
are not part of the study.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

import traincast
from benchmarks.markdown import table as markdown
from benchmarks.markers import write
from benchmarks.unseen import role_of
from traincast.estimate.bundle import save_bundle
from traincast.estimate.collectives.prior import IntervalEnds, SystemPrior
from traincast.fitting.collectives.prior import (
    LeftOut,
    judged_system,
    left_out_systems,
    prior_of,
    spread_of,
    system_cells,
)
from traincast.fitting.collectives.table import CollectiveTable, read_collectives

PAGE: Final = Path(__file__).parent.parent / "docs" / "collectives.md"
SHIPPED: Final = Path(traincast.__file__).parent / "bundles" / "collectives"
TABLES: Final = ("collectives.parquet", "collectives_more.parquet", "third/collectives.parquet")
COUNTS: Final = (0, 10, 30)
Floats = npt.NDArray[np.float64]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the study and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--write", action="store_true", help="replace the tables in docs/collectives.md")
    parser.add_argument("--ship", action="store_true", help="put the prior into the shipped bundle")
    options = parser.parse_args(arguments)
    tables = [read_collectives(options.data / name) for name in TABLES]
    guides, judges = (systems_of(tables, part) for part in ("guide", "judge"))
    cells = system_cells(guides)
    left_out = list(left_out_systems(cells))
    prior = prior_of(cells, left_out)
    if options.ship:
        ship(prior, sorted({str(source) for table in guides for source in table.source}))
    cells = system_cells(judges)
    judged = [e for number in range(len(cells.systems)) for e in judged_system(prior, cells, number, COUNTS)]
    parts = {"left-out": overall(left_out, judged, prior.spread), "left-out-systems": by_system(left_out)}
    for name, text in parts.items():
        print(f"{text}\n")
        if options.write:
            write(PAGE, name, text)


def systems_of(tables: Sequence[CollectiveTable], part: str) -> list[CollectiveTable]:
    """The rows of the systems that guide choices (``guide``), or of those that only judge (``judge``)."""
    return [
        table.take(np.array([role_of("collectives", str(name)) == part for name in table.system], dtype=bool))
        for table in tables
    ]


def ship(prior: SystemPrior, sources: Sequence[str]) -> None:
    """Replace the prior in the shipped bundle, which was fitted to ``sources``; its curves stay as they are."""
    card = json.loads((SHIPPED / "card.json").read_text(encoding="utf-8"))
    kept = {
        name: array
        for name, array in load_file(SHIPPED / "weights.safetensors").items()
        if not name.startswith("prior_")
    }
    arrays, card["model"]["prior"] = prior.packed()
    card["data"]["sources"] = list(sources)
    save_bundle(SHIPPED, card, {**kept, **arrays})


def overall(left_out: Sequence[LeftOut], judged: Sequence[LeftOut], spread: IntervalEnds) -> str:
    """The errors of guides left out and of judges, by number of own points."""
    rows = []
    others = {e.system: spread_of([o for o in left_out if o.system != e.system]) for e in left_out}
    for name, entries in (("guides, each left out", left_out), ("judges", judged)):
        for count in COUNTS:
            here = [e for e in entries if e.own_points == count]
            factors = [others.get(e.system, spread) for e in here]
            error = np.concatenate([errors(e) for e in here])
            medians = [float(np.median(errors(e))) for e in here]
            inside = [float(covered(e, f).mean()) for e, f in zip(here, factors, strict=True)]
            width = [float(np.median(np.exp(sum(f) * e.row_deviation))) for e, f in zip(here, factors, strict=True)]
            figures = (np.median(error), error.mean(), np.mean(medians), np.median(medians))
            cells = [name, str(count), str(len(here)), f"{len(error):,}", *(f"{x:.1f} %" for x in figures)]
            rows.append([*cells, f"{np.mean(inside):.2f}", f"{np.median(width):.1f}"])
    columns = [
        "",
        "own points",
        "systems",
        "cells",
        "median",
        "mean",
        "mean of systems' medians",
        "median of systems' medians",
        "rows inside, mean of systems",
        "width, median of systems",
    ]
    return markdown(columns, rows)


def by_system(judged: Sequence[LeftOut]) -> str:
    """The errors of each system by number of own points; a dash where no cell is left to judge."""
    rows = []
    for system in sorted({e.system for e in judged}, key=str.lower):
        cells: list[str] = [system]
        spread = spread_of([e for e in judged if e.system != system])
        for count in COUNTS:
            entry = next((e for e in judged if e.system == system and e.own_points == count), None)
            if entry is None:
                cells += ["–", "–", "–", "–"]
                continue
            error = errors(entry)
            width = float(np.median(np.exp(sum(spread) * entry.row_deviation)))
            inside = f"{covered(entry, spread).mean():.2f}"
            cells += [f"{np.median(error):.0f} %", f"{error.mean():.0f} %", inside, f"{width:.1f}"]
        rows.append(cells)
    columns = ["system", *(f"{what}, {n}" for n in COUNTS for what in ("median", "mean", "inside", "width"))]
    return markdown(columns, rows)


def errors(entry: LeftOut) -> Floats:
    """The absolute errors of a system's cells, in per cent."""
    return np.asarray(100.0 * np.abs(np.expm1(entry.missed)))


def covered(entry: LeftOut, spread: IntervalEnds) -> npt.NDArray[np.bool_]:
    """Whether each row that is not known lies in its interval."""
    off = -entry.row_missed / entry.row_deviation
    return np.asarray((-spread.below <= off) & (off <= spread.above))


if __name__ == "__main__":
    main()
