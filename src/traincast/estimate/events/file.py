"""The folder of measured events: a card (``events.json``) and one row for each measured work (``events.parquet``).

``traincast profile events`` writes it; ``--events`` of ``predict`` and ``search`` reads it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta

from traincast import tables
from traincast.errors import FileFormatError
from traincast.schema import convert

FORMAT: Final = 1
CARD, TABLE = "events.json", "events.parquet"
REAL: Final = "real"
"""Value of ``compute`` if operators ran; otherwise it names the device whose times were emulated."""
Row: TypeAlias = dict[str, Any]
Kind: TypeAlias = Literal["operator", "collective", "transfer", "launch", "interference"]

COLUMNS: Final[Mapping[str, str]] = {
    "kind": "string",
    "key": "string",
    "mean_s": "double",
    "low_s": "double",
    "high_s": "double",
    "repeats": "int64",
    "nbytes": "double",
    "num_ranks": "int64",
    "num_nodes": "int64",
    "collective": "string",
    "dtype": "string",
    "model": "string",
    "source": "string",
    "fixed_s": "double",
}
"""Columns of the table, with the Arrow type of each.

``num_ranks`` of an operator is the number of processes that computed at the same time. The "seconds" of interference
are ratios (see :mod:`traincast.profiling.events.network`). ``source`` is ``measured`` or ``emulated``. ``fixed_s`` is
the part of the mean that does not grow with an operator's size (0: not known); older folders do not have it.
"""
_OPTIONAL: Final = frozenset({"fixed_s"})


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsCard:
    """What was measured where: the device of the cluster file, the machine itself, its network and libraries.

    ``link_bandwidth`` is what the cluster file states between nodes, in bytes/s (0: unknown): messages over links of
    other rates are scaled from it. ``statistic`` says how ``mean_s``, ``low_s`` and ``high_s`` follow from the repeats.
    ``cost`` has the seconds and process-seconds that measuring took, added over all runs.
    """

    format: Annotated[int, Meta(ge=FORMAT, le=FORMAT)] = FORMAT
    device: str
    machine: str
    backend: Literal["gloo", "nccl"]
    threads: Annotated[int, Meta(ge=1, le=4096)]
    compute: str
    network: str
    precision: str
    torch: str
    host: str
    statistic: str
    link_bandwidth: Annotated[float, Meta(ge=0.0)] = 0.0
    cost: dict[str, float]


def row_of(
    kind: Kind,
    key: str,
    *,
    mean_s: float,
    low_s: float,
    high_s: float,
    repeats: int,
    nbytes: float = 0.0,
    num_ranks: int = 1,
    num_nodes: int = 1,
    collective: str = "",
    dtype: str = "",
    model: str = "",
    source: str = "measured",
    fixed_s: float = 0.0,
) -> Row:
    """Return one row of the table."""
    return {
        "kind": kind, "key": key, "mean_s": mean_s, "low_s": low_s, "high_s": high_s, "repeats": repeats,
        "nbytes": nbytes, "num_ranks": num_ranks, "num_nodes": num_nodes, "collective": collective, "dtype": dtype,
        "model": model, "source": source, "fixed_s": fixed_s,
    }  # fmt: skip


def contents_of(card: EventsCard, rows: Iterable[Row]) -> dict[str, bytes]:
    """Return the files of a folder of events, by name."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {"string": pa.string(), "int64": pa.int64(), "double": pa.float64()}
    schema = pa.schema([(name, types[kind]) for name, kind in COLUMNS.items()])
    table = BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), table)
    return {CARD: (json.dumps(asdict(card), indent=1) + "\n").encode(), TABLE: table.getvalue()}


def read_card(path: Path) -> EventsCard:
    """Return the card of a folder of events; refuse anything else in one line."""
    if not path.is_dir():
        what = "is a file, not a folder" if path.exists() else "does not exist"
        raise FileFormatError(f"{path} {what}: --events takes a folder that `traincast profile events` wrote")
    try:
        data = json.loads((path / CARD).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileFormatError(
            f"{path} has no {CARD}: it is not a folder that `traincast profile events` wrote"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise FileFormatError(f"{path / CARD} is damaged ({_line(error)}): measure the events again") from error
    if isinstance(data, dict) and data.get("format") != FORMAT:
        raise FileFormatError(
            f"{path / CARD} has format {data.get('format')!r}, but this Traincast reads format {FORMAT}: "
            "measure the events again"
        )
    return convert(data, EventsCard, f"{path / CARD}:")


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a folder of events; refuse a damaged table in one line."""
    file = path / TABLE
    rows = tables.read_rows(file, needs=tuple(name for name in COLUMNS if name not in _OPTIONAL))
    for number, row in enumerate(rows):
        row.setdefault("fixed_s", 0.0)
        times = [row[name] for name in ("mean_s", "low_s", "high_s", "nbytes", "fixed_s")]
        if not all(isinstance(t, float) and math.isfinite(t) and t >= 0.0 for t in times):
            raise FileFormatError(f"{file}: row {number} has a time or size that is not a number of 0 or more")
        if row["kind"] in ("collective", "transfer") and not (row["nbytes"] > 0 and row["mean_s"] > 0):
            raise FileFormatError(f"{file}: row {number} has a message without bytes or seconds")
    return rows


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__
