"""docs/accuracy.md and docs/accuracy-tables.md from a study: their sections in order, and the plots."""

from __future__ import annotations

import statistics
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


def front(study: Mapping[str, Any], *, looks: Sequence[Mapping[str, str]]) -> str:
    """Return the page that a user reads first; ``looks`` are the rows of the table of first looks."""
    rows: list[Row] = study["rows"]
    steps, other = ([row for row in rows if row["table"] == table] for table in TABLES)
    parts = (words.HEAD, words.FIRST_LOOK, first_looks(looks), words.KNOWN, _short(rows, steps, other), words.ADVICE)
    return "\n\n".join(part.strip() for part in (*parts, f"Version {__version__}.")) + "\n"


def tables(study: Mapping[str, Any], *, fits: Mapping[str, Mapping[str, Any]], folder: str) -> str:
    """Return the page with all tables.

    ``fits`` has the summary of a validation of memory by source, ``folder`` the name of the folder with the plots.
    """
    rows: list[Row] = study["rows"]
    steps, other = ([row for row in rows if row["table"] == table] for table in TABLES)
    parts = (
        words.TABLES_HEAD,
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
    )
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


KINDS: Final = {
    "steps": "language models under a stated strategy",
    "dp-steps": "data-parallel training of other models",
    "finetune": "fine-tuning",
}
"""What each kind of table of runs holds."""


def first_looks(looks: Sequence[Mapping[str, str]]) -> str:
    """Return the table of first looks: per kind, the publishers, the middle of their errors, and their coverage."""
    lines = [
        "| runs of | publishers | runs | error, median of publishers | best and worst publisher | in the interval |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for kind, title in KINDS.items():
        seen = [look for look in looks if look["kind"] == kind and look["median_ape"]]
        if not seen:
            continue
        medians = [float(look["median_ape"]) for look in seen]
        runs = [int(look["rows"]) for look in seen]
        inside = sum(n * float(look["coverage_90"]) for n, look in zip(runs, seen, strict=True)) / sum(runs)
        lines.append(
            f"| {title} | {len(seen)} | {sum(runs):,} | **{statistics.median(medians):.0f} %** "
            f"| {min(medians):.0f} % … {max(medians):.0f} % | {100 * inside:.0f} % |"
        )
    days = sorted({f"{look['date']} ({look['commit']})" for look in looks})
    return "\n".join([*lines, "", f"Looked at on {', '.join(days)}, by the code of that commit."])


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
