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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

from traincast.collector import without_collector
from traincast.errors import RequestError
from traincast.processes.run import shell_code
from traincast.profiling.monitor.device_counter import FOLDER, DeviceReader, counters, reader_of
from traincast.profiling.monitor.network import NamespaceReader, NetworkReading, namespace_of
from traincast.profiling.monitor.nvml import GpuReader
from traincast.profiling.monitor.process import ProcessTree, clock_of

SLOWEST_HZ: Final = 1.0
FASTEST_HZ: Final = 1000.0


class Ticks:
    """Waits for the next multiple of a period; multiples that have passed are left out and counted as ``missed``.

    A sampler that wakes up late takes its next reading at the moment at which it would have been taken anyway. Another
    clock may be given as ``now``, with its ``sleep``.
    """

    def __init__(
        self,
        hz: float,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not SLOWEST_HZ <= hz <= FASTEST_HZ:
            raise RequestError(f"{hz:g} readings per second: expected {SLOWEST_HZ:g} to {FASTEST_HZ:g}")
        self.period_s = 1.0 / hz
        self.missed = 0
        self._now, self._sleep = now, sleep
        self._start, self._number = now(), 0

    def wait(self) -> None:
        """Return at the next multiple that has not passed."""
        due = self._number + 1
        ahead = self._start + due * self.period_s - self._now()
        if ahead <= 0.0:
            passed = int(-ahead / self.period_s) + 1
            self.missed += passed
            due += passed
            ahead += passed * self.period_s
        self._sleep(ahead)
        self._number = due


_DISCOVER_S: Final = 1.0
"""How often all processes of the machine are searched for descendants, and the GPUs for those in use."""

_FEW_BYTES: Final = 1e4


class MonitorReading(NamedTuple):
    """Totals at one moment. Times are seconds; ``time_s`` is that of a clock that never jumps.

    ``device_s`` and ``device_memory_s`` add up, over ``devices`` GPUs or emulated devices, the time in which a device
    was busy and the time that its memory would need at its peak for what it moved. ``namespaces`` are the networks
    whose interfaces move more than a few packets; loopback interfaces count apart.
    """

    time_s: float
    processor_s: float
    resident_bytes: float
    processes: int
    received_bytes: float
    sent_bytes: float
    loopback_bytes: float
    namespaces: int
    device_s: float
    device_memory_s: float
    devices: int


COLUMNS: Final = MonitorReading._fields


class _Network:
    """A namespace, and what it has moved since it was first seen; an interface that is removed takes nothing back."""

    def __init__(self, reader: NamespaceReader) -> None:
        self.reader = reader
        self._last, self._moved = reader.read(), NetworkReading(0.0, 0.0, 0.0)

    @property
    def is_used(self) -> bool:
        """Whether its interfaces have moved more than a few packets."""
        return self._moved.received + self._moved.sent > _FEW_BYTES

    def rise(self) -> NetworkReading:
        """What it has moved until now."""
        now = self.reader.read()
        risen = (m + max(0.0, n - last) for m, n, last in zip(self._moved, now, self._last, strict=True))
        self._last, self._moved = now, NetworkReading(*risen)
        return self._moved


class _Device:
    """An emulated device, and what its counter showed when it was first seen."""

    def __init__(self, reader: DeviceReader, now_s: float) -> None:
        self._reader, self._first = reader, reader.read(now_s)
        self.emulated = self._first.memory_rate > 0.0

    def rise(self, now_s: float) -> tuple[float, float]:
        """The seconds since then in which it was busy, and those that its memory needs at its peak."""
        busy_s, nbytes, rate = self._reader.read(now_s)
        return busy_s - self._first.busy_s, (nbytes - self._first.nbytes) / rate


class Sources:
    """Reads what the process ``root`` and its descendants use; ``devices`` is the folder of emulated devices."""

    def __init__(
        self,
        root: int,
        *,
        devices: Path,
        gpus: GpuReader | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tree = ProcessTree(root)
        self._devices_at, self._gpus, self._now = devices, gpus, now
        self._networks: dict[int, _Network] = {}
        self._moved_before = NetworkReading(0.0, 0.0, 0.0)
        self._place_of: dict[int, int] = {}
        self._devices: dict[int, _Device] = {}
        self._discover_at, self._seen = 0.0, 0

    def read(self) -> MonitorReading:
        """All totals now."""
        moment = self._now()
        if moment >= self._discover_at:
            self._discover_at = moment + _DISCOVER_S
            self.tree.discover()
            self._look()
        processor_s, resident, processes = self.tree.read()
        if processes > self._seen:
            self._look()
        self._seen = processes
        received, sent, loopback = self._moved()
        used = sum(network.is_used for network in self._networks.values())
        moment = self._now()
        busy_s, memory_s, devices = self._read_devices(moment)
        return MonitorReading(
            moment, processor_s, resident, processes, received, sent, loopback, used, busy_s, memory_s,
            devices,
        )  # fmt: skip

    def close(self) -> None:
        """Give up all files."""
        self.tree.close()
        for network in self._networks.values():
            network.reader.close()
        if self._gpus is not None:
            self._gpus.close()

    def _moved(self) -> NetworkReading:
        """What all networks have moved since each was first seen."""
        rises = [self._moved_before, *(network.rise() for network in self._networks.values())]
        return NetworkReading(*(sum(amounts) for amounts in zip(*rises, strict=True)))

    def _read_devices(self, moment: float) -> tuple[float, float, int]:
        """Busy and memory time, and the number of devices: emulated ones or, without any, GPUs."""
        emulated = [device.rise(moment) for device in self._devices.values() if device.emulated]
        if emulated or self._gpus is None:
            return sum(busy_s for busy_s, _ in emulated), sum(memory_s for _, memory_s in emulated), len(emulated)
        busy_s, memory_s, gpus = self._gpus.read(moment)
        return busy_s, memory_s, gpus

    def _look(self) -> None:
        """Find the networks and devices of all processes."""
        own = namespace_of(os.getpid())
        for pid in self.tree.pids:
            place = namespace_of(pid)
            if place is not None and self._place_of.get(pid) != place:
                self._place_of[pid] = place
                if place not in self._networks:
                    with suppress(OSError):
                        self._networks[place] = _Network(NamespaceReader(pid))
            if pid not in self._devices:
                reader = reader_of(self._devices_at, pid)
                if reader is not None:
                    self._devices[pid] = _Device(reader, self._now())
        if len(self._networks) > 1 and own in self._networks:  # the command's processes have networks of their own
            left = self._networks.pop(own)
            self._moved_before = left.rise()
            left.reader.close()
        if self._gpus is not None:
            self._gpus.choose(set(self.tree.pids))


_PR_SET_CHILD_SUBREAPER: Final = 36
_STANDARD_ERROR: Final = 2
"""The descriptor: ``sys.stderr`` has none in a notebook."""


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
    """A command that this process started. The first interrupt only reaches the command; the next ones end it."""

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
                self.exit_code = shell_code(code)
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
