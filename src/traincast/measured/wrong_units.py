"""Figures that look as if they were in another unit, because they are far from their forecasts.

A forecast without calibration is within a small factor of the measurement; a wrong unit is off by 60 or more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from traincast.measured.dialect import vocabulary
from traincast.measured.memory import Units


def time_unit(measured_s: float, forecast_s: float) -> str:
    """Return the unit that a measured time seems to be in; "" if it may be in seconds."""
    return _guess(measured_s / forecast_s, vocabulary(Units).times)


def memory_unit(measured: float, forecast: float) -> str:
    """Return the unit that a measured memory seems to be in; "" if it may be in the unit stated."""
    return _guess(measured / forecast, vocabulary(Units).memories)


def wrong_time_unit(pairs: Sequence[tuple[float, float]]) -> str:
    """Return a sentence with the guess if most (measured, forecast) times of a table look wrong; otherwise ""."""
    return _sentence("step_time_s", "s", 1.0, pairs, [time_unit(*pair) for pair in pairs])


def wrong_memory_unit(pairs: Sequence[tuple[float, float]]) -> str:
    """Return the same sentence for pairs of (measured, forecast) bytes."""
    return _sentence("mem_gb", "GiB", 1024.0**3, pairs, [memory_unit(*pair) for pair in pairs])


def _guess(ratio: float, units: Mapping[str, float]) -> str:
    """Return the unit that explains a ratio of measured to forecast; "" if none is needed."""
    limits = vocabulary(Units)
    name, factor = min(units.items(), key=lambda unit: abs(math.log(ratio / unit[1])))
    if ratio < 1.0 / limits.fast:
        return name
    return name if factor > 1.0 and 1.0 / limits.slow < ratio / factor < limits.slow else ""


def _sentence(
    column: str, shown: str, unit: float, pairs: Sequence[tuple[float, float]], guesses: Sequence[str]
) -> str:
    found = [i for i, guess in enumerate(guesses) if guess]
    if 2 * len(found) <= len(pairs) or not found:
        return ""
    guess = max(sorted({guesses[i] for i in found}), key=guesses.count)
    measured, forecast = pairs[guesses.index(guess)]
    return (
        f"{column} looks like {guess}: a row states {measured / unit:.4g} {shown}, its forecast is "
        f"{forecast / unit:.4g} {shown}, and {len(found)} of {len(pairs)} runs are as far off"
    )
