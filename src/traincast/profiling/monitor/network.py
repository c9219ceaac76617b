"""Network counters of a namespace, as the kernel shows them to every process in it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

_LOOPBACK: Final = "lo"
_RECEIVED, _SENT = 0, 8
"""Columns of the bytes in /proc/PID/net/dev, after the name of the interface."""
_ROOM: Final = 16384
_SYS: Final = Path("/sys/class/net")
_BYTES_PER_MBIT: Final = 125_000.0


class NetworkReading(NamedTuple):
    """Bytes that the interfaces of a namespace have received and sent, and those of its loopback interface."""

    received: float
    sent: float
    loopback: float


class NamespaceReader:
    """Reads the counters of the network namespace in which the process ``pid`` is now, also after that has ended."""

    def __init__(self, pid: int, *, proc: Path = Path("/proc")) -> None:
        self._file = os.open(proc / str(pid) / "net" / "dev", os.O_RDONLY)

    def read(self) -> NetworkReading:
        """The totals of all interfaces."""
        return totals_of(os.pread(self._file, _ROOM, 0).decode())

    def close(self) -> None:
        """Give up the file."""
        os.close(self._file)


def totals_of(text: str) -> NetworkReading:
    """The bytes of the interfaces that /proc/PID/net/dev lists in ``text``."""
    received = sent = loopback = 0.0
    for line in text.splitlines()[2:]:
        name, _, rest = line.partition(":")
        fields = rest.split()
        if len(fields) <= _SENT:
            continue
        if name.strip() == _LOOPBACK:
            loopback += float(fields[_RECEIVED])
            continue
        received += float(fields[_RECEIVED])
        sent += float(fields[_SENT])
    return NetworkReading(received, sent, loopback)


def namespace_of(pid: int, *, proc: Path = Path("/proc")) -> int | None:
    """The number of the network namespace of a process, or ``None`` if it cannot be read."""
    with suppress(OSError):
        return (proc / str(pid) / "ns" / "net").stat().st_ino
    return None


def link_rate(*, sys: Path = _SYS) -> float | None:
    """The rate of this machine's fastest link in bytes per second, or ``None`` if the system does not tell."""
    found = []
    for speed in sorted(sys.glob("*/speed")):
        with suppress(OSError, ValueError):
            found.append(float(speed.read_text().strip()))
    fastest = max(found, default=0.0)
    return fastest * _BYTES_PER_MBIT if fastest > 0.0 else None
