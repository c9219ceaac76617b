"""The part ``rows``: forecasts of measured runs, of made-up tables and of the tables at hand.

Nothing of a table is stored but its name and the numbers of its rows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

import traincast
from benchmarks.ledger import canonical
from benchmarks.ledger.entries import REFUSED, Entry, Part, Scope
from benchmarks.ledger.made_rows import write_made
from traincast.validating.ask import TableKind

_TABLES: Final[dict[str, TableKind]] = {
    "steps": "steps",
    "steps_more": "steps",
    "third/steps": "steps",
    "dp_steps": "dp-steps",
    "dp_steps_more": "dp-steps",
    "third/dp_steps": "dp-steps",
    "finetune": "finetune",
    "third/finetune": "finetune",
    "operators": "operators",
    "collectives": "collectives",
    "collectives_more": "collectives",
    "third/collectives": "collectives",
}
_OPERATORS: Final = 20_000
"""Operators are sampled."""
_TOGETHER: Final = 500
"""Rows of operators and collectives that have an entry together."""
_MEASURED: Final = frozenset({"index", "source", "measured", "measured_memory", "assumed", "predicted", "status"})
"""Fields of an outcome that are not of its digest: they are measured, or stand beside it."""


def _entries(scope: Scope) -> Iterator[Entry]:
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("steps", "dp-steps", "finetune"):
            yield from _single(f"made/{kind}", write_made(kind, Path(folder)), kind)
    for name, kind in {} if scope.small else _TABLES.items():
        path = scope.data / f"{name}.parquet" if scope.data else None
        if path is None or not path.is_file():
            scope.skip(f"{name} ", "the table is not at hand; name its folder with --data")
        elif kind in ("operators", "collectives"):
            yield from _together(name, path, kind)
        else:
            yield from _single(name, path, kind)


def _single(name: str, path: Path, kind: TableKind) -> Iterator[Entry]:
    """Yield one entry for each row: its request, what was assumed, the outcome, and the seconds."""
    found = canonical.plain(traincast.validate(path, kind=kind))
    for row, request in zip(found["rows"], canonical.requests_of(path, kind), strict=True):
        key = f"{name} {row['index']:04}"
        if row["status"] == "skipped":
            said = row["reason"] if name.startswith("made/") else canonical.digest(row["reason"])
            yield key, (f"{REFUSED}{said}",)
            continue
        outcome = {field: value for field, value in row.items() if field not in _MEASURED}
        seconds = "-" if row["predicted"] is None else float(row["predicted"]).hex()
        parts = ".".join(part[:6] for part in canonical.request_parts(request)) if request else "-"
        yield key, (parts, canonical.digest_of_json(row["assumed"], 8), canonical.digest_of_json(outcome, 8), seconds)
    yield from _summary(name, found)


def _together(name: str, path: Path, kind: TableKind) -> Iterator[Entry]:
    """Yield one entry for many rows: what was estimated, and the seconds of all of them together."""
    taken: dict[str, Any] = {"rows": _OPERATORS} if kind == "operators" else {}
    found = canonical.plain(traincast.validate(path, kind=kind, **taken))
    for start in range(0, len(found["rows"]), _TOGETHER):
        rows = [
            {field: value for field, value in row.items() if field not in ("source", "measured", "measured_memory")}
            for row in found["rows"][start : start + _TOGETHER]
        ]
        total = float(np.sum([row["predicted"] or 0.0 for row in rows]))
        yield f"{name} {start:05}…", ("-", "-", canonical.digest_of_json(rows, 8), total.hex())
    yield from _summary(name, found)


def _summary(name: str, found: dict[str, Any]) -> Iterator[Entry]:
    rest = {field: value for field, value in found.items() if field != "rows"}
    yield f"{name} summary", ("-", "-", canonical.digest_of_json(rest, 16), "-")


PART: Final = Part(
    name="rows", columns=("request", "assumed", "outcome", "seconds"), firm=("request", "assumed"), entries=_entries
)
