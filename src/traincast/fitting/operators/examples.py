"""Turn measured operators into training examples: cells, features and targets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from traincast.estimate.operators.cells import COLUMNS, encode, one_hot, setting_of, trees_table
from traincast.estimate.operators.families import Rates
from traincast.estimate.operators.features import Features, Shapes, family_of, features, shapes_of
from traincast.fitting.rows.dataset import OperatorTable
from traincast.fitting.split import Merged
from traincast.fitting.train import Examples

Floats = npt.NDArray[np.float64]
CellKey = tuple[str, str, str, str]


def cells_of(table: OperatorTable) -> dict[CellKey, npt.NDArray[np.int64]]:
    """The rows of each cell (family, setting, dtype, device), largest first; rows of no family are left out."""
    if not len(table):
        return {}
    families = np.array([family_of(op) or "" for op in table.configurations], dtype=object)
    dtypes = np.array([op.dtype.value for op in table.configurations], dtype=object)
    columns = [
        families[table.configuration],
        np.array([setting_of(text) for text in table.framework], dtype=object),
        dtypes[table.configuration],
        np.array([device.name for device in table.device], dtype=object),
    ]
    numbers, texts = [], []
    for column in columns:
        values, number = np.unique(column.astype(str), return_inverse=True)
        numbers.append(number)
        texts.append(values)
    combined = np.ravel_multi_index(tuple(numbers), tuple(len(values) for values in texts))
    found: dict[CellKey, npt.NDArray[np.int64]] = {}
    order = np.argsort(combined, kind="stable")
    bounds = np.flatnonzero(np.diff(combined[order], prepend=-1))
    for rows in np.split(order, bounds[1:]):
        family, setting, dtype, device = (str(texts[i][numbers[i][rows[0]]]) for i in range(4))
        if family:
            found[family, setting, dtype, device] = rows
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Operators of one family with their measurements: one entry for each merged row.

    ``setting`` is the software that an operator was measured in, as the model sees it; ``device`` is the device's name.
    """

    shapes: Shapes
    found: Features
    seconds: Floats
    setting: Sequence[str]
    dtype: Sequence[str]
    device: Sequence[str]
    key: npt.NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.seconds)

    @property
    def target(self) -> Floats:
        """Log of time over roofline."""
        return np.asarray(np.log(self.seconds / self.found.baseline_s))

    @property
    def names(self) -> list[str]:
        """The operators' names."""
        return self.shapes.names

    def take(self, chosen: npt.NDArray[np.int64]) -> Rows:
        """Some of the entries."""
        picked = chosen.tolist()
        return Rows(
            shapes=self.shapes.take(chosen),
            found=Features(
                flat=self.found.flat[chosen], tiles=self.found.tiles[chosen], baseline_s=self.found.baseline_s[chosen]
            ),
            seconds=self.seconds[chosen],
            setting=[self.setting[i] for i in picked],
            dtype=[self.dtype[i] for i in picked],
            device=[self.device[i] for i in picked],
            key=self.key[chosen],
        )


def rows_of(family: str, table: OperatorTable, merged: Merged, *, by_setting: bool) -> Rows:
    """Return the merged rows of a table, all of ``family``.

    ``setting`` of a row is its setting with ``by_setting``, otherwise the text of its framework.
    """
    first = merged.first
    configurations = [table.configurations[i] for i in table.configuration[first].tolist()]
    shapes = shapes_of(family, configurations)
    devices = table.device[first].tolist()
    dtypes = [op.dtype.value for op in configurations]
    known = {pair: Rates.of(*pair) for pair in set(zip(devices, dtypes, strict=True))}
    rates = [known[pair] for pair in zip(devices, dtypes, strict=True)]
    columns = {name: np.array([float(getattr(r, name)) for r in rates]) for name in Rates.__slots__}
    frameworks = table.framework[first].tolist()
    return Rows(
        shapes=shapes,
        found=features(shapes, Rates(**columns)),
        seconds=merged.median(table.seconds),
        setting=[setting_of(text) for text in frameworks] if by_setting else frameworks,
        dtype=dtypes,
        device=[device.name for device in devices],
        key=table.key[first],
    )


def joined_rows(parts: list[Rows]) -> Rows:
    """Rows of several cells as one."""
    before = np.cumsum([0, *(len(p.shapes.details) for p in parts)])
    shapes = replace(
        parts[0].shapes,
        sizes=np.concatenate([p.shapes.sizes for p in parts]),
        passes=np.concatenate([p.shapes.passes for p in parts]),
        details=tuple(d for p in parts for d in p.shapes.details),
        which=np.concatenate([p.shapes.which + start for p, start in zip(parts, before[:-1], strict=True)]),
    )
    found = replace(
        parts[0].found,
        flat=np.concatenate([p.found.flat for p in parts]),
        tiles=np.concatenate([p.found.tiles for p in parts]),
        baseline_s=np.concatenate([p.found.baseline_s for p in parts]),
    )
    return Rows(
        shapes=shapes,
        found=found,
        seconds=np.concatenate([p.seconds for p in parts]),
        setting=[x for p in parts for x in p.setting],
        dtype=[x for p in parts for x in p.dtype],
        device=[x for p in parts for x in p.device],
        key=np.concatenate([p.key for p in parts]),
    )


def vocabulary_of(rows: Rows) -> dict[str, list[str]]:
    """The texts of each column, the most frequent first."""
    columns = [*zip(*(rows.shapes.details[i] for i in rows.shapes.which), strict=True), rows.setting, rows.dtype]
    return {
        name: [text for text, _ in sorted(Counter(column).items(), key=lambda item: (-item[1], item[0]))]
        for name, column in zip(COLUMNS, columns, strict=True)
    }


def codes_of(rows: Rows, vocabulary: Mapping[str, Sequence[str]]) -> npt.NDArray[np.int64]:
    """The texts of the rows as numbers."""
    return encode(rows.shapes, rows.setting, rows.dtype, vocabulary)


def examples_of(rows: Rows, vocabulary: Mapping[str, Sequence[str]]) -> Examples:
    """The rows as training examples of a network."""
    hot = one_hot(codes_of(rows, vocabulary), vocabulary)
    return Examples(flat=rows.found.flat, tiles=rows.found.tiles, categories=hot, target=rows.target)


def table_of(rows: Rows, vocabulary: Mapping[str, Sequence[str]]) -> npt.NDArray[np.float32]:
    """The rows as a table of features, for trees and linear models."""
    return trees_table(rows.found, codes_of(rows, vocabulary))
