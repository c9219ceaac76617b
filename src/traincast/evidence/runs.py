"""The index of measured runs that ships with Traincast: figures only, who published them, and today's forecast.

``python -m benchmarks.evidence DATA`` writes it. It is a JSON file with one line per column, which loads in a
millisecond; nothing reads it before the first forecast that shows its evidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from traincast.errors import FileFormatError
from traincast.evidence.traits import Traits

INDEX: Final = Path(__file__).parent / "runs.json"
"""The index that ships."""
FORMAT: Final = 1

Column = npt.NDArray[Any]
Coded: TypeAlias = tuple[list[str], list[int]]
"""A column of texts: the different ones, and the number of each row's text among them."""


class PublishedRun(msgspec.Struct, frozen=True, kw_only=True):
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


_TRAITS: Final = Traits.__struct_fields__
_OWN: Final = tuple(name for name in PublishedRun.__struct_fields__ if name != "traits")


class _File(msgspec.Struct):
    """An index as it stands in its file."""

    format: int
    numbers: dict[str, list[Any]]
    texts: dict[str, Coded]


COLUMNS: Final = (*_OWN, *_TRAITS)
"""The columns of an index."""


class Runs:
    """Measured runs as columns: those of :class:`PublishedRun` and of its :class:`Traits`, by name.

    A column of texts is a list of the different texts and the number of each run's text in it. It becomes an array when
    it is first asked for: most forecasts need a third of the columns.
    """

    def __init__(self, numbers: Mapping[str, Sequence[Any]], texts: Mapping[str, Coded]) -> None:
        self._numbers, self._texts = numbers, texts
        self._arrays: dict[str, Column] = {}

    @classmethod
    def of(cls, runs: Sequence[PublishedRun]) -> Runs:
        """Return the columns of ``runs``."""
        lists = {name: [getattr(run, name) for run in runs] for name in _OWN}
        lists |= {name: [getattr(run.traits, name) for run in runs] for name in _TRAITS}
        texts = {name for name in COLUMNS if isinstance(next(iter(lists[name]), 0), str)}
        coded = {name: _coded(lists[name]) for name in COLUMNS if name in texts}
        return cls({name: lists[name] for name in COLUMNS if name not in texts}, coded)

    def __len__(self) -> int:
        return len(self._numbers["measured_s"])

    def __getitem__(self, name: str) -> Column:
        if name not in self._arrays:
            if name in self._texts:
                texts, codes = self._texts[name]
                self._arrays[name] = np.array(texts)[np.array(codes)]
            else:
                self._arrays[name] = np.array(self._numbers[name])
        return self._arrays[name]

    def run(self, number: int) -> PublishedRun:
        """Return one run."""
        row = {name: column[number] for name, column in self._numbers.items()}
        row |= {name: texts[codes[number]] for name, (texts, codes) in self._texts.items()}
        own = {name: row.pop(name) for name in _OWN}
        return PublishedRun(traits=Traits(**row), **own)

    def of_numbers(self, numbers: Iterable[int]) -> Runs:
        """Return the runs with these numbers, in this order."""
        return Runs.of([self.run(number) for number in numbers])

    def to_dict(self) -> dict[str, Mapping[str, Any]]:
        """Return the columns as plain lists, for JSON."""
        return {"numbers": self._numbers, "texts": self._texts}


def _coded(values: Sequence[str]) -> Coded:
    texts = sorted(set(values))
    at = {text: number for number, text in enumerate(texts)}
    return texts, [at[value] for value in values]


@cache
def measured_runs() -> Runs:
    """Return the runs of the index that ships."""
    return read_runs(INDEX)


def read_runs(path: Path) -> Runs:
    """Read an index; refuses one of another format."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_File)
    except (OSError, msgspec.MsgspecError) as error:
        raise FileFormatError(f"{path} is not an index of measured runs: {error}") from error
    missing = [name for name in COLUMNS if name not in found.numbers and name not in found.texts]
    if missing or found.format != FORMAT:
        lacks = f": it lacks {missing[0]}" if missing else ""
        raise FileFormatError(f"{path} is not an index of measured runs of format {FORMAT}{lacks}")
    return Runs(found.numbers, found.texts)


def index_bytes(runs: Sequence[PublishedRun]) -> bytes:
    """Return the file of an index; the same runs give the same bytes."""
    groups = []
    for group, columns in Runs.of(runs).to_dict().items():
        lines = [f'"{name}": '.encode() + msgspec.json.encode(column) for name, column in columns.items()]
        groups.append(f'"{group}": {{\n'.encode() + b",\n".join(lines) + b"\n}")
    return f'{{"format": {FORMAT},\n'.encode() + b",\n".join(groups) + b"}\n"
