"""Known failures, read from a table: ``time_s,kind,target,repair_s[,gpu]``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final, get_args

import numpy as np

from traincast.errors import FileFormatError
from traincast.scheduling.joblogs.source import open_source, plain
from traincast.scheduling.joblogs.table import Bools, Floats, need, read_table
from traincast.scheduling.queue.failures import FailureEvent, Kind
from traincast.scheduling.space.nodes import MAX_GPUS_PER_NODE

COLUMNS: Final = ("time_s", "kind", "target", "repair_s", "gpu")
_KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


def load_failure_events(path: Path | str) -> tuple[FailureEvent, ...]:
    """Read one failure per row: its time, kind, node or switch, time to repair, and the GPU of the node.

    ``time_s`` is on the clock of the jobs' ``submit_s``. An empty ``repair_s`` means no repair.
    """
    path = Path(path)
    source = open_source(path)
    need(source, COLUMNS[:4], what="a list of failures")
    table = read_table(source, COLUMNS)
    if not len(table):
        raise FileFormatError(f"{path} has no failures: expected one on each line below the header")
    unparsable: dict[str, dict[int, str]] = {}
    times, repairs, gpus = (table.numbers(name, unparsable) for name in ("time_s", "repair_s", "gpu"))
    kinds: list[str] = table.texts("kind").tolist()

    def refuse(row: int, name: str, found: str, rule: str) -> FileFormatError:
        return FileFormatError(f"{path}: {table.place} {table.lines[row]} has {found} as {name}: {rule}; correct it")

    for name, cells in unparsable.items():
        for row, text in cells.items():
            raise refuse(row, name, repr(plain(text)), "expected a number")
    for name, values, sound, rule in (
        ("time_s", times, np.isfinite(times) & (times >= 0), "expected seconds from 0"),
        ("repair_s", repairs, ~(repairs < 0), "expected seconds from 0, or nothing where it never comes back"),
        ("gpu", gpus, np.isnan(gpus) | _is_number_of_gpu(gpus), "expected the number of a GPU of its node, from 0"),
    ):
        if not np.all(sound):
            row = int(np.flatnonzero(~sound)[0])
            raise refuse(row, name, "nothing" if np.isnan(values[row]) else f"{values[row]:.15g}", rule)
    unknown = next((row for row, kind in enumerate(kinds) if kind not in _KINDS), None)
    if unknown is not None:
        raise refuse(unknown, "kind", repr(plain(kinds[unknown])), f"expected {', '.join(_KINDS)}")
    return tuple(
        FailureEvent(
            time_s=time_s,
            kind=next(known for known in _KINDS if known == kind),
            target=target,
            repair_s=math.inf if math.isnan(repair) else repair,
            gpu=0 if math.isnan(gpu) else int(gpu),
        )
        for time_s, kind, target, repair, gpu in zip(
            times.tolist(), kinds, table.texts("target").tolist(), repairs.tolist(), gpus.tolist(), strict=True
        )
    )


def _is_number_of_gpu(values: Floats) -> Bools:
    return np.asarray((values >= 0) & (values < MAX_GPUS_PER_NODE) & (values == np.floor(values)))
