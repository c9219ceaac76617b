"""Samples the ranks of a run while it trains, as a monitoring tool would: devices, networks, processes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from traincast.files import writing
from traincast.profiling.monitor.device_counter import DeviceReader, reader_of
from traincast.profiling.monitor.network import NamespaceReader
from traincast.profiling.monitor.process import MemoryReader, clock_of
from traincast.profiling.monitor.sample import Ticks
from traincast.testbed.rank.recorder import now

RESOURCES: Final = "resources.parquet"
"""The file of a run's readings."""
READING_COLUMNS: Final = (
    "rank", "time_s", "busy_s", "memory_bytes", "received_bytes", "sent_bytes", "processor_s", "resident_bytes",
)  # fmt: skip

_MARGIN_S: Final = 0.2


class RankReading(NamedTuple):
    """Totals of a rank at a moment of the clock: its device, the network of its node, and its process.

    ``busy_s`` and ``memory_bytes`` are of its emulated device; both are 0 if compute is real.
    """

    rank: int
    time_s: float
    busy_s: float
    memory_bytes: float
    received_bytes: float
    sent_bytes: float
    processor_s: float
    resident_bytes: float


@dataclass(slots=True)
class RankSampler:
    """Samples all ranks of a run ``hz`` times a second, in a thread, between their start and their end.

    With ``urgent``, the thread runs before all usual processes of the machine, as ranks with emulated devices do.
    Ranks ``on_loopback`` share one network: its counters are those of all of them.
    """

    hz: float
    devices: Path
    urgent: bool = False
    on_loopback: bool = False
    readings: list[RankReading] = field(default_factory=list)
    sampler_s: float = 0.0
    """Processor time that sampling took."""
    sampled_s: float = 0.0

    @contextmanager
    def watching(self, pids: Sequence[int]) -> Iterator[None]:
        """Samples the ranks with these processes while the body runs."""
        stop = threading.Event()
        thread = threading.Thread(target=self._loop, args=(list(pids), stop), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _loop(self, pids: list[int], stop: threading.Event) -> None:
        if self.urgent:
            with suppress(PermissionError):
                os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        ranks: dict[int, _Rank] = {}
        ticks, began, used = Ticks(self.hz), now(), time.thread_time()
        while not stop.is_set():
            ticks.wait()
            for number, pid in enumerate(pids):
                if number not in ranks:
                    device = reader_of(self.devices, pid)
                    if device is None:  # it has not entered its namespace
                        continue
                    with suppress(OSError):  # it has ended already
                        ranks[number] = _Rank(pid, device)
                if number in ranks:
                    self.readings.append(ranks[number].read(number, on_loopback=self.on_loopback))
        for rank in ranks.values():
            rank.network.close()
            rank.memory.close()
        self.sampler_s, self.sampled_s = time.thread_time() - used, now() - began


class _Rank:
    """The sources of a rank's readings. Its device and its network can be read after its process has ended."""

    def __init__(self, pid: int, device: DeviceReader) -> None:
        self._pid, self._device = pid, device
        self.network, self.memory = NamespaceReader(pid), MemoryReader(pid)
        self._of_process = (0.0, 0.0)

    def read(self, number: int, *, on_loopback: bool) -> RankReading:
        """Everything now; of a process that has ended, what it showed last."""
        received, sent, loopback = self.network.read()
        if on_loopback:
            received = sent = loopback
        moment = now()
        busy_s, nbytes, _ = self._device.read(moment)
        with suppress(OSError):
            self._of_process = clock_of(self._pid), self.memory.read()
        return RankReading(number, moment, busy_s, nbytes, received, sent, *self._of_process)


def write_readings(readings: Sequence[RankReading], path: Path, *, windows: Sequence[tuple[float, float]]) -> None:
    """Writes the readings from shortly before the first to shortly after the last of ``windows``, sorted by rank."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    margin = max(_MARGIN_S, *(end - start for start, end in windows))
    first, last = windows[0][0] - margin, windows[-1][1] + margin
    kept = sorted(reading for reading in readings if first <= reading.time_s <= last)
    columns = {name: [getattr(reading, name) for reading in kept] for name in READING_COLUMNS}
    types = [pa.int32(), *[pa.float64()] * (len(READING_COLUMNS) - 1)]
    table = pa.table({name: pa.array(columns[name], kind) for name, kind in zip(READING_COLUMNS, types, strict=True)})
    with writing(path) as out:
        pq.write_table(table, out, compression="zstd")
