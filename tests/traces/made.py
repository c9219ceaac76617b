"""Small traces for tests, written event by event; times are in microseconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from traincast.traces.files.load import load_trace
from traincast.traces.files.trace import ProfilerTrace

MAIN, ENGINE = 10, 11


class Made:
    """Collects the events of a trace."""

    def __init__(self, *, rank: int = 0, world_size: int = 1, origin: float = 1000.0) -> None:
        self.events: list[dict[str, Any]] = []
        self._correlation = 0
        self._origin = origin
        self._rank, self._world = rank, world_size

    def add(self, cat: str, name: str, start: float, end: float, *, pid: Any = 1, tid: Any = MAIN, **args: Any) -> None:
        spelt = {key.replace("__", " "): value for key, value in args.items()}
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": self._origin + start,
             "dur": end - start, "args": spelt}
        )  # fmt: skip

    def op(self, name: str, start: float, end: float, *, tid: int = MAIN, **args: Any) -> None:
        self.add("cpu_op", name, start, end, tid=tid, **args)

    def range(self, name: str, start: float, end: float, *, tid: int = MAIN) -> None:
        self.add("user_annotation", name, start, end, tid=tid)

    def call(self, name: str, start: float, end: float, *, tid: int = MAIN, correlation: int | None = None) -> int:
        self._correlation += 1
        number = correlation or self._correlation
        self.add("cuda_runtime", name, start, end, tid=tid, correlation=number)
        return number

    def kernel(
        self, name: str, launch: tuple[float, float], run: tuple[float, float], *, stream: int = 7, tid: int = MAIN,
        **args: Any,
    ) -> None:  # fmt: skip
        number = self.call("cudaLaunchKernel", *launch, tid=tid)
        self.device("kernel", name, *run, stream=stream, correlation=number, **args)

    def device(self, cat: str, name: str, start: float, end: float, *, stream: int, **args: Any) -> None:
        self.add(cat, name, start, end, pid=0, tid=stream, device=0, stream=stream, **args)

    def document(self) -> dict[str, Any]:
        return {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85_000_000_000}],
            "distributedInfo": {"backend": "nccl", "rank": self._rank, "world_size": self._world},
            "traceEvents": self.events,
        }

    def write(self, path: Path) -> Path:
        path.write_text(json.dumps(self.document()))
        return path

    def trace(self, folder: Path) -> ProfilerTrace:
        return load_trace(self.write(folder / f"rank{self._rank}.json"))


def host_bound(*, steps: int = 3, rank: int = 0, world_size: int = 1) -> Made:
    """Steps of 100 µs in which the host launches two kernels of 5 µs."""
    made = Made(rank=rank, world_size=world_size)
    for step in range(steps):
        at = 100.0 * step
        made.range(f"ProfilerStep#{step}", at, at + 100)
        made.op("aten::mm", at + 2, at + 45)
        made.kernel("gemm", (at + 30, at + 40), (at + 42, at + 47))
        made.op("aten::add", at + 50, at + 95)
        made.kernel("add", (at + 80, at + 90), (at + 92, at + 97))
    return made


def device_bound(*, steps: int = 3) -> Made:
    """Steps of 100 µs whose host only takes 20 µs, and then waits for two kernels of 45 µs."""
    made = Made()
    for step in range(steps):
        at = 100.0 * step
        made.range(f"ProfilerStep#{step}", at, at + 100)
        made.kernel("gemm", (at + 0, at + 4), (at + 5, at + 50))
        made.kernel("add", (at + 10, at + 14), (at + 51, at + 96))
        made.call("cudaDeviceSynchronize", at + 20, at + 98)
    return made


def pair_of_ranks() -> list[Made]:
    """Two ranks that meet in one collective of 20 µs; rank 1 is 40 µs late."""
    found = []
    for rank, late in ((0, 0.0), (1, 40.0)):
        made = Made(rank=rank, world_size=2)
        made.range("ProfilerStep#0", 0, 200)
        made.kernel("gemm", (5 + late, 10 + late), (11 + late, 31 + late))
        made.kernel("ncclDevKernel_AllReduce_Sum", (35 + late, 40 + late), (41 + late, 101), stream=20)
        made.call("cudaDeviceSynchronize", 82, 105)
        made.op("aten::item", 106, 198)
        found.append(made)
    return found
