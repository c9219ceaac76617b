"""One row of a table that nccl-tests or rccl-tests prints, read by what its numbers mean.

A row is ``size count type [redop] [root]`` and then, out of place and in place, ``time algbw busbw [#wrong]``. Versions
differ in the columns in brackets, and copies lose the header. The bandwidth equals the size divided by the time, so a
reading of the columns can be checked: a reading for which this does not hold is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

ELEMENT_BYTES: Final = {
    "int8": 1, "char": 1, "uint8": 1, "f8e4m3": 1, "f8e5m2": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8": 1,
    "half": 2, "float16": 2, "bfloat16": 2, "bf16": 2, "fp16": 2,
    "int32": 4, "int": 4, "uint32": 4, "float": 4, "float32": 4, "fp32": 4,
    "int64": 8, "uint64": 8, "double": 8, "float64": 8,
}  # fmt: skip
"""Bytes of one element of every type that the tests print."""
REDUCTIONS: Final = ("sum", "prod", "max", "min", "avg", "mulsum", "none", "all")

_TYPES: Final = "|".join(sorted(ELEMENT_BYTES, key=len, reverse=True))
_ROW: Final = re.compile(rf"(?<![\w.\-])(\d+)\s+(\d+)\s+({_TYPES})(?!\w)\s*(.*)$")
_START: Final = re.compile(r"(?<![\w.\-])(\d+)(?:\s+\d+)?(?:\s+[a-z0-9_]{1,8})?\s*$")
_NUMBER: Final = re.compile(r"\d+(?:\.\d*)?(?:e[+-]?\d+)?$", re.IGNORECASE)
_ROOT: Final = re.compile(r"-?\d{1,5}$")
_SLACK: Final = 0.02
"""Relative difference between the printed bandwidth and size / time that counts as rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRow:
    """One row: bytes and elements of the message, time in µs, bandwidths in GB/s with half a unit of their last digit.

    ``redop`` and ``root`` are "" and ``None`` if the row does not have them; ``wrong`` says that the test found wrong
    values, ``checked_in_place`` whether the in-place run was checked (``None`` if the row does not say).
    """

    line: int
    size: int
    count: int
    dtype: str
    redop: str
    root: int | None
    time_us: float
    algbw: float
    busbw: float
    rounding: float
    wrong: bool
    checked_in_place: bool | None

    @property
    def shares(self) -> int:
        """Number of equal parts of ``size`` that ``count`` elements are; 0 if it is not a whole number."""
        part = self.count * ELEMENT_BYTES[self.dtype]
        return self.size // part if part and self.size % part == 0 else 0


class RowReading(NamedTuple):
    """What became of a line: the row, or a kind of problem ("" if the line is no row)."""

    row: LogRow | None
    problem: str


def starts_row(text: str) -> bool:
    """Return whether a line holds a row or the first part of one that is continued on the next line."""
    return bool(_ROW.search(text)) or bool(_START.search(text))


def read_row(text: str, line: int, names: tuple[str, ...] = (), *, unit_us: float = 1.0) -> RowReading:
    """Read a line as a row. ``names`` are the columns of the header above it, ``unit_us`` is its unit of time in µs."""
    found = _ROW.search(text) or _ROW.search(_separated(text))
    if not found:
        return RowReading(None, "")
    size = int(found[1])
    words = found[4].split()
    redop = words.pop(0) if words and words[0].lower() in REDUCTIONS else ""
    if not size:
        return RowReading(None, "size 0: no data was moved")
    for with_root in (True, False) if "root" in names or not names else (False, True):
        row = _row(found, redop.lower(), words, line=line, names=names, with_root=with_root, unit_us=unit_us)
        if row is not None:
            return RowReading(row, "")
    if len(words) < 3:
        return RowReading(None, "the row ends before its bandwidths")
    if not all(_NUMBER.match(word) for word in words[1:3]):
        return RowReading(None, "a time or bandwidth is not a number")
    return RowReading(None, "time and bandwidth of the row disagree")


def _separated(text: str) -> str:
    """A row of a table whose cells are separated by bars, semicolons or commas."""
    text = re.sub(r"(?<=\d),(?=\d{3}(?:,\d{3})*\s)", "", text)
    return re.sub(r"[|;,]", " ", text)


def _row(
    found: re.Match[str],
    redop: str,
    words: list[str],
    *,
    line: int,
    names: tuple[str, ...],
    with_root: bool,
    unit_us: float,
) -> LogRow | None:
    """The row under one reading of its columns; ``None`` if its numbers contradict that reading."""
    if with_root and not (words and _ROOT.match(words[0])):
        return None
    values = words[1:] if with_root else words
    if len(values) < 3 or not all(_NUMBER.match(word) for word in values[:3]):
        return None
    size = int(found[1])
    time_us, algbw, busbw = (float(word) for word in values[:3])
    if time_us <= 0 or not _agree(size / unit_us, values[0], values[1]):
        return None
    stride = names[names.index("time") + 1 :].index("time") + 1 if names.count("time") == 2 else _stride(values)
    checks = [values[i] for i in (3, stride + 3) if stride > 3 and i < len(values)]
    return LogRow(
        line=line,
        size=size,
        count=int(found[2]),
        dtype=found[3],
        redop=redop,
        root=int(words[0]) if with_root else None,
        time_us=time_us * unit_us,
        algbw=algbw,
        busbw=busbw,
        rounding=max(_half_unit(values[1]), _half_unit(values[2])),
        wrong=bool(checks) and _is_wrong(checks[0]),
        checked_in_place=_is_checked(checks[1]) if len(checks) == 2 and _is_checked(checks[0]) else None,
    )


def _stride(values: list[str]) -> int:
    """Columns from the out-of-place time to the in-place time, in a table without a header."""
    return 3 if len(values) in (3, 6) else 4


def _agree(size: float, time: str, bandwidth: str) -> bool:
    """Whether a bandwidth in GB/s is the size in bytes divided by the time in µs, up to rounding."""
    t, d, half = float(time), _half_unit(time), _half_unit(bandwidth)
    least, most = size / (t + d) / 1e3, size / max(t - d, t / 2) / 1e3
    return least * (1 - _SLACK) - half <= float(bandwidth) <= most * (1 + _SLACK) + half


def _half_unit(word: str) -> float:
    """Half a unit of the last printed digit."""
    mantissa, _, exponent = word.lower().partition("e")
    digits = len(mantissa.partition(".")[2])
    return float(0.5 * 10.0 ** (int(exponent or 0) - digits))


def _is_checked(word: str) -> bool:
    return bool(_NUMBER.match(word.rstrip("*")))


def _is_wrong(word: str) -> bool:
    """Whether the check failed: a count of wrong values, or, in old versions, an error marked with an asterisk."""
    return _is_checked(word) and (word.endswith("*") or float(word) >= 1)
