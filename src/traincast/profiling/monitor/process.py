"""Processor time and memory of processes, read from the kernel without stopping them.

Processor time comes from the clock that POSIX gives every process (``clock_getcpuclockid``). It counts nanoseconds of
all threads, also of those that have ended, and one system call reads it: the sum over ``/proc/PID/task/*/schedstat``
takes a call for every thread and forgets ended ones.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

_SCHED: Final = 2
"""The clock of a process that counts what the scheduler gave it."""
_PAGE: Final = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_TICKS: Final = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_ROOM: Final = 4096
_PROC: Final = Path("/proc")
_PARENT, _CHILDREN_USER, _CHILDREN_SYSTEM, _STARTED, _RESIDENT = 1, 13, 14, 19, 21
"""Fields of /proc/PID/stat from the state on: the first after the name of the program."""


def clock_of(pid: int) -> float:
    """Seconds of processor time that a process has used; raises ``OSError`` if it has ended."""
    return time.clock_gettime_ns((~pid << 3) | _SCHED) * 1e-9


class MemoryReader:
    """Reads the memory that a process holds, from a file that stays open."""

    def __init__(self, pid: int, *, proc: Path = _PROC) -> None:
        self._file = os.open(proc / str(pid) / "statm", os.O_RDONLY)

    def read(self) -> float:
        """Bytes that the process holds; raises ``OSError`` if it has ended, also if nobody has waited for it yet."""
        pages = float(os.pread(self._file, _ROOM, 0).split()[1])
        if not pages:
            raise ProcessLookupError("the process has given up its memory")
        return pages * _PAGE

    def close(self) -> None:
        """Give up the file."""
        os.close(self._file)


class ProcessStat(NamedTuple):
    """What /proc/PID/stat says: ``children_s`` is the processor time of children that ended and were waited for."""

    parent: int
    children_s: float
    started: int
    resident_bytes: float


def stat_of(text: bytes) -> ProcessStat:
    """The values of /proc/PID/stat; the name of the program may have spaces and brackets."""
    fields = text[text.rindex(b")") + 2 :].split()
    return ProcessStat(
        parent=int(fields[_PARENT]),
        children_s=(int(fields[_CHILDREN_USER]) + int(fields[_CHILDREN_SYSTEM])) / _TICKS,
        started=int(fields[_STARTED]),
        resident_bytes=float(fields[_RESIDENT]) * _PAGE,
    )


class TreeReading(NamedTuple):
    """Totals of a process and its descendants: processor time, memory that they hold, how many they are."""

    processor_s: float
    resident_bytes: float
    processes: int


class _Member:
    """One process of a tree. ``ended_s`` is the time of its children that have ended, as last seen.

    ``children`` lists the processes that its main thread has started; the kernel may lack that file.
    """

    __slots__ = ("children", "ended_s", "known", "own_s", "parent", "stat", "waited_s")

    def __init__(self, folder: Path, pid: int, parent: int) -> None:
        self.stat = os.open(folder / "stat", os.O_RDONLY)
        self.children: int | None = None
        with suppress(OSError):
            self.children = os.open(folder / "task" / str(pid) / "children", os.O_RDONLY)
        self.parent = parent
        self.known = b""
        self.own_s = self.ended_s = self.waited_s = 0.0

    def close(self) -> None:
        """Give up the files."""
        os.close(self.stat)
        if self.children is not None:
            os.close(self.children)

    def started(self) -> list[int]:
        """The children that were not there before."""
        if self.children is None:
            return []
        listed = os.pread(self.children, _ROOM, 0)
        if listed == self.known:
            return []
        new = set(listed.split()) - set(self.known.split())
        self.known = listed
        return [int(pid) for pid in new]

    @property
    def left_s(self) -> float:
        """The time of ended children: as their parent was told when it waited for them, or as last seen."""
        return max(self.ended_s, self.waited_s)


class ProcessTree:
    """A process and all its descendants, also those that start later.

    A process that ends leaves its time to its parent, so that the total never falls. What it used after its last
    reading is known in ticks of the kernel (10 ms) once its parent has waited for it. A process that started and ended
    between two readings is counted that way alone. Processes whose parent has ended stay in the tree.

    Every reading looks for children of main threads; :meth:`discover` finds all others, and takes longer.
    """

    def __init__(self, root: int, *, proc: Path = _PROC, clock: Callable[[int], float] = clock_of) -> None:
        self._proc, self._clock = proc, clock
        self._members: dict[int, _Member] = {}
        self._others: set[int] = set()
        self._ended_s = 0.0
        """The time of ended processes whose parent is not in the tree."""
        self._root, self._root_s = root, 0.0
        self._join(root, parent=0)

    @property
    def pids(self) -> Iterator[int]:
        """The processes that run."""
        return iter(self._members)

    def discover(self) -> list[int]:
        """Look for descendants among all processes of the machine; returns the new members of the tree."""
        there = {int(name) for name in os.listdir(self._proc) if name.isdecimal()}  # noqa: PTH208  (ten times faster)
        self._others &= there
        parents: dict[int, int] = {}
        for pid in there - self._others - self._members.keys():
            with suppress(OSError, ValueError):
                parents[pid] = stat_of((self._proc / str(pid) / "stat").read_bytes()).parent
        joined: list[int] = []
        while new := [pid for pid, parent in parents.items() if parent in self._members]:
            joined += [pid for pid in new if self._join(pid, parent=parents.pop(pid))]
        self._others |= parents.keys()
        return joined

    def read(self) -> TreeReading:
        """The totals now. Processes that have ended leave the tree."""
        resident, gone = 0.0, []
        for pid, member in list(self._members.items()):
            try:
                stat = stat_of(os.pread(member.stat, _ROOM, 0))
                member.own_s = max(member.own_s, self._clock(pid))
                for child in member.started():
                    self._join(child, parent=pid)
            except OSError:
                gone.append(pid)
                continue
            member.waited_s = stat.children_s
            resident += stat.resident_bytes
        for pid in gone:
            self._leave(pid)
        total = self._ended_s + sum(member.own_s + member.left_s for member in self._members.values())
        return TreeReading(total, resident, len(self._members))

    def settle(self, root_s: float) -> None:
        """Say how much the root used in all, with the children it waited for, now that it was waited for."""
        if self._root in self._members:
            self._leave(self._root)
        self._ended_s += max(0.0, root_s - self._root_s)
        self._root_s = max(self._root_s, root_s)

    def close(self) -> None:
        """Give up all files."""
        for member in self._members.values():
            member.close()
        self._members.clear()

    def _join(self, pid: int, *, parent: int) -> bool:
        if pid in self._members:
            return False
        try:
            self._members[pid] = _Member(self._proc / str(pid), pid, parent)
        except OSError:
            return False
        return True

    def _leave(self, pid: int) -> None:
        member = self._members.pop(pid)
        member.close()
        used_s = member.own_s + member.left_s
        if pid == self._root:
            self._root_s = used_s
        if member.parent in self._members:
            self._members[member.parent].ended_s += used_s
        else:
            self._ended_s += used_s
