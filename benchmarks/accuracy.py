"""Writes docs/accuracy.md, the tables behind it and their plots: errors of forecasts of measured runs.

    python -m benchmarks.accuracy --steps steps.parquet --dp-steps dp_steps.parquet [--study study.json]

With ``--study``, the page is made from a study that ``benchmarks.study`` wrote before; ``--steps`` is then only needed
for the section on memory.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.page import drawings, front, tables
from benchmarks.study import make
from traincast.errors import TraincastError
from traincast.validating.validate import validate

PAGE: Final = Path(__file__).parents[1] / "docs" / "accuracy.md"
LOOKS: Final = Path(__file__).parent / "data" / "first_looks.csv"
_CURVES: Final = ("llm-foundry",)


def main(arguments: list[str] | None = None) -> None:
    """Make or read the study and write the page."""
    parser = argparse.ArgumentParser(prog="benchmarks.accuracy", description="Write docs/accuracy.md and its plots.")
    parser.add_argument("--steps", type=Path, metavar="FILE", help="measured steps of language models")
    parser.add_argument("--dp-steps", type=Path, metavar="FILE", help="measured data-parallel steps")
    parser.add_argument("--study", type=Path, metavar="FILE.json", help="a study made before by benchmarks.study")
    parser.add_argument("--page", type=Path, default=PAGE, metavar="FILE.md", help="the page to write")
    given = parser.parse_args(arguments)
    if given.study is None and (given.steps is None or given.dp_steps is None):
        parser.error("give --steps FILE and --dp-steps FILE, or --study FILE.json")
    try:
        study = _read(given.study) if given.study else make(given.steps, given.dp_steps, curves=_CURVES)["data"]
        fits = _fits(given.steps) if given.steps else {}
    except TraincastError as error:
        sys.exit(f"benchmarks.accuracy: {error}")
    write_page(given.page, study, fits=fits)
    print(f"written: {given.page} and {given.page.with_suffix('')}")


def write_page(path: Path, study: Mapping[str, Any], *, fits: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the page, the page of tables behind it, and the plots into a folder of the same name beside them."""
    folder = path.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    for name, drawing in drawings(study).items():
        (folder / name).write_text(drawing, encoding="utf-8")
    with LOOKS.open(encoding="utf-8", newline="") as file:
        path.write_text(front(study, looks=list(csv.DictReader(file))), encoding="utf-8")
    behind = path.with_stem(f"{path.stem}-tables")
    behind.write_text(tables(study, fits=fits, folder=folder.name), encoding="utf-8")


def _read(path: Path) -> dict[str, Any]:
    study: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return study


def _fits(steps: Path) -> dict[str, dict[str, Any]]:
    """Return the figures of a validation by source, for the section on memory."""
    return validate(steps, calibrated=False, progress=_progress("memory")).summary()


def _progress(what: str) -> Callable[[int, int], None]:
    """Show the progress of a validation if standard error is a terminal."""

    def show(done: int, total: int) -> None:
        if sys.stderr.isatty():
            print(f"\r{what}: {done}/{total}", end="" if done < total else "\n", file=sys.stderr, flush=True)

    return show


if __name__ == "__main__":
    main()
