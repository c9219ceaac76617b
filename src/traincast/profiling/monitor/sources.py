"""Everything that a sampler reads of one command: processes, devices and networks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from traincast.profiling.monitor.device_counter import DeviceReader, reader_of
from traincast.profiling.monitor.network import NamespaceReader, NetworkReading, namespace_of
from traincast.profiling.monitor.nvml import GpuReader
from traincast.profiling.monitor.process import ProcessTree

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
