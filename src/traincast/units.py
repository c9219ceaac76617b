"""Reads and formats quantities with units. Everywhere else, values are in seconds, bytes and FLOP."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Final

from traincast.errors import RequestError

KIB: Final = 1024
MIB: Final = 1024**2
GIB: Final = 1024**3
GB: Final = 1e9
MICRO: Final = 1e-6
HOUR: Final = 3600.0
DAY: Final = 86400.0

_SUFFIX: Final = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}
_NUMBER: Final = re.compile(r"^\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([kKmMgGbBtT]?)\s*$")


def parse_count(text: str, *, what: str) -> int:
    """Read a positive whole number such as ``256``, ``1e12``, ``15T`` or ``4k``."""
    match = _NUMBER.match(text)
    if match is None:
        raise RequestError(f"{what} is {text!r}: expected a positive number such as 256, 1e12 or 15T")
    value = float(match.group(1)) * _SUFFIX[match.group(2).lower()]
    if not math.isfinite(value) or value < 1 or value > 1e18:
        raise RequestError(f"{what} is {text!r}: expected a whole number from 1 to 1e18")
    if value != math.floor(value):
        raise RequestError(f"{what} is {text!r}: expected a whole number")
    return int(value)


_BYTE_UNITS: Final = {
    "": 1.0, "b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "kib": KIB, "mib": MIB, "gib": GIB,
    "tib": 1024 * GIB,
}  # fmt: skip
_TIME_UNITS: Final = {"": 1.0, "s": 1.0, "min": 60.0, "m": 60.0, "h": HOUR, "d": DAY, "w": 7 * DAY, "y": 365 * DAY}
_BITS: Final = ("bit", "b")
_RATE: Final = re.compile(
    r"^\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*(?:([kKMGT]?)(bit|byte|b|B)(?:/s|ps)?)?\s*$", re.ASCII
)
_AMOUNT: Final = re.compile(r"^\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([a-zA-Z]*)\s*$", re.ASCII)


def parse_bytes(text: str, *, what: str) -> float:
    """Read a size above zero such as ``70GB``, ``64GiB`` or ``8e10``, in bytes; a number without a unit is bytes."""
    return _amount(text, _BYTE_UNITS, what=what, kind="a size", example="70GB or 64GiB", least="above zero")


def parse_rate(text: str, *, what: str) -> float:
    """Read a data rate above zero such as ``1 Gbit/s``, ``200Mbps`` or ``25 GB/s``, in bytes/s.

    A number without a unit is bytes/s. ``b`` alone is bytes only in capitals: ``Gb`` are bits, ``GB`` bytes.
    """
    match = _RATE.match(text)
    if match is None or not 0.0 < float(match[1]) < math.inf:
        raise RequestError(f"{what} is {text!r}: expected a data rate above zero, such as 1Gbit/s or 25GB/s")
    return float(match[1]) * _SUFFIX[(match[2] or "").lower()] / (8.0 if match[3] in _BITS else 1.0)


def parse_seconds(text: str, *, what: str, zero: bool = True) -> float:
    """Read a time such as ``90s``, ``30min``, ``2h``, ``14d`` or ``1y``, in seconds.

    A number without a unit is seconds. ``zero=False`` refuses 0.
    """
    least = "of zero or more" if zero else "above zero"
    return _amount(text, _TIME_UNITS, what=what, kind="a time", example="90s, 30min, 36h or 14d", least=least)


def _amount(text: str, units: Mapping[str, float], *, what: str, kind: str, example: str, least: str) -> float:
    match = _AMOUNT.match(text)
    value = float(match.group(1)) * units.get(match.group(2).lower(), math.nan) if match else math.nan
    if not math.isfinite(value) or (value == 0.0 and least == "above zero"):
        raise RequestError(f"{what} is {text!r}: expected {kind} {least}, such as {example}")
    return value


def format_seconds(seconds: float) -> str:
    """Format seconds with three significant digits and a fitting unit: ``12.3 ms``, ``4.56 s``, ``3.2 d``."""
    if not math.isfinite(seconds):
        return str(seconds)
    steps = ((1e-3, 1e-6, "µs"), (1.0, 1e-3, "ms"), (180.0, 1.0, "s"), (2 * HOUR, 60.0, "min"), (2 * DAY, HOUR, "h"))
    return _in_units(seconds, steps, (DAY, "d"))


def format_bytes(nbytes: float) -> str:
    """Format bytes in binary multiples: ``79.2 GiB``."""
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        digits = 0 if unit == "B" else 1
        if abs(round(value, digits)) < KIB:
            return f"{value:.{digits}f} {unit}"
        value /= KIB
    return f"{value:.2f} TiB"


def format_count(value: float) -> str:
    """Format a count in decimal multiples: ``8.03 B`` parameters, ``1.25 M`` tokens/s."""
    return _in_units(value, ((1e3, 1.0, ""), (1e6, 1e3, "k"), (1e9, 1e6, "M"), (1e12, 1e9, "B")), (1e12, "T"))


def format_parameters(total: float, trained: float) -> str:
    """Format as ``8.03 B parameters`` or, if some are frozen, ``70.6 B parameters (41.9 M trained)``."""
    some = f" ({format_count(trained)} trained)" if trained != total else ""
    return f"{format_count(total)} parameters{some}"


def format_flops(flops: float) -> str:
    """Format floating-point work: ``41.3 TFLOP``."""
    steps = ((1e9, 1e6, "MFLOP"), (1e12, 1e9, "GFLOP"), (1e15, 1e12, "TFLOP"), (1e18, 1e15, "PFLOP"))
    return _in_units(flops, steps, (1e18, "EFLOP"))


def _in_units(value: float, steps: Sequence[tuple[float, float, str]], last: tuple[float, str]) -> str:
    """Format with three digits in the first unit whose limit the rounded value stays below, else in the last unit.

    A step is (limit, size of the unit, name of the unit).
    """
    for limit, scale, unit in steps:
        shown = f"{value / scale:.3g}"
        if abs(float(shown)) * scale < limit * (1.0 - 1e-12):
            return f"{_without_exponent(shown)} {unit}".rstrip()
    scale, unit = last
    return f"{_without_exponent(f'{value / scale:.4g}')} {unit}"


def _without_exponent(number: str) -> str:
    """A number of 1 or more without an exponent."""
    return f"{float(number):,.0f}" if "e+" in number else number


def format_money(dollars: float) -> str:
    """Format US dollars, from 100 on without cents: ``$1,234``, ``$0.352``."""
    return f"${dollars:,.0f}" if abs(dollars) >= 100.0 else f"${dollars:.3g}"
