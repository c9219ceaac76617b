"""The runs with the largest errors of calibrated forecasts, and what the other rows suggest as the reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from benchmarks.figures import Row, degree, grouped, in_its_mode, log_error, stall_forecast, stalled

_REPEATS_DIFFER: Final = 0.15
_FEW: Final = 15
_SHARED: Final = 0.5
"""Other runs share an error if their median error is at least this part of it."""
_ALONE: Final = 0.1
_PART: Final = {
    "gemm": "matrix products",
    "narrow_gemm": "products in 8 or 4 bits",
    "attention": "attention",
    "memory": "memory-bound operators",
    "grouped": "products of experts",
    "conv": "convolutions",
    "intra": "collectives within nodes",
    "inter": "collectives between nodes",
    "send": "sends between stages",
    "kernels": "launches of the host",
    "blocks": "the host's work per layer",
    "collectives": "the host's work per collective",
    "handshakes": "the host's work per send",
    "waits": "hosts that wait for one another",
    "other": "other work",
}


def worst(rows: Sequence[Row], count: int) -> list[Row]:
    """Return the rows with the largest ratio between calibrated forecast and measurement, the largest first."""
    known = [row for row in rows if row.get("calibrated") is not None]
    return sorted(known, key=lambda row: (-abs(log_error(row)), row["index"]))[:count]


class Reasons:
    """Possible reasons for the error of a row, found in the other rows of its study."""

    def __init__(self, study: Mapping[str, Any]) -> None:
        known = [row for row in study["rows"] if row.get("calibrated") is not None]
        self._repeats = grouped(study["rows"], _configuration)
        self._like = [(words, key, grouped(known, key)) for words, key in _LIKE]
        self._runs = {(g["source"], g["device"], g["runtime"]): g["runs"] for g in study["groups"]}

    def of(self, row: Row) -> list[str]:
        """Return phrases that may explain the error of a row, the most important first."""
        mode = _mode(row)
        found = [mode, self._repeat(row)]
        if not mode:
            found += [self._neighbours(row), self._small(row), _taught(row)]
        return [phrase for phrase in (*found, _part(row)) if phrase]

    def _repeat(self, row: Row) -> str:
        times = [other["measured"] for other in self._repeats[_configuration(row)]]
        apart = max(times) / min(times) - 1.0
        if apart <= _REPEATS_DIFFER:
            return ""
        return f"{len(times)} runs of this configuration differ by {100 * apart:.0f} % among themselves"

    def _neighbours(self, row: Row) -> str:
        for words, key, groups in self._like:
            others = [_own_mode(other) for other in groups[key(row)] if other is not row]
            if len(others) < 2:
                continue
            middle, own = float(np.median(others)), log_error(row)
            said = f"the {len(others)} other runs {words} are"
            if middle * own > 0 and abs(middle) >= _SHARED * abs(own):
                return f"{said} off in the same way (median {_signed(middle)})"
            return f"no shared error: {said} off by {_signed(middle)} at the median" if abs(middle) < _ALONE else ""
        return "fewer than two other runs of its model on this cluster"

    def _small(self, row: Row) -> str:
        runs = self._runs.get((row["group"], row["device"], row["runtime"]), 0)
        return f"only {runs} runs on its cluster with its framework" if 0 < runs < _FEW else ""


def _configuration(row: Row) -> tuple[object, ...]:
    """Return what repeats of one run share; the zero-shot forecast stands for batch and length, which rows lack."""
    names = ("table", "source", "model", "strategy", "n_gpus", "precision", "device", "runtime")
    return (*(row[name] for name in names), f"{row['zero_shot']:.9g}")


def _place(row: Row) -> tuple[object, ...]:
    return tuple(row[name] for name in ("table", "source", "model", "device", "runtime"))


def _degrees(row: Row) -> tuple[object, ...]:
    return (*_place(row), row["n_gpus"], *(degree(row, axis) for axis in ("dp", "tp", "pp", "cp", "ep")))


_LIKE: Final[tuple[tuple[str, Callable[[Row], tuple[object, ...]]], ...]] = (
    ("of its model and degrees", _degrees),
    ("of its model on as many GPUs", lambda row: (*_place(row), row["n_gpus"])),
    ("of its model on this cluster", _place),
)
"""Groups of similar runs, the most similar first."""


def _own_mode(row: Row) -> float:
    """Return the error of the forecast in the mode that the run was in."""
    own = in_its_mode(row) if stalled(row) is not None else None
    return log_error(row) if own is None else math.log(own / row["measured"])


def _mode(row: Row) -> str:
    """Return a phrase if a run was in another mode than forecast, with the error of the forecast in its own mode."""
    was, own = stalled(row), in_its_mode(row)
    if was is None or own is None or was == stall_forecast(row):
        return ""
    what = "stalled, but no stall was forecast" if was else "did not stall, but a stall was forecast"
    chance = f"probability of a stall {100 * row['stall_chance']:.0f} %"
    return f"{what} ({chance}; in its own mode {_signed(math.log(own / row['measured']))})"


def _taught(row: Row) -> str:
    """Return a phrase if the zero-shot forecast of the run was much better."""
    before, after = abs(log_error(row, "zero_shot")), abs(log_error(row))
    return f"zero-shot {_signed(log_error(row, 'zero_shot'))}" if before < _SHARED * after else ""


def _part(row: Row) -> str:
    parts = row.get("parts")
    if not parts:
        return ""
    name = max(parts, key=parts.get)
    return f"mostly {_PART.get(name, name)} ({100 * parts[name] / sum(parts.values()):.0f} % of all work)"


def _signed(log: float) -> str:
    return f"{100 * math.expm1(log):+.0f} %"
