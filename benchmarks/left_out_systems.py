"""Collectives of systems that nobody measured: leave out one system at a time, and give it none, ten or thirty points.

    python -m benchmarks.left_out_systems DATA              # DATA has collectives.parquet and collectives_more.parquet

Prints Markdown tables of the errors; with ``--write`` it also replaces those in docs/collectives.md. A cell is the
median over the variants of one size in one setting of a system. Neither the prior nor the intervals of a system that is
left out have seen any of its cells, other than its own points. Frameworks' own kernels are not part of the study.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from benchmarks.markdown import table as markdown
from benchmarks.markers import write
from traincast.fitting.collectives.prior import LeftOut, left_out_systems, spread_of, system_cells
from traincast.fitting.collectives.table import read_collectives

PAGE: Final = Path(__file__).parent.parent / "docs" / "collectives.md"
COUNTS: Final = (0, 10, 30)
Floats = npt.NDArray[np.float64]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the study and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--write", action="store_true", help="replace the tables in docs/collectives.md")
    options = parser.parse_args(arguments)
    names = ("collectives.parquet", "collectives_more.parquet")
    tables = [read_collectives(options.data / name) for name in names]
    logs = set(tables[1].system.tolist())
    judged = list(left_out_systems(system_cells(tables), COUNTS))
    parts = {"left-out": overall(judged, logs), "left-out-systems": by_system(judged)}
    for name, text in parts.items():
        print(f"{text}\n")
        if options.write:
            write(PAGE, name, text)


def overall(judged: Sequence[LeftOut], logs: set[str]) -> str:
    """The errors of all systems, and of those whose nccl-tests logs are known, by number of own points."""
    rows = []
    for name, systems in (("every system", None), ("systems of nccl-tests logs", logs)):
        for count in COUNTS:
            here = [e for e in judged if e.own_points == count and (systems is None or e.system in systems)]
            error = np.concatenate([errors(e) for e in here])
            inside = [float(covered(e, judged).mean()) for e in here]
            medians = [float(np.median(errors(e))) for e in here]
            figures = (np.median(error), error.mean(), np.median(medians))
            cells = [name, str(count), str(len(here)), f"{len(error):,}", *(f"{x:.1f} %" for x in figures)]
            rows.append([*cells, f"{np.mean(inside):.2f}"])
    columns = [
        "",
        "own points",
        "systems",
        "cells",
        "median",
        "mean",
        "median of systems",
        "rows inside, mean of systems",
    ]
    return markdown(columns, rows)


def by_system(judged: Sequence[LeftOut]) -> str:
    """The errors of each system by number of own points; a dash where no cell is left to judge."""
    rows = []
    for system in sorted({e.system for e in judged}, key=str.lower):
        cells: list[str] = [system]
        for count in COUNTS:
            entry = next((e for e in judged if e.system == system and e.own_points == count), None)
            if entry is None:
                cells += ["–", "–", "–"]
                continue
            error = errors(entry)
            cells += [f"{np.median(error):.0f} %", f"{error.mean():.0f} %", f"{covered(entry, judged).mean():.2f}"]
        rows.append(cells)
    columns = ["system", *(f"{what}, {n}" for n in COUNTS for what in ("median", "mean", "inside"))]
    return markdown(columns, rows)


def errors(entry: LeftOut) -> Floats:
    """The absolute errors of a system's cells, in per cent."""
    return np.asarray(100.0 * np.abs(np.expm1(entry.missed)))


def covered(entry: LeftOut, judged: Sequence[LeftOut]) -> npt.NDArray[np.bool_]:
    """Whether each row that is not known lies in the interval that all other systems suggest."""
    others = [e for e in judged if e.system != entry.system and e.own_points == entry.own_points]
    spread = spread_of(others)
    factors = {link: spread.get(link, spread["all"])[entry.own_points] for link in set(entry.row_links)}
    factor = np.array([factors[link] for link in entry.row_links])
    return np.asarray(np.abs(entry.row_missed) <= factor * entry.row_deviation)


if __name__ == "__main__":
    main()
