"""Split measurements into training and test sides that share no configuration.

A table of measurements has each configuration several times: repeats, releases, devices. A plain random split puts
copies of one configuration on both sides, so that the test partly measures memory. :func:`protocol_split` is the
partition of swPredictor, which avoids that. :func:`by_unseen_dims` is harder: it tests sizes that nobody trained on.

Every function takes parallel columns, one entry for each row: ``keys`` (what ran, without the device; see
:attr:`traincast.fitting.rows.dataset.OperatorTable.key`) and ``groups`` (what is not merged, such as device and
framework). Random choices are hashes of the seed and of the rows' content, so that the order of rows does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from traincast.errors import RequestError

Keys: TypeAlias = npt.NDArray[np.uint64]
Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
Mask: TypeAlias = npt.NDArray[np.bool_]

TRAIN_SHARE: Final = 0.8
"""Four parts to train on, one to test on."""
_ROWS, _INTERSECTION, _DIMS, _VALIDATION = range(4)
"""Numbers of the independent random draws."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """Rows merged into one example for each key and group: example ``i`` is ``rows[starts[i]:starts[i + 1]]``."""

    rows: Ints
    starts: Ints

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def first(self) -> Ints:
        """One row of each example, for columns that are equal in all its rows."""
        return self.rows[self.starts[:-1]]

    def median(self, values: Floats) -> Floats:
        """The median of a column over the rows of each example."""
        example = np.repeat(np.arange(len(self)), np.diff(self.starts))
        own = values[self.rows]
        ordered = own[np.lexsort((own, example))]
        begin, count = self.starts[:-1], np.diff(self.starts)
        middle: Floats = (ordered[begin + (count - 1) // 2] + ordered[begin + count // 2]) / 2
        return middle

    def take(self, examples: npt.NDArray[Any]) -> Merged:
        """Some of the examples, by position or by mask."""
        chosen = np.arange(len(self))[examples]
        counts = np.diff(self.starts)[chosen]
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        offsets = np.arange(starts[-1]) - np.repeat(starts[:-1], counts)
        return Merged(rows=self.rows[np.repeat(self.starts[chosen], counts) + offsets], starts=starts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Examples to train on and examples to test on."""

    train: Merged
    test: Merged


def protocol_split(keys: Keys, groups: Ints, values: Floats, *, seed: int = 0) -> Split:
    """swPredictor's partition: no configuration is on both sides, on any device.

    Rows are split 4 : 1 at random, and each side is deduplicated. Configurations on both sides (I) are split 4 : 1 once
    more: Final_Train = (Dedup_Train \\ I) ∪ I_0.8, Final_Test = (Dedup_Test \\ I) ∪ I_0.2. ``values`` are the measured
    times: the side of a row is drawn from a hash of its key, its time and ``seed``.
    """
    distinct, number = np.unique(keys, return_inverse=True)
    in_train = _chance(_mixed(keys, values.astype(np.float64).view(np.uint64)), seed, _ROWS) < TRAIN_SHARE
    train_rows = np.bincount(number, weights=in_train, minlength=len(distinct))
    all_rows = np.bincount(number, minlength=len(distinct))
    of_intersection = _chance(distinct, seed, _INTERSECTION) < TRAIN_SHARE
    trained = np.where(train_rows == all_rows, True, np.where(train_rows == 0, False, of_intersection))
    return _split(keys, groups, ~trained[number])


def by_unseen_dims(keys: Keys, groups: Ints, dims: Sequence[Ints], *, count: int = 4, seed: int = 0) -> Split:
    """Test interpolation to unseen widths: all rows in which one of ``dims`` has one of ``count`` held-out values.

    The values are drawn among those between the smallest and the largest.
    """
    values = np.unique(np.concatenate([np.unique(dim) for dim in dims]))
    inner = values[1:-1]
    if len(inner) < count:
        raise RequestError(
            f"cannot hold out {count} values of dims that have {len(values)}: at least {count + 2} needed"
        )
    held = inner[np.argsort(_chance(inner.astype(np.uint64), seed, _DIMS), kind="stable")[:count]]
    tested = np.zeros(len(keys), dtype=bool)
    for dim in dims:
        tested |= np.isin(dim, held)
    return _split(keys, groups, _whole_keys(keys, tested))


def carve_validation(train: Merged, keys: Keys, *, share: float = 0.1, seed: int = 0) -> Split:
    """Set aside a ``share`` of the training configurations, each with all its examples, for validation."""
    aside = _chance(keys[train.first], seed, _VALIDATION) < share
    return Split(train=train.take(~aside), test=train.take(aside))


def _split(keys: Keys, groups: Ints, tested: Mask) -> Split:
    return Split(train=_merged(keys, groups, ~tested), test=_merged(keys, groups, tested))


def _whole_keys(keys: Keys, tested: Mask) -> Mask:
    """The rows of every configuration that has a tested row."""
    return np.isin(keys, np.unique(keys[tested]))


def _merged(keys: Keys, groups: Ints, chosen: Mask) -> Merged:
    """The chosen rows, one example for each key and group."""
    rows = np.flatnonzero(chosen)
    rows = rows[np.lexsort((groups[rows], keys[rows]))]
    new = (np.diff(keys[rows]) != 0) | (np.diff(groups[rows]) != 0)
    starts = np.concatenate([[0], np.flatnonzero(new) + 1, [len(rows)]]) if len(rows) else np.zeros(1)
    return Merged(rows=rows, starts=starts.astype(np.int64))


def _mixed(a: Keys, b: Keys) -> Keys:
    return _scrambled(a) ^ (_scrambled(b) << np.uint64(1))


def _chance(content: Keys, seed: int, draw: int) -> Floats:
    """A number from 0 to 1 for each entry, which depends on its content, ``seed`` and ``draw`` only."""
    salt = _scrambled(_scrambled(np.array([seed & 0xFFFF_FFFF_FFFF_FFFF], dtype=np.uint64)) + np.uint64(draw))
    return (_scrambled(content ^ salt) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _scrambled(x: Keys) -> Keys:
    """The finalizer of SplitMix64 (Steele, Lea and Flood, 2014): every bit depends on every bit."""
    z = x + np.uint64(0x9E37_79B9_7F4A_7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    return z ^ (z >> np.uint64(31))
