"""Figures that look as if they were in another unit, told by how far they are from their forecasts.

A forecast without calibration is within a factor of a few of what ran, a wrong unit is off by 60 or more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

_TIMES: Final = (
    (1e9, "nanoseconds"),
    (1e6, "microseconds"),
    (1e3, "milliseconds"),
    (1 / 60, "minutes"),
    (1 / 1000, "thousands of seconds"),
    (1 / 3600, "hours"),
)
"""Measured over forecast, where ``step_time_s`` holds another unit than seconds."""
_MEMORIES: Final = ((1024.0**3, "bytes"), (1024.0**2, "KiB"), (1024.0, "MiB"), (1 / 1024, "TiB"))
"""Measured over forecast, where ``mem_gb`` holds another unit than GiB."""
_SLOW: Final = 6.0
"""A unit is guessed for a run that is slower than its forecast only so near to it: real runs may be very slow."""
_FAST: Final = 15.0
"""Nothing runs so many times faster than forecast: whatever unit is nearest is guessed."""


def time_unit(measured_s: float, forecast_s: float) -> str:
    """The unit that a measured time seems to be in, "" if it may well be in seconds."""
    return _guess(measured_s / forecast_s, _TIMES)


def memory_unit(measured: float, forecast: float) -> str:
    """The unit that a measured memory seems to be in, "" if it may well be as stated."""
    return _guess(measured / forecast, _MEMORIES)


def wrong_time_unit(pairs: Sequence[tuple[float, float]]) -> str:
    """A sentence with the guess if most (measured, forecast) times of a table look like another unit, else ""."""
    return _sentence("step_time_s", "s", 1.0, pairs, [time_unit(*pair) for pair in pairs])


def wrong_memory_unit(pairs: Sequence[tuple[float, float]]) -> str:
    """The same of (measured, forecast) bytes."""
    return _sentence("mem_gb", "GiB", 1024.0**3, pairs, [memory_unit(*pair) for pair in pairs])


def _guess(ratio: float, units: Sequence[tuple[float, str]]) -> str:
    factor, name = min(units, key=lambda unit: abs(math.log(ratio / unit[0])))
    if ratio < 1.0 / _FAST:
        return name
    return name if factor > 1.0 and 1.0 / _SLOW < ratio / factor < _SLOW else ""


def _sentence(
    column: str, shown: str, unit: float, pairs: Sequence[tuple[float, float]], guesses: Sequence[str]
) -> str:
    found = [i for i, guess in enumerate(guesses) if guess]
    if 2 * len(found) <= len(pairs) or not found:
        return ""
    guess = max(sorted({guesses[i] for i in found}), key=guesses.count)
    measured, forecast = pairs[guesses.index(guess)]
    return (
        f"{column} looks like {guess}: {measured / unit:.4g} {shown} are stated where {forecast / unit:.4g} {shown} "
        f"are forecast, and {len(found)} of {len(pairs)} runs are as far off"
    )
