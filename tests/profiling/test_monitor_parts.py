"""The parts of the sampler, with clocks and files of the kernel that the tests write."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from traincast import RequestError
from traincast.profiling.monitor.device_counter import FOLDER, DeviceCounter, DeviceReader, counters, reader_of
from traincast.profiling.monitor.network import link_rate, totals_of
from traincast.profiling.monitor.nvml import GpuReader
from traincast.profiling.monitor.process import MemoryReader, ProcessTree, stat_of
from traincast.profiling.monitor.sample import Ticks

NET = """Inter-|   Receive           |  Transmit
 face |bytes packets errs …  |bytes …
    lo:    7000  9 0 0 0 0 0 0     7000  9 0 0 0 0 0 0
  eth0: 1000 1 0 0 0 0 0 0 200 2 0 0 0 0 0 0
wlan0:30 1 0 0 0 0 0 0 4 2 0 0 0 0 0 0
"""


class Clock:
    """A clock that moves when somebody sleeps, each time a little longer than asked for."""

    def __init__(self, late_s: float = 0.0) -> None:
        self.now_s, self.late_s = 5.0, late_s

    def now(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0.0
        self.now_s += seconds + self.late_s


def test_late_readings_do_not_add_up() -> None:
    clock = Clock(late_s=0.004)
    ticks = Ticks(50.0, now=clock.now, sleep=clock.sleep)
    for _ in range(180_000):  # an hour
        ticks.wait()
    assert clock.now_s == pytest.approx(5.0 + 3600.0 + 0.004)
    assert ticks.missed == 0


def test_moments_that_have_passed_are_left_out_and_counted() -> None:
    clock = Clock()
    ticks = Ticks(10.0, now=clock.now, sleep=clock.sleep)
    ticks.wait()
    clock.now_s += 0.45
    ticks.wait()
    assert clock.now_s == pytest.approx(5.6)
    assert ticks.missed == 4


@pytest.mark.parametrize("hz", [0.0, -1.0, 1e6, float("nan")])
def test_impossible_rates_are_refused(hz: float) -> None:
    with pytest.raises(RequestError, match="readings per second"):
        Ticks(hz)


def test_loopback_counts_apart_from_all_other_interfaces() -> None:
    assert totals_of(NET) == (1030.0, 204.0, 7000.0)
    assert totals_of("two\nlines") == (0.0, 0.0, 0.0)


def test_the_rate_of_the_fastest_link_is_found(tmp_path: Path) -> None:
    for name, speed in (("eth0", "1000\n"), ("eth1", "10000\n"), ("veth", "-1\n"), ("odd", "what\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "speed").write_text(speed)
    assert link_rate(sys=tmp_path) == 1.25e9
    assert link_rate(sys=tmp_path / "nothing") is None


def test_a_name_with_brackets_does_not_confuse_the_fields_of_a_process() -> None:
    stat = stat_of(line(7, parent=3, children_ticks=250, pages=4, name="a) (b c"))
    assert (stat.parent, stat.children_s, stat.resident_bytes) == (3, 2.5, 4 * 4096.0)


def line(pid: int, *, parent: int, children_ticks: int = 0, pages: int = 1, name: str = "python") -> bytes:
    """What /proc/PID/stat says."""
    fields = [str(pid), f"({name})", "S", str(parent), *["0"] * 48]
    fields[15], fields[21], fields[23] = str(children_ticks), "100", str(pages)
    return " ".join(fields).encode()


class Machine:
    """A folder like /proc, and the processor time of its processes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.used_s = folder, dict[int, float]()
        (folder / "self").mkdir()

    def start(self, pid: int, parent: int, used_s: float = 0.0) -> None:
        (self.folder / str(pid) / "task" / str(pid)).mkdir(parents=True)
        (self.folder / str(pid) / "task" / str(pid) / "children").write_text("")
        self.tell(pid, parent=parent)
        self.used_s[pid] = used_s

    def tell(self, pid: int, *, parent: int, children_ticks: int = 0, children: str = "") -> None:
        (self.folder / str(pid) / "stat").write_bytes(line(pid, parent=parent, children_ticks=children_ticks))
        (self.folder / str(pid) / "task" / str(pid) / "children").write_text(children)

    def end(self, pid: int) -> None:
        for path in ("task/{}/children", "stat"):
            (self.folder / str(pid) / path.format(pid)).unlink()
        (self.folder / str(pid)).rename(self.folder / f"ended {pid}")
        del self.used_s[pid]

    def clock(self, pid: int) -> float:
        if pid not in self.used_s:
            raise ProcessLookupError
        return self.used_s[pid]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    made.start(10, parent=1, used_s=1.0)
    made.start(99, parent=1, used_s=50.0)  # somebody else's
    return made


