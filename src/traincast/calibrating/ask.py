"""What ``calibrate`` is asked: a table of runs, and the cluster that they ran on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Final

from traincast.ask import ALLOW_CODE, File, JsonRecord, Live, Option, Progress, python_only
from traincast.errors import RequestError

CURVE: Final = (0, 1, 3, 10, 30)
"""Numbers of runs seen, for the learning curve."""


def _sizes(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isascii() and part.isdigit() and int(part) <= 100_000 for part in parts):
        raise RequestError(f"--curve {text!r}: expected whole numbers of runs, such as 0,1,3,10,30")
    return tuple(sorted({int(part) for part in parts}))


@dataclass(frozen=True, slots=True)
class CalibrateAsk(JsonRecord):
    """What ``calibrate`` is asked."""

    table: Annotated[File, Option("Table of measured runs (.csv, .csv.gz or .parquet).", "FILE")]
    _: KW_ONLY
    cluster: Annotated[str, Option("The cluster: a name or a .toml file; all rows of FILE ran on it.", "CLUSTER")]
    output: Annotated[File | None, Option("Write to PATH: the calibrated cluster (.toml).", "PATH", short="-o")] = None
    curve: Annotated[
        Sequence[int],
        Option("Also measure the error on unseen runs after calibrating with N runs.", "N,…", read=_sizes, whole=True),
    ] = CURVE
    allow_code: Annotated[bool, ALLOW_CODE] = False
    progress: Annotated[
        Progress | None, Live(), python_only("Called with the work done and all work: first in rows, then in fits.")
    ] = None
