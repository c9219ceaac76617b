"""Figures of a study: errors, shares inside intervals, modes, picks and learning curves of its rows.

A row is an entry of ``rows`` of a study (see ``benchmarks.study``): what ran, what was measured, and forecasts of it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from traincast.cluster import MOST_LIKELY
from traincast.validating.metrics import spearman

Row = Mapping[str, Any]
Key = TypeVar("Key", bound=Hashable)

BANDS = ((1, 1, "1"), (2, 8, "2–8"), (9, 64, "9–64"), (65, 256, "65–256"), (257, 10**9, "257 and more"))
"""Numbers of GPUs that are shown together."""
TABLES = {
    "steps": "Language models under a stated strategy",
    "dp-steps": "Data-parallel training of other models",
}
"""The tables of a study, and their titles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Errors of ``n`` forecasts in per cent: their mean and median size, and the median with its sign."""

    n: int
    mean: float
    median: float
    bias: float


def errors(rows: Iterable[Row], forecast: str | Callable[[Row], float | None]) -> Errors:
    """Return the errors of a forecast, named by its field or computed, on the rows that have one."""
    value = forecast if callable(forecast) else lambda row: row.get(forecast)
    found = [100.0 * (made / row["measured"] - 1.0) for row in rows if (made := value(row)) is not None]
    if not found:
        return Errors(n=0, mean=math.nan, median=math.nan, bias=math.nan)
    size = np.abs(found)
    return Errors(n=len(found), mean=float(size.mean()), median=float(np.median(size)), bias=float(np.median(found)))


def covered(rows: Iterable[Row], low: str = "low", high: str = "high") -> float:
    """Return the share of measured times inside an interval, given the fields of its ends; NaN if no row has one."""
    known = [row for row in rows if row.get(low) is not None and row.get(high) is not None]
    return sum(row[low] <= row["measured"] <= row[high] for row in known) / len(known) if known else math.nan


def grouped(rows: Iterable[Row], key: Callable[[Row], Key]) -> dict[Key, list[Row]]:
    """Return the rows of each ``key``."""
    groups: dict[Key, list[Row]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return dict(groups)


def by_source(rows: Iterable[Row]) -> list[tuple[str, list[Row]]]:
    """Return the rows of each source, in the order of their names."""
    return sorted(grouped(rows, lambda row: str(row["source"])).items())


def log_error(row: Row, forecast: str = "calibrated") -> float:
    """Return the logarithm of forecast over measured."""
    return math.log(row[forecast] / row["measured"])


def settings(row: Row) -> dict[str, str]:
    """Return the settings of a row's strategy as text; flags that are set have an empty value."""
    return {name: value for name, _, value in (part.partition("=") for part in row["strategy"].split(","))}


def degree(row: Row, axis: str) -> int:
    """Return the degree of an axis of a row's strategy."""
    return int(settings(row).get(axis, "1"))


def samples(row: Row) -> int:
    """Return the samples of a step over all replicas."""
    return degree(row, "dp") * degree(row, "num_microbatches") * int(row["micro_batch"] or 1)


def band(row: Row) -> str:
    """Return the band of a row's number of GPUs."""
    return next(name for low, high, name in BANDS if low <= int(row["n_gpus"]) <= high)


def precision(row: Row) -> str:
    """Return the precision of a row in one spelling."""
    stated = str(row["precision"] or "").lower()
    return next((name for name in ("fp4", "fp8", "bf16", "fp16", "tf32", "fp32") if name in stated), "not stated")


def axes(row: Row) -> list[str]:
    """Return a phrase for each technique of a row's strategy."""
    said = settings(row)
    found = [f"{axis} > 1" for axis in ("tp", "pp", "cp", "ep") if degree(row, axis) > 1]
    if degree(row, "tp") * row["nodes"] > int(row["n_gpus"]):
        found.append("tp across nodes")
    if not any(degree(row, axis) > 1 for axis in ("tp", "pp", "cp", "ep")):
        found.append("data parallelism only" if degree(row, "dp") > 1 else "one GPU")
    found.append(f"ZeRO stage {said.get('zero', '0')}")
    found.append(f"recomputation: {said.get('recompute', 'none')}")
    found.append(f"precision: {precision(row)}")
    return found


