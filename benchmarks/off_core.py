"""The times in which a thread did not run, by the Linux kernel's records of context switches.

On a busy machine a recorded step contains time in which another process had the core. ``OffCore`` asks the kernel
(``perf_event_open``) when the calling thread left a core and came back, on the clock that PyTorch's profiler uses, and
takes these times out of a trace.
"""

from __future__ import annotations

import ctypes
import gzip
import json
import mmap
import os
import platform
import struct
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

_OPEN: Final = {"x86_64": 298, "aarch64": 241}
"""Numbers of the system call."""
_PAGE: Final = mmap.PAGESIZE
_PAGES: Final = 256
_HEAD, _TAIL = 1024, 1032
_SIZE: Final = 128
_SOFTWARE, _DUMMY = 1, 9
_WITH_TIME: Final = 1 << 2
_SAMPLE_ID, _USE_CLOCK, _SWITCHES = 1 << 18, 1 << 25, 1 << 26
_ONLY_USER: Final = (1 << 5) | (1 << 6)
_LOST, _SWITCH = 2, 14
_LEFT: Final = 1 << 13
_TO_NS: Final = 1000


class OffCore:
    """Notes when the thread that makes it leaves a core; raises ``OSError`` if the kernel does not tell."""

    def __init__(self) -> None:
        number = _OPEN.get(platform.machine())
        if number is None:
            raise OSError(f"no number of perf_event_open for {platform.machine()}")
        attributes = bytearray(_SIZE)
        struct.pack_into("IIQ", attributes, 0, _SOFTWARE, _SIZE, _DUMMY)
        struct.pack_into("Q", attributes, 24, _WITH_TIME)
        struct.pack_into("Q", attributes, 40, _ONLY_USER | _SAMPLE_ID | _USE_CLOCK | _SWITCHES)
        library = ctypes.CDLL(None, use_errno=True)
        raw = (ctypes.c_char * _SIZE).from_buffer(attributes)
        self._file = int(library.syscall(number, raw, 0, -1, -1, 0))
        if self._file < 0:
            raise OSError(ctypes.get_errno(), "the kernel refuses records of switches (perf_event_paranoid)")
        self._ring = mmap.mmap(self._file, (1 + _PAGES) * _PAGE)
        self._away: list[tuple[int, int]] = []
        self._left: int | None = None

    def close(self) -> None:
        """Stop noting."""
        self._ring.close()
        os.close(self._file)

    def _read(self, place: int, count: int) -> bytes:
        size = _PAGES * _PAGE
        place %= size
        first = self._ring[_PAGE + place : _PAGE + min(place + count, size)]
        return first + self._ring[_PAGE : _PAGE + count - len(first)]

    def forget(self) -> None:
        """Drop what was noted so far: call it before what is to be traced begins."""
        struct.pack_into("Q", self._ring, _TAIL, struct.unpack_from("Q", self._ring, _HEAD)[0])
        self._away, self._left = [], None

    def update(self) -> None:
        """Take over the kernel's records since the last call; raise ``RuntimeError`` if it lost some."""
        (head,) = struct.unpack_from("Q", self._ring, _HEAD)
        (tail,) = struct.unpack_from("Q", self._ring, _TAIL)
        while tail < head:
            kind, flags, size = struct.unpack("IHH", self._read(tail, 8))
            if kind == _LOST:
                raise RuntimeError("the kernel lost records of switches: the machine is too busy")
            if kind == _SWITCH:
                (time,) = struct.unpack("Q", self._read(tail + 8, 8))
                if flags & _LEFT:
                    self._left = time
                elif self._left is not None:
                    self._away.append((self._left, time))
                    self._left = None
            tail += size
        struct.pack_into("Q", self._ring, _TAIL, tail)

    def running(self, times: Ints) -> Ints:
        """Return times of the clock (ns) as times on a core: what lies within an absence is moved to its end."""
        away = np.array(self._away, dtype=np.int64).reshape(-1, 2)
        if not len(away):
            return times
        before = np.concatenate([[0], np.cumsum(away[:, 1] - away[:, 0])])
        passed = np.searchsorted(away[:, 0], times, side="right")
        back = away[np.maximum(passed - 1, 0), 1]
        inside = np.where((passed > 0) & (times < back), back - times, 0)
        return np.asarray(times - before[passed] + inside, dtype=np.int64)


def write_trace(profiler: Any, path: Path, off_core: OffCore | None) -> None:
    """Write what PyTorch's profiler recorded (``.json.gz``), without the times in which the thread did not run."""
    plain = path.with_name(path.name.removesuffix(".gz") + ".part")
    profiler.export_chrome_trace(str(plain))
    document = json.loads(plain.read_text(encoding="utf-8"))
    plain.unlink()
    events = [event for event in document["traceEvents"] if event.get("ph") == "X"]
    if off_core is not None:
        off_core.update()
        base = int(document["baseTimeNanoseconds"])
        start = np.array([round(event["ts"] * _TO_NS) for event in events], dtype=np.int64) + base
        took = np.array([round(event["dur"] * _TO_NS) for event in events], dtype=np.int64)
        first, last = off_core.running(start), off_core.running(start + took)
        origin = int(first.min())
        for event, a, b in zip(events, first.tolist(), last.tolist(), strict=True):
            event["ts"], event["dur"] = (a - origin) / _TO_NS, (b - a) / _TO_NS
    document["traceEvents"] = events
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
