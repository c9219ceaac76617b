"""Memory that a row of measured steps states, in bytes."""

from __future__ import annotations

from typing import Final

from traincast.cluster import Device
from traincast.tables import Row, RowError, figure, number, text
from traincast.units import GB, GIB

_UNITS: Final = {"gib": GIB, "gb": GB, "mib": GIB / 1024, "mb": 1e6, "b": 1.0, "byte": 1.0, "bytes": 1.0}


def stated_bytes(row: Row) -> float | None:
    """Return the bytes that ``mem_gb`` states; ``None`` if it states none.

    The unit is GiB, as frameworks print it, unless ``mem_unit`` names another.
    """
    amount = number(row, "mem_gb")
    unit = text(row, "mem_unit").lower() or "gib"
    if unit not in _UNITS:
        raise RowError(f"mem_unit is {unit[:40]!r}: expected one of {', '.join(_UNITS)}")
    return amount * _UNITS[unit] if amount and amount > 0.0 else None


def plausible_bytes(row: Row, stated: float | None, device: Device, assumed: list[str]) -> float | None:
    """Return ``stated`` bytes, read in GB of 10⁹ bytes if they exceed the device's memory only when read in GiB."""
    decimal = (figure(row, "mem_gb") or 0.0) * GB
    if stated is None or text(row, "mem_unit") or not decimal <= device.memory_bytes < stated:
        return stated
    assumed.append(f"mem_gb in GiB exceeds the memory of {device.name}: {decimal / GB:g} GB of 10⁹ bytes")
    return decimal
