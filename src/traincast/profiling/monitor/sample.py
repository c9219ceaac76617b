"""``traincast monitor``: samples a command, or a process that runs already, until it ends.

The sampler is this process itself, beside the command: nothing runs within the command, and nothing slows it down but
the time that the sampler takes, which is measured.
"""

from __future__ import annotations

import ctypes
import math
import os
import signal
import subprocess
import sys
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final

from traincast.collector import without_collector
from traincast.errors import RequestError
from traincast.profiling.monitor.device_counter import FOLDER, counters
from traincast.profiling.monitor.nvml import GpuReader
from traincast.profiling.monitor.process import clock_of
from traincast.profiling.monitor.sources import COLUMNS, MonitorReading, Sources
from traincast.profiling.monitor.ticks import Ticks

_PR_SET_CHILD_SUBREAPER: Final = 36
_STANDARD_ERROR: Final = 2
"""The descriptor: ``sys.stderr`` has none in a notebook."""
_KILLED: Final = 128
"""A command that a signal ended has this exit code plus the number of the signal, as in a shell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Monitored:
    """What a sampler read, as columns by the names of :class:`MonitorReading`, and what sampling cost.

    ``exit_code`` is that of the command; 0 if a process was watched that somebody else had started. ``missed`` are
    the moments at which the sampler did not run in time and took no reading.
    """

    columns: Mapping[str, array[float]] = field(hash=False)
    exit_code: int
    sampler_s: float
    elapsed_s: float
    missed: int
    cores: int

    @property
    def samples(self) -> int:
        """The number of readings."""
        return len(self.columns["time_s"])

    @property
    def sampler_cpu_share(self) -> float:
        """The share of a core that the sampler took."""
        return self.sampler_s / self.elapsed_s if self.elapsed_s else 0.0


def monitor(
    command: Sequence[str] = (), *, pid: int | None = None, hz: float, quiet: bool = False, for_s: float | None = None
) -> Monitored:
    """Run ``command`` and sample it ``hz`` times a second until it ends, or sample the process ``pid``.

    The command has this process's standard input and outputs; if ``quiet``, what it writes to standard output goes to
    standard error. Ctrl-C reaches the command, as it would without a monitor, and sampling goes on until it has ended;
    a second Ctrl-C ends it. Ctrl-C ends the sampling of a ``pid``, and so do ``for_s`` seconds, whatever is sampled.
    """
    if sys.platform != "linux":
        raise RequestError(f"processes are sampled only on Linux, not on {sys.platform}")
    if bool(command) == (pid is not None):
        raise RequestError("give a command after --, or --pid PID of a process that runs: one of the two")
    ticks = Ticks(hz)
    with counters() as devices, _subreaper():
        if pid is not None:
            return _sampled(_Attached(pid), ticks, devices, for_s)
        with _Started(command, devices, quiet=quiet) as started:
            return _sampled(started, ticks, devices, for_s)


class _Attached:
    """A process that somebody else started; an interrupt ends only the sampling."""

    def __init__(self, pid: int) -> None:
        try:
            clock_of(pid)
        except (OSError, OverflowError) as error:
            raise RequestError(f"--pid {pid}: there is no such process") from error
        self.pid, self.exit_code, self.used_s = pid, 0, 0.0

    def ended(self) -> bool:
        """Whether the process has ended."""
        try:
            clock_of(self.pid)
        except OSError:
            return True
        return False

    def told(self, signals: list[int]) -> bool:
        """Whether one of the received ``signals`` ends the sampling: any does."""
        return bool(signals)


class _Started:
    """A command that this process started; the first interrupt is its own affair, the next ones end it."""

    def __init__(self, command: Sequence[str], devices: Path, *, quiet: bool) -> None:
        try:
            self._process = subprocess.Popen(  # noqa: S603  (what the user asks for)
                list(command),
                env={**os.environ, FOLDER: str(devices)},
                stdout=_STANDARD_ERROR if quiet else None,
            )
        except OSError as error:
            raise RequestError(f"cannot run {command[0]!r}: {(error.strerror or 'it failed').lower()}") from error
        self.pid, self.exit_code, self.used_s = self._process.pid, 0, 0.0
        self._interrupts = 0

    def __enter__(self) -> _Started:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.ended():  # the sampler failed
            self._process.kill()
            self._process.wait()

    def ended(self) -> bool:
        """Whether the command has ended; waits for it and for adopted processes, and adds up what they used."""
        while self._process.returncode is None:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if not pid:
                break
            if pid == self.pid:
                code = os.waitstatus_to_exitcode(status)
                self._process.returncode = code
                self.exit_code = code if code >= 0 else _KILLED - code
                self.used_s = usage.ru_utime + usage.ru_stime
        return self._process.returncode is not None

    def told(self, signals: list[int]) -> bool:
        """Hand the received ``signals`` on; none ends the sampling before the command ends."""
        for number in signals:
            self._interrupts += number == signal.SIGINT
            if number != signal.SIGINT or self._interrupts > 1:  # the first Ctrl-C has reached the command as well
                with suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL if self._interrupts > 2 else signal.SIGTERM)
        signals.clear()
        return False


def _sampled(watched: _Attached | _Started, ticks: Ticks, devices: Path, for_s: float | None) -> Monitored:
    columns = {name: array("d") for name in COLUMNS}
    sources = Sources(watched.pid, devices=devices, gpus=GpuReader.found())
    cores = len(os.sched_getaffinity(watched.pid)) if not watched.ended() else os.cpu_count() or 1
    began, used = time.monotonic(), time.process_time()
    with without_collector(), _first_in_line(), _signals() as received:
        _keep(sources.read(), columns)
        until = math.inf if for_s is None else time.monotonic() + for_s  # the first reading takes longest
        while not watched.ended() and time.monotonic() < until and not watched.told(received):
            ticks.wait()
            _keep(sources.read(), columns)
    sources.tree.settle(watched.used_s)
    _keep(sources.read(), columns)
    sources.close()
    return Monitored(
        columns=columns,
        exit_code=watched.exit_code,
        sampler_s=time.process_time() - used,
        elapsed_s=time.monotonic() - began,
        missed=ticks.missed,
        cores=cores,
    )


def _keep(reading: MonitorReading, columns: dict[str, array[float]]) -> None:
    for column, value in zip(columns.values(), reading, strict=True):
        column.append(value)


@contextmanager
def _first_in_line() -> Iterator[None]:
    """Runs this process before all usual processes, where that is allowed: it sleeps nearly all the time."""
    before, order = os.sched_getscheduler(0), os.sched_getparam(0)
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    try:
        yield
    finally:
        with suppress(PermissionError):
            os.sched_setscheduler(0, before, order)


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Yields a list of the interrupts and requests to end that arrive, none of which is obeyed here."""
    received: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        received.append(number)

    before = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(ValueError):  # not in the main thread
            before[number] = signal.signal(number, note)
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _subreaper() -> Iterator[None]:
    """Adopts descendants whose parent ends, so that they stay in the tree of this process."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