def stalled(row: Row) -> bool | None:
    """Return whether a run was nearer the slow mode of its cluster than the usual one; None without a slow mode."""
    if not row.get("stall_chance") or not row.get("usual") or not row.get("stalled"):
        return None
    slow, usual = (abs(math.log(row["measured"] / row[mode])) for mode in ("stalled", "usual"))
    return slow < usual


def stall_forecast(row: Row) -> bool:
    """Return whether a run was forecast to be in the slow mode."""
    return bool((row.get("stall_chance") or 0.0) >= MOST_LIKELY)


def in_its_mode(row: Row) -> float | None:
    """Return the calibrated forecast in the mode that the run was in."""
    value: float | None = row.get("stalled") if stalled(row) else row.get("usual")
    return value


def expected(row: Row) -> float | None:
    """Return the expected time with probability p of a stall: (1 − p)·usual + p·stalled."""
    if row.get("usual") is None:
        return None
    chance = row.get("stall_chance") or 0.0
    return float((1.0 - chance) * row["usual"] + chance * row["stalled"])


def log_mean(row: Row) -> float | None:
    """Return the geometric mean of both modes, weighted by their probabilities."""
    if row.get("usual") is None:
        return None
    return float(row["usual"] * (row["stalled"] / row["usual"]) ** (row.get("stall_chance") or 0.0))


def in_the_worse(row: Row, chance: float) -> float | None:
    """Return the stalled time if a stall has at least the probability ``chance``, and the usual one otherwise.

    This is the quantile 1 − ``chance`` of a run that takes one of both times.
    """
    if row.get("usual") is None:
        return None
    return float(row["stalled"] if (row.get("stall_chance") or 0.0) >= chance else row["usual"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """How good the runs are that a forecast picks from ``groups`` groups of runs.

    ``mean`` and ``median`` are of the regret in per cent: the time of the picked run over that of the best run, minus
    one. ``best`` is the share of groups whose best run was picked, ``rank`` the mean Spearman correlation in groups.
    """

    groups: int
    mean: float
    median: float
    best: float
    rank: float


def picks(groups: Iterable[Sequence[Row]], forecast: Callable[[Row], float | None]) -> Pick:
    """Pick the run with the shortest forecast from each group, and compare it with the best run."""
    regrets, ranks = [], []
    for rows in groups:
        measured = np.array([row["measured"] for row in rows])
        made = np.array([value if (value := forecast(row)) is not None else math.inf for row in rows])
        regrets.append(float(measured[int(made.argmin())] / measured.min()) - 1.0)
        ranks.append(spearman(measured, made))
    return _pick(regrets, ranks)


def random_picks(groups: Iterable[Sequence[Row]]) -> Pick:
    """Return the expected result of picking a run of each group at random."""
    regrets, best = [], []
    for rows in groups:
        measured = np.array([row["measured"] for row in rows])
        regrets.append(float((measured / measured.min()).mean()) - 1.0)
        best.append(1.0 / len(rows))
    made = _pick(regrets, [0.0] * len(regrets))
    return Pick(groups=made.groups, mean=made.mean, median=made.median, best=_mean(best), rank=0.0)


def _pick(regrets: Sequence[float], ranks: Sequence[float]) -> Pick:
    return Pick(
        groups=len(regrets),
        mean=100.0 * _mean(regrets),
        median=100.0 * float(np.median(regrets)) if regrets else math.nan,
        best=_mean([float(regret == 0.0) for regret in regrets]),
        rank=_mean([rank for rank in ranks if not math.isnan(rank)]),
    )


def curves(groups: Iterable[Mapping[str, Any]]) -> dict[str, dict[int, float]]:
    """Return the mean errors of each source by runs seen; its groups are weighted by their runs."""
    sums: dict[str, dict[int, list[tuple[float, int]]]] = defaultdict(lambda: defaultdict(list))
    for group in groups:
        for point in group["learning_curve"]:
            sums[group["source"]][point["runs"]].append((point["mean_error"], group["runs"]))
    return {
        source: {
            size: sum(e * runs for e, runs in found) / sum(runs for _, runs in found)
            for size, found in sorted(sizes.items())
        }
        for source, sizes in sorted(sums.items())
    }


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else math.nan
