"""The wire format of protocol buffers, as far as execution traces need it: numbers, texts and messages by field."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

VARINT: Final = 0
LENGTH: Final = 2
_FIXED: Final = {1: 8, 5: 4}
_MOST_BITS: Final = 70


def varint(value: int) -> bytes:
    """Return a number below 2⁶⁴; negative ones as their two's complement."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number_field(field: int, value: int) -> bytes:
    """Return a field with a number."""
    return varint(field << 3 | VARINT) + varint(value)


def bytes_field(field: int, value: bytes) -> bytes:
    """Return a field with a text or a message."""
    return varint(field << 3 | LENGTH) + varint(len(value)) + value


def packed_field(field: int, values: Iterable[int]) -> bytes:
    """Return a field with several numbers; nothing if there are none."""
    packed = b"".join(map(varint, values))
    return bytes_field(field, packed) if packed else b""


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at a place, and the place after it; raise ``ValueError`` if it does not end."""
    value = shift = 0
    while at < len(data) and shift < _MOST_BITS:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a number does not end")


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield field and value of a message; raise ``ValueError`` if it is cut or of another format."""
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        if key & 7 == VARINT:
            value, at = read_varint(data, at)
            yield key >> 3, value
            continue
        if key & 7 == LENGTH:
            size, at = read_varint(data, at)
        elif key & 7 in _FIXED:
            size = _FIXED[key & 7]
        else:
            raise ValueError(f"a field has the unknown type {key & 7}")
        if at + size > len(data):
            raise ValueError("a message is cut")
        yield key >> 3, data[at : at + size]
        at += size


def numbers(value: int | bytes) -> list[int]:
    """Return the numbers of a repeated field, packed or single."""
    if isinstance(value, int):
        return [value]
    found, at = [], 0
    while at < len(value):
        one, at = read_varint(value, at)
        found.append(one)
    return found


def delimited(data: bytes) -> Iterator[bytes]:
    """Yield messages that follow one another, each after its length."""
    at = 0
    while at < len(data):
        size, at = read_varint(data, at)
        if at + size > len(data):
            raise ValueError("a message is cut")
        yield data[at : at + size]
        at += size