def test_descendants_count_and_other_processes_do_not(machine: Machine) -> None:
    tree = ProcessTree(10, proc=machine.folder, clock=machine.clock)
    machine.start(12, parent=11, used_s=0.25)
    machine.start(11, parent=10, used_s=0.5)
    assert sorted(tree.discover()) == [11, 12]
    assert tree.read() == (1.75, 3 * 4096.0, 3)
    assert tree.discover() == []


def test_children_of_main_threads_are_seen_at_once(machine: Machine) -> None:
    tree = ProcessTree(10, proc=machine.folder, clock=machine.clock)
    machine.start(11, parent=10, used_s=0.5)
    machine.tell(10, parent=1, children="11 ")
    tree.read()
    assert tree.read().processor_s == 1.5


def test_the_time_of_ended_children_is_not_lost(machine: Machine) -> None:
    tree = ProcessTree(10, proc=machine.folder, clock=machine.clock)
    machine.start(11, parent=10, used_s=2.0)
    tree.discover()
    assert tree.read().processor_s == 3.0
    machine.end(11)
    assert tree.read() == (3.0, 4096.0, 1)  # nobody waited for it: what was last seen stays
    machine.tell(10, parent=1, children_ticks=225)
    assert tree.read().processor_s == 3.25  # with what it used after its last reading


def test_children_between_two_readings_count_once_they_were_waited_for(machine: Machine) -> None:
    tree = ProcessTree(10, proc=machine.folder, clock=machine.clock)
    machine.tell(10, parent=1, children_ticks=100)
    assert tree.read().processor_s == 2.0


def test_orphans_stay_in_the_tree_and_the_total_never_falls(machine: Machine) -> None:
    tree = ProcessTree(10, proc=machine.folder, clock=machine.clock)
    machine.start(11, parent=10, used_s=0.5)
    machine.start(12, parent=11, used_s=0.25)
    tree.discover()
    before = tree.read().processor_s
    machine.end(11)
    machine.tell(12, parent=1)
    machine.used_s[12] = 0.75
    assert tree.read().processor_s == before + 0.5
    machine.end(10)
    assert tree.read() == (before + 0.5, 4096.0, 1)
    tree.settle(1.6)  # the root used 1.0 as last seen, and its child 0.5
    assert tree.read().processor_s == pytest.approx(before + 0.5 + 0.1)


def test_a_counter_is_read_as_the_time_passes(tmp_path: Path) -> None:
    counter = DeviceCounter(tmp_path / "1", memory_rate=100.0)
    reader = DeviceReader(tmp_path / "1")
    assert reader.read(0.0) == (0.0, 0.0, 100.0)
    counter.add(1.0, 2.0, 50.0)
    counter.add(2.0, 4.0, 80.0)
    assert reader.read(3.0) == (2.0, 90.0, 100.0)
    assert reader.read(9.0) == (3.0, 130.0, 100.0)


def test_work_that_lies_ahead_has_not_happened(tmp_path: Path) -> None:
    counter = DeviceCounter(tmp_path / "1")
    counter.add(5.0, 6.0, 10.0)
    assert DeviceReader(tmp_path / "1").read(5.0)[:2] == (0.0, 0.0)


def test_a_counter_exists_only_if_somebody_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER, raising=False)
    assert DeviceCounter.asked_for() is None
    with counters() as folder:
        assert reader_of(folder, 1) is None
        monkeypatch.setenv(FOLDER, str(folder))
        assert DeviceCounter.asked_for() is not None
        with counters() as same:
            assert same == folder
    assert not folder.exists()


class Nvml:
    """A machine with two GPUs, one of which computes for the process 10."""

    def __init__(self) -> None:
        self.use = {0: (50, 20), 1: (100, 60)}

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:
        return number

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        if handle == 0:
            raise RuntimeError("not supported")
        return [SimpleNamespace(pid=10)]

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        gpu, memory = self.use[handle]
        return SimpleNamespace(gpu=gpu, memory=memory)


def test_use_of_gpus_adds_up_over_time() -> None:
    reader = GpuReader(Nvml())
    assert reader.read(10.0) == (0.0, 0.0, 2)
    assert list(reader.read(12.0)) == pytest.approx([3.0, 1.6, 2])


def test_only_gpus_of_the_command_count_once_it_uses_some() -> None:
    reader = GpuReader(Nvml())
    reader.choose({10})
    reader.read(0.0)
    assert reader.read(1.0) == (1.0, 0.6, 1)
    reader.choose({11})
    assert reader.read(2.0).gpus == 2


def test_without_gpus_there_is_no_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def nvmlInit(self) -> None:
            raise OSError("no driver")

    monkeypatch.setitem(__import__("sys").modules, "pynvml", Broken())
    assert GpuReader.found() is None


def test_a_process_that_ended_and_was_not_waited_for_holds_no_memory() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    reader = MemoryReader(process.pid)
    try:
        assert reader.read() > 0
        process.stdin.close()  # type: ignore[union-attr]
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(OSError, match="given up its memory"):
            reader.read()
    finally:
        reader.close()
        process.wait()
