"""docs/accuracy.md from a study: its sections in order, and the plots that it shows."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchmarks import figures, plots, words
from benchmarks.error_sections import (
    ablation,
    apart,
    curves,
    left_out,
    modes,
    picking,
    repeats,
    rivals,
    sources,
    split,
    together,
)
from benchmarks.figures import TABLES, Row, by_source, covered, errors
from benchmarks.markdown import percent, share
from benchmarks.row_sections import assumed, memory, misses, skipped
from traincast import __version__

_PLOTTED: Final = (("zero_shot", "zero-shot"), ("calibrated", "calibrated"))


def page(study: Mapping[str, Any], *, fits: Mapping[str, Mapping[str, Any]], folder: str) -> str:
    """Return the whole page.

    ``fits`` has the summary of a validation of memory by source, ``folder`` the name of the folder with the plots.
    """
    rows: list[Row] = study["rows"]
    steps, other = ([row for row in rows if row["table"] == table] for table in TABLES)
    return (
        "\n\n".join(
            part.strip()
            for part in (
                words.HEAD,
                _short(rows, steps, other),
                words.COMPARED,
                "## Errors on measured runs",
                words.GLOSSARY,
                f"### {TABLES['steps']}",
                _plots("steps", folder),
                sources([*split(steps), ("all", steps)]),
                repeats(steps),
                rivals(steps),
                modes(steps),
                f"### {TABLES['dp-steps']}",
                _plots("dp-steps", folder),
                sources([*by_source(other), *together(other), ("all", other)], by="family"),
                apart(steps, other),
                left_out(steps, other),
                ablation(study, steps, other),
                curves(study, folder),
                picking(steps),
                memory(steps, fits),
                misses(study, steps, other),
                assumed(rows),
                skipped(study),
                words.ADVICE,
                words.OWN_RUNS,
                f"Version {__version__}.",
            )
            if part
        )
        + "\n"
    )


def drawings(study: Mapping[str, Any]) -> dict[str, str]:
    """Return every plot of the page as SVG, by the name of its file."""
    made = {}
    for table, title in TABLES.items():
        groups = by_source([row for row in study["rows"] if row["table"] == table])
        for field, word in _PLOTTED:
            series = {
                name: [(row["measured"], row[field]) for row in rows if row.get(field) is not None]
                for name, rows in groups
            }
            made[f"{table}-{word}.svg"] = plots.scatter(f"{title}: {word}", series)
    made["learning.svg"] = plots.curve("How many runs a calibration needs", figures.curves(study["groups"]))
    return made


def _plots(table: str, folder: str) -> str:
    title = TABLES[table]
    return "\n".join(
        f"![{title}, {word}: forecast against measured]({folder}/{table}-{word}.svg)" for _, word in _PLOTTED
    )


def _short(rows: Sequence[Row], steps: Sequence[Row], other: Sequence[Row]) -> str:
    lines = []
    for title, members in ((TABLES["steps"], steps), (TABLES["dp-steps"], other)):
        made = [errors(members, name) for name in ("zero_shot", "calibrated", "unseen_model")]
        zero, known, unseen = (f"{percent(e.median)} ({percent(e.mean)})" for e in made)
        lines.append(
            f"{title}, {len(members):,} runs: {zero} zero-shot, {known} calibrated, {unseen} on unseen models; "
            f"{share(covered(members))} of runs are inside their calibrated interval."
        )
    lines.append(
        f"{len({row['source'] for row in rows})} sources, {len({row['device'] for row in rows})} kinds of GPU."
    )
    points = [textwrap.fill(line, 120, initial_indent="- ", subsequent_indent="  ") for line in lines]
    return "\n".join(["In short (median error; mean in brackets):", "", *points])
