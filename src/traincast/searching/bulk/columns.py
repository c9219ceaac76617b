"""The strategies that a search has evaluated, as columns: one row per strategy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traincast.searching.bulk.family import EvaluatedFamily
from traincast.searching.space import OFFLOADS, recomputation, recomputes
from traincast.strategy import Strategy
from traincast.strategy.schedules import SCHEDULES

Array = npt.NDArray[Any]

_OFFLOADS: Final = {offload: name for name, offload in OFFLOADS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyColumns:
    """Strategies with their step time in seconds and memory in bytes; ``seconds`` is infinite if one does not fit.

    Names are stored as numbers; :meth:`value` returns the name. ``cut`` is an index into ``cuts``, whose entries have
    the number of layers of each piece; an empty entry is an even cut. ``cluster`` is an index into the requested
    clusters.
    """

    cluster: Array
    tp: Array
    cp: Array
    pp: Array
    ep: Array
    dp: Array
    micro_batch: Array
    num_microbatches: Array
    sequence_parallel: Array
    recompute: Array
    schedule: Array
    virtual_stages: Array
    zero: Array
    offload: Array
    cut: Array
    memory: Array
    seconds: Array
    cuts: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.seconds)

    def take(self, rows: Array) -> StrategyColumns:
        """Return the table with only these rows, in this order."""
        return replace(self, **{name: getattr(self, name)[rows] for name in COLUMNS})

    def strategy(self, row: int, base: Strategy) -> Strategy:
        """Return the strategy of a row; ``base`` has the settings that a search does not vary."""
        recompute, every = recomputation(recomputes()[int(self.recompute[row])])
        return replace(
            base,
            tp=int(self.tp[row]),
            cp=int(self.cp[row]),
            pp=int(self.pp[row]),
            ep=int(self.ep[row]),
            dp=int(self.dp[row]),
            num_microbatches=int(self.num_microbatches[row]),
            sequence_parallel=bool(self.sequence_parallel[row]),
            recompute=recompute,
            recompute_every=every,
            schedule=list(SCHEDULES)[int(self.schedule[row])],
            virtual_stages=int(self.virtual_stages[row]),
            zero=int(self.zero[row]),  # type: ignore[arg-type]
            offload=list(OFFLOADS.values())[int(self.offload[row])],
            layers=self.cuts[int(self.cut[row])],
        )

    def value(self, name: str, row: int) -> Any:
        """Return the value of a column in a row as people write it, such as ``1f1b`` for a schedule."""
        value = getattr(self, name)[row]
        match name:
            case "schedule":
                return list(SCHEDULES)[int(value)]
            case "recompute":
                return recomputes()[int(value)]
            case "offload":
                return list(OFFLOADS)[int(value)]
            case "cut":
                return "balanced" if self.cuts[int(value)] else "even"
            case "sequence_parallel":
                return bool(value)
            case _:
                return value.item()

    def distinct(self) -> StrategyColumns:
        """Return the table without repeated strategies."""
        key, size = np.zeros(len(self), dtype=np.int64), 1
        for name in _TIES:
            if name != "memory":
                column = getattr(self, name).astype(np.int64)
                span = 1 + int(column.max(initial=0))
                if size * span > _MOST_KEYS:  # fewer numbers for the strategies so far
                    found, key = np.unique(key, return_inverse=True)
                    size = len(found)
                key, size = key * span + column, size * span
        _, first = np.unique(key, return_index=True)
        return self.take(np.sort(first))

    def order(self, objective: Array) -> Array:
        """Return the rows sorted by ``objective``, then by strategy, so that the order is always the same."""
        keys = [getattr(self, name) for name in reversed(_TIES)]
        found: Array = np.lexsort([*keys, objective])
        return found


_AMOUNTS: Final = ("memory", "seconds")
_MOST_KEYS: Final = 2**62
"""A strategy is one number up to this: the numbers in its columns, one after the other."""
COLUMNS: Final = tuple(f.name for f in fields(StrategyColumns) if f.name != "cuts")
_TIES: Final = (
    "cluster", "memory", "pp", "tp", "cp", "ep", "micro_batch", "sequence_parallel", "recompute", "schedule",
    "virtual_stages", "zero", "offload", "cut",
)  # fmt: skip


def columns_of(entries: Iterable[EvaluatedFamily], *, cluster: int = 0) -> StrategyColumns:
    """Return all members of evaluated families; ``cluster`` is the number of their cluster."""
    cuts: dict[tuple[int, ...], int] = {(): 0}
    parts: dict[str, list[Array]] = {name: [] for name in COLUMNS}
    for entry in entries:
        family, at = entry.family, entry.family.degrees
        count = len(entry.sharings)
        sharings = {
            "zero": np.array([s.zero for s in entry.sharings], dtype=np.int8),
            "offload": np.array([_number(OFFLOADS, _OFFLOADS[s.offload]) for s in entry.sharings], dtype=np.int8),
        }
        fixed = {
            "cluster": np.int16(cluster),
            "tp": np.int32(at.tp),
            "cp": np.int32(at.cp),
            "pp": np.int32(at.pp),
            "ep": np.int32(at.ep),
            "dp": np.int32(family.dp),
            "micro_batch": np.int32(family.micro_batch),
            "num_microbatches": np.int32(family.num_microbatches),
            "sequence_parallel": np.bool_(family.sequence_parallel),
            "recompute": np.int8(recomputes().index(family.recompute)),
        }
        for name, value in fixed.items():
            parts[name].append(np.full(count * len(entry.batches), value))
        each = {
            "schedule": [np.int8(list(SCHEDULES).index(batch.way.schedule)) for batch in entry.batches],
            "virtual_stages": [np.int16(batch.way.virtual_stages) for batch in entry.batches],
            "cut": [np.int32(cuts.setdefault(entry.cuts[batch.cut].layers, len(cuts))) for batch in entry.batches],
        }
        for name, values in each.items():
            parts[name].append(np.repeat(np.array(values), count))
        for name, shared in sharings.items():
            parts[name].append(np.tile(shared, len(entry.batches)))
        parts["memory"] += [batch.memory for batch in entry.batches]
        parts["seconds"] += [batch.seconds for batch in entry.batches]
    return StrategyColumns(**{name: _column(name, found) for name, found in parts.items()}, cuts=tuple(cuts))


def _number(table: dict[str, Any], name: str) -> int:
    return list(table).index(name)


def joined(parts: Sequence[StrategyColumns]) -> StrategyColumns:
    """Return the rows of several tables as one table, in order; cuts are renumbered."""
    cuts: dict[tuple[int, ...], int] = {(): 0}
    numbers = [np.array([cuts.setdefault(cut, len(cuts)) for cut in part.cuts], dtype=np.int32) for part in parts]
    rows = {name: [getattr(part, name) for part in parts if len(part)] for name in COLUMNS}
    rows["cut"] = [number[part.cut] for number, part in zip(numbers, parts, strict=True) if len(part)]
    return StrategyColumns(**{name: _column(name, found) for name, found in rows.items()}, cuts=tuple(cuts))


def _column(name: str, parts: list[Array]) -> Array:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.float64 if name in _AMOUNTS else np.int64)
