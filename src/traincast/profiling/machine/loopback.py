"""Two processes of this machine measure the link between them, and how much they slow each other down.

Run as a program by :func:`measure_pair`: ``python -m traincast.profiling.machine.loopback FOLDER RANK DEVICE THREADS
REPEATS``. Processors use gloo over the loopback interface, GPUs use NCCL; the calls are the same. NCCL could not be
tried where this was written: that machine has no GPU.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from traincast.errors import RequestError
from traincast.processes.run import ProcessStart, first_failure, started, wait_for
from traincast.profiling.timing import Timing, clock_of, measure

BACKENDS: Final = {"cpu": "gloo", "cuda": "nccl"}
SMALL_BYTES: Final = 64
LARGE_BYTES: Final = 32 << 20
START_S: Final = 8.0
"""Seconds that two processes take to start and to find each other."""
_PRODUCT: Final = 512
_COPY_BYTES: Final = 128 << 20
_TIMEOUT: Final = timedelta(seconds=120)
_PATIENCE_S: Final = 300.0


def measure_pair(device: str, *, threads: int, repeats: int) -> dict[str, Timing]:
    """Return times in seconds, as two processes on this machine see them.

    ``small`` and ``large`` are one way of a message of :data:`SMALL_BYTES` and :data:`LARGE_BYTES`. ``product`` and
    ``copy`` are the same work alone, ``product_beside`` and ``copy_beside`` while the other process does it as well.
    """
    with tempfile.TemporaryDirectory(prefix="traincast-pair-") as folder:
        words = [sys.executable, "-m", "traincast.profiling.machine.loopback", folder]
        env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        if device == "cpu" and sys.platform == "linux":
            env["GLOO_SOCKET_IFNAME"] = "lo"
        commands = [[*words, str(rank), device, str(threads), str(repeats)] for rank in range(2)]
        with tempfile.TemporaryFile() as first, tempfile.TemporaryFile() as second:
            errors = [first, second]
            with started(commands, [ProcessStart(environment=env, stderr=file) for file in errors]) as processes:
                try:
                    failed = wait_for(processes, timeout_s=_PATIENCE_S)
                except TimeoutError:
                    failed = [0, 1]
            if failed:
                said = first_failure(failed, errors)[1] or "no reason given"
                raise RequestError(f"two processes could not measure the link between them: {said}")
        found = json.loads(Path(folder, "result.json").read_text(encoding="utf-8"))
    return {name: Timing(**timing) for name, timing in found.items()}


def _both(folder: Path, rank: int, device: str, *, threads: int, repeats: int) -> None:
    """What each of the two processes does."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(threads)
    if device == "cuda":
        torch.cuda.set_device(rank)
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group(BACKENDS[device], store=store, rank=rank, world_size=2, timeout=_TIMEOUT)
    clock = clock_of(device)
    found: dict[str, Timing] = {}

    def timed(call: Callable[[], object]) -> Timing:
        return measure(call, clock=clock, repeats=repeats, seconds=2.0)

    for name, size in (("small", SMALL_BYTES), ("large", LARGE_BYTES)):
        found[name] = _one_way(torch.zeros(size, dtype=torch.uint8, device=device), rank, device, repeats)
    x = torch.ones(_PRODUCT, _PRODUCT, device=device)
    data = torch.zeros(_COPY_BYTES // 8, device=device)
    other = torch.empty_like(data)
    works: dict[str, Callable[[], object]] = {"product": lambda: x @ x, "copy": lambda: other.copy_(data)}
    for name, work in works.items():
        for turn in range(2):  # one process works while the other waits
            dist.barrier()
            if turn == rank:
                found[name] = timed(work)
        dist.barrier()
        found[f"{name}_beside"] = timed(work)
    dist.barrier()
    if rank == 0:
        text = json.dumps({name: _fields(timing) for name, timing in found.items()})
        (folder / "result.json").write_text(text, encoding="utf-8")
    dist.destroy_process_group()


def _one_way(message: Any, rank: int, device: str, repeats: int) -> Timing:
    """Half the time of a message to the other process and back."""
    import torch
    import torch.distributed as dist

    samples = []
    for turn in range(repeats + 3):
        start = time.perf_counter()
        if rank == 0:
            dist.send(message, 1)
            dist.recv(message, 1)
        else:
            dist.recv(message, 0)
            dist.send(message, 0)
        if device == "cuda":
            torch.cuda.synchronize()
        if turn >= 3:
            samples.append((time.perf_counter() - start) / 2)
    return Timing.of(samples)


def _fields(timing: Timing) -> dict[str, float]:
    return {name: getattr(timing, name) for name in ("median_s", "min_s", "dispersion", "count")}


if __name__ == "__main__":
    _both(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], threads=int(sys.argv[4]), repeats=int(sys.argv[5]))
