"""Errors against tables of measured runs, written into docs/accuracy.md.

    python -m benchmarks.accuracy --steps steps.parquet --dp-steps dp_steps.parquet

Each table replaces what stands between its markers, ``<!-- steps:begin -->`` and ``<!-- steps:end -->`` (or
``dp-steps``). A table that is not given stays as it is.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from traincast import __version__
from traincast.errors import TraincastError
from traincast.validate import Validation, validate_dp_steps, validate_steps

PAGE: Final = Path(__file__).parents[1] / "docs" / "accuracy.md"
_REASONS: Final = 8
_LONGEST: Final = 100


def main(arguments: list[str] | None = None) -> None:
    """Run the validations asked for and rewrite their tables."""
    parser = argparse.ArgumentParser(prog="benchmarks.accuracy", description="Rewrite the tables of docs/accuracy.md.")
    parser.add_argument("--steps", type=Path, metavar="FILE", help="measured steps of language models")
    parser.add_argument("--dp-steps", type=Path, metavar="FILE", help="measured data-parallel steps")
    parser.add_argument("--page", type=Path, default=PAGE, metavar="FILE", help="the page to rewrite")
    given = parser.parse_args(arguments)
    if given.steps is None and given.dp_steps is None:
        parser.error("give --steps FILE, --dp-steps FILE, or both")
    try:
        if given.steps is not None:
            write(given.page, "steps", table(validate_steps(given.steps, progress=_progress("steps")), by="source"))
        if given.dp_steps is not None:
            result = validate_dp_steps(given.dp_steps, progress=_progress("dp-steps"))
            write(given.page, "dp-steps", table(result, by="family"))
    except TraincastError as error:
        sys.exit(f"benchmarks.accuracy: {error}")
    print(f"rewritten: {given.page}")


def write(page: Path, name: str, content: str) -> None:
    """Put ``content`` between the markers called ``name``."""
    page.write_text(rewrite(page.read_text(encoding="utf-8"), name, content), encoding="utf-8")


def rewrite(text: str, name: str, content: str) -> str:
    """``text`` with ``content`` between the markers called ``name``; there must be one pair of them."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"expected {begin} and {end} once each, in this order")
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n{content.strip()}\n{end}{rest.partition(end)[2]}"


def table(result: Validation, *, by: str) -> str:
    """The summary of ``result`` as a Markdown table, and why rows were skipped."""
    columns = [by, "rows", "forecast", "judged", "mean error", "median error", "bias", "rank corr.", "in interval"]
    if result.with_memory:
        columns += ["does-not-fit F1", "memory error"]
    lines = [_line(columns), _line(["---", *("---:" for _ in columns[1:])])]
    for source, figures in result.summary().items():
        row = _row(figures, with_memory=result.with_memory)
        lines.append(_line([f"**{cell}**" for cell in ("all", *row)] if source == "all" else [source, *row]))
    reasons = Counter(_kind(row.reason) for row in result.rows if row.status == "skipped")
    if reasons:
        lines += ["", "Skipped, and why:", ""]
        lines += [f"- {count}: {reason}" for reason, count in reasons.most_common(_REASONS)]
        rest = sum(reasons.values()) - sum(count for _, count in reasons.most_common(_REASONS))
        lines += [f"- {rest}: other reasons"] if rest else []
    return "\n".join([*lines, "", f"Version {__version__}, without calibration."])


def _row(figures: Mapping[str, Any], *, with_memory: bool) -> list[str]:
    cells = [str(figures[key]) for key in ("rows", "forecast", "n")]
    cells += [_percent(figures[key]) for key in ("mape", "median_ape")]
    cells += [_percent(figures["bias"], signed=True), _number(figures["spearman"]), _share(figures["coverage_90"])]
    return [*cells, _number(figures["oom_f1"]), _percent(figures["memory_mape"])] if with_memory else cells


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _percent(value: float, *, signed: bool = False) -> str:
    return "–" if math.isnan(value) else f"{value:{'+' if signed else ''}.1f} %"


def _share(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.0%}"


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"


def _kind(reason: str) -> str:
    return " ".join(reason.split(";", maxsplit=1)[0].split())[:_LONGEST]


def _progress(what: str) -> Callable[[int, int], None]:
    """Show how far a validation is, where standard error is a terminal."""

    def show(done: int, total: int) -> None:
        if sys.stderr.isatty():
            print(f"\r{what}: {done}/{total}", end="" if done < total else "\n", file=sys.stderr, flush=True)

    return show


if __name__ == "__main__":
    main()
