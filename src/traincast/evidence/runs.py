"""The index of measured runs that ships with Traincast: figures only, who published them, and today's forecast.

``python -m benchmarks.evidence DATA`` writes it. It is a gzipped JSON file with one list per column, which loads in a
few milliseconds; nothing reads it before the first forecast that shows its evidence.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import numpy as np
import numpy.typing as npt

from traincast.errors import FileFormatError
from traincast.evidence.traits import Traits

INDEX: Final = Path(__file__).parent / "runs.json.gz"
"""The index that ships."""
FORMAT: Final = 1

Column = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measured run: who published it, what was run, the seconds of a step, and the zero-shot forecast of it.

    ``predicted_s`` used no calibration. ``table`` and ``row`` say where the run stands in the tables that the index was
    made from.
    """

    source: str
    traits: Traits
    measured_s: float
    predicted_s: float
    table: str = ""
    row: int = 0


_TRAITS: Final = tuple(field.name for field in fields(Traits))
_OWN: Final = tuple(field.name for field in fields(Run) if field.name != "traits")
COLUMNS: Final = (*_OWN, *_TRAITS)
"""The columns of an index."""


class Runs:
    """Measured runs as columns: those of :class:`Run` and of its :class:`Traits`, by name.

    A column becomes an array when it is first asked for: most forecasts need a third of them.
    """

    def __init__(self, lists: Mapping[str, Sequence[Any]]) -> None:
        self._lists = lists
        self._arrays: dict[str, Column] = {}

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Runs:
        """Return the columns of ``runs``."""
        rows = [{**asdict(run.traits), **{name: getattr(run, name) for name in _OWN}} for run in runs]
        return cls({name: [row[name] for row in rows] for name in COLUMNS})

    def __len__(self) -> int:
        return len(self._lists["source"])

    def __getitem__(self, name: str) -> Column:
        if name not in self._arrays:
            self._arrays[name] = np.array(self._lists[name])
        return self._arrays[name]

    def run(self, number: int) -> Run:
        """Return one run."""
        row = {name: column[number] for name, column in self._lists.items()}
        own = {name: row.pop(name) for name in _OWN}
        return Run(traits=Traits(**row), **own)

    def of_numbers(self, numbers: Iterable[int]) -> Runs:
        """Return the runs with these numbers, in this order."""
        chosen = list(numbers)
        return Runs({name: [column[number] for number in chosen] for name, column in self._lists.items()})

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the columns as plain lists, for JSON."""
        return {name: list(column) for name, column in self._lists.items()}


@cache
def measured_runs() -> Runs:
    """Return the runs of the index that ships."""
    return read_runs(INDEX)


def read_runs(path: Path) -> Runs:
    """Read an index; refuses one of another format."""
    try:
        found = cast(dict[str, Any], msgspec.json.decode(gzip.decompress(path.read_bytes())))
        lists = found["columns"] if found["format"] == FORMAT else {}
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise FileFormatError(f"{path} is not an index of measured runs: {error}") from error
    missing = [name for name in COLUMNS if name not in lists]
    if missing:
        raise FileFormatError(f"{path} is not an index of measured runs of format {FORMAT}: it lacks {missing[0]}")
    return Runs({name: lists[name] for name in COLUMNS})


def index_bytes(runs: Sequence[Run]) -> bytes:
    """Return the file of an index; the same runs give the same bytes."""
    return gzip.compress(msgspec.json.encode({"format": FORMAT, "columns": Runs.of(runs).to_dict()}), mtime=0)
