"""Memory that a row states, in bytes, and how it was counted."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from traincast.cluster import Device
from traincast.measured.dialect import Meanings, Said, meaning, vocabulary
from traincast.measured.run import unstated
from traincast.strategy import Runtime
from traincast.tables import Row, RowError, figure, number, text
from traincast.units import GB

MemoryKind: TypeAlias = Literal["allocated", "reserved", "nvidia-smi"]
MEMORY_KINDS: Final[tuple[MemoryKind, ...]] = get_args(MemoryKind)
"""Ways to count, from the one that shows least to the one that shows most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """Units of memory and time; comments in ``units.toml`` explain each entry."""

    bytes: dict[str, float]
    times: dict[str, float]
    memories: dict[str, float]
    slow: float
    fast: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Memories:
    """Which memory of a row is that of training, and how it was counted; comments in ``tunings.toml`` explain each."""

    other: Said
    prefers_other: Said
    high: Said
    kinds: Meanings[MemoryKind]


def stated_bytes(row: Row) -> float | None:
    """Return the bytes that ``mem_gb`` states; ``None`` if it states none.

    The unit is GiB, as frameworks print it, unless ``mem_unit`` names another.
    """
    amount = number(row, "mem_gb")
    written = text(row, "mem_unit").lower() or "gib"
    unit = _unit(written, written)
    return amount * unit if amount and amount > 0.0 else None


def _unit(written: str, name: str) -> float:
    """Return the bytes of the unit ``name``, which a row spells as ``written``."""
    units = vocabulary(Units).bytes
    if name not in units:
        raise RowError(f"mem_unit is {written[:40]!r}: expected one of {', '.join(units)}")
    return units[name]


def plausible_bytes(row: Row, stated: float | None, device: Device, assumed: list[str]) -> float | None:
    """Return ``stated`` bytes, read in GB of 10⁹ bytes if they exceed the device's memory only when read in GiB."""
    decimal = (figure(row, "mem_gb") or 0.0) * GB
    if stated is None or text(row, "mem_unit") or not decimal <= device.memory_bytes < stated:
        return stated
    assumed.append(f"mem_gb in GiB exceeds the memory of {device.name}: {decimal / GB:g} GB of 10⁹ bytes")
    return decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFigure:
    """The memory that a row states, in bytes, and how it was counted.

    ``kind`` is empty if the row does not say it. ``high`` says that it is a high percentile over training steps, not
    the maximum.
    """

    nbytes: float
    kind: MemoryKind | Literal[""]
    high: bool = False


def memory_of(row: Row) -> MemoryFigure | None:
    """Return the memory that a row states for training; ``None`` if it states none.

    A maximum that covers evaluation as well is replaced by the figure in ``mem_other_gb``.
    """
    if text(row, "judge_memory").lower() in ("false", "0"):
        return None
    other, words = number(row, "mem_other_gb"), vocabulary(Memories)
    if other and (words.other(row) or words.prefers_other(row)):
        kind = _kind(text(row, "mem_other_kind"))
        return MemoryFigure(nbytes=other * _first_word(row), kind=kind, high=words.high(row))
    amount = number(row, "mem_gb")
    if not amount or amount <= 0.0:
        return None
    return MemoryFigure(nbytes=amount * _first_word(row), kind=_kind(text(row, "mem_kind")))


def _first_word(row: Row) -> float:
    """Return the bytes of a unit by its first word: tables may explain it (``GiB per GPU``)."""
    written = text(row, "mem_unit").lower() or "gib"
    return _unit(written, re.sub(r"[^a-z].*$", "", written))


def _kind(written: str) -> MemoryKind | Literal[""]:
    return meaning(vocabulary(Memories).kinds, written.lower()) or ""


def usual_kind(runtime: Runtime, assumed: list[str]) -> MemoryKind:
    """Return how the memory of a row that does not say it was counted: as the log of its framework counts it."""
    kinds: dict[str, MemoryKind] = {"allocated": "allocated", "reserved": "reserved", "device": "nvidia-smi"}
    found = kinds[runtime.memory.counter]
    assumed.append(unstated("kind of memory", found))
    return found
