"""What an emulated device has done so far, in memory that other processes read while it runs.

A process that emulates a device keeps a counter in the folder that ``TRAINCAST_DEVICES`` names; the file has the number
of the process as its name. Without that variable there is no counter. A sampler reads it as it would read the counters
of a GPU: the seconds in which the device was busy, and the bytes that its memory moved.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

FOLDER: Final = "TRAINCAST_DEVICES"
"""The environment variable that names the folder of the counters."""
_LAYOUT: Final = struct.Struct("=6d")
_TRIES: Final = 100
_SHARED: Final = Path("/dev/shm")  # noqa: S108  (memory, where the system has it)


class DeviceReading(NamedTuple):
    """Totals of a device since its process started: seconds in which it was busy, and bytes moved by its memory.

    ``memory_rate`` is how many bytes per second its memory moves at most; 0 if there is no emulated device.
    """

    busy_s: float
    nbytes: float
    memory_rate: float


class DeviceCounter:
    """The counter of this process, which it alone writes; ``memory_rate`` is the bandwidth of the device's memory."""

    def __init__(self, path: Path, *, memory_rate: float = 0.0) -> None:
        self._busy_s = self._nbytes = 0.0
        self._rate = memory_rate
        self._memory = _mapped(path, os.O_CREAT | os.O_RDWR)
        self.add(0.0, 0.0, 0.0)

    @classmethod
    def asked_for(cls, *, memory_rate: float = 0.0) -> DeviceCounter | None:
        """The counter of this process, or ``None`` if nobody asks for one."""
        folder = os.environ.get(FOLDER)
        return cls(Path(folder) / str(os.getpid()), memory_rate=memory_rate) if folder else None

    def add(self, start_s: float, end_s: float, nbytes: float) -> None:
        """Count work of the device that moves ``nbytes`` evenly between two moments, which may lie ahead."""
        self._busy_s += end_s - start_s
        self._nbytes += nbytes
        _LAYOUT.pack_into(self._memory, 0, self._busy_s, self._nbytes, start_s, end_s, nbytes, self._rate)


class DeviceReader:
    """Reads the counter of another process."""

    def __init__(self, path: Path) -> None:
        self._memory = _mapped(path, os.O_RDONLY)

    def read(self, now_s: float) -> DeviceReading:
        """The totals at the moment ``now_s``: of the last work, only the part that has passed counts."""
        values = self._memory[:]
        for _ in range(_TRIES):  # until no writer came in between
            again = self._memory[:]
            if again == values:
                break
            values = again
        busy_s, nbytes, start_s, end_s, last, rate = _LAYOUT.unpack(values)
        ahead = max(0.0, end_s - now_s)
        if not ahead:
            return DeviceReading(busy_s, nbytes, rate)
        done = 1.0 - min(1.0, ahead / max(end_s - start_s, ahead))
        return DeviceReading(max(0.0, busy_s - ahead), nbytes - last * (1.0 - done), rate)


@contextmanager
def counters() -> Iterator[Path]:
    """A folder for the counters of processes that are started within: that of the environment, or a new one."""
    given = os.environ.get(FOLDER)
    if given:
        yield Path(given)
        return
    with tempfile.TemporaryDirectory(prefix="traincast-devices-", dir=_SHARED if _SHARED.is_dir() else None) as made:
        yield Path(made)


def reader_of(folder: Path, pid: int) -> DeviceReader | None:
    """The reader of the device that the process ``pid`` emulates, or ``None`` if it has none (yet)."""
    with suppress(FileNotFoundError, ValueError):  # not there, or not yet of its full size
        return DeviceReader(folder / str(pid))
    return None


def _mapped(path: Path, flags: int) -> mmap.mmap:
    file = os.open(path, flags, 0o600)
    try:
        if flags & os.O_CREAT:
            os.ftruncate(file, _LAYOUT.size)
        access = mmap.ACCESS_WRITE if flags & os.O_RDWR else mmap.ACCESS_READ
        return mmap.mmap(file, _LAYOUT.size, access=access)
    finally:
        os.close(file)
