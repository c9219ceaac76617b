"""Processor time and memory of processes, read from the kernel without stopping them.

Processor time comes from the clock that POSIX gives every process (``clock_getcpuclockid``). It counts nanoseconds of
all threads, also of those that have ended, and one system call reads it: the sum over ``/proc/PID/task/*/schedstat``
takes a call for every thread and forgets ended ones.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

_SCHED: Final = 2
"""The clock of a process that counts what the scheduler gave it."""
_PAGE: Final = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_ROOM: Final = 1024
_PROC: Final = Path("/proc")


def clock_of(pid: int) -> float:
    """Seconds of processor time that a process has used; raises ``OSError`` if it has ended."""
    return time.clock_gettime_ns((~pid << 3) | _SCHED) * 1e-9


class MemoryReader:
    """Reads the memory that a process holds, from a file that stays open."""

    def __init__(self, pid: int, *, proc: Path = _PROC) -> None:
        self._file = os.open(proc / str(pid) / "statm", os.O_RDONLY)

    def read(self) -> float:
        """Bytes that the process holds; raises ``OSError`` if it has ended."""
        return float(os.pread(self._file, _ROOM, 0).split()[1]) * _PAGE

    def close(self) -> None:
        """Give up the file."""
        os.close(self._file)
