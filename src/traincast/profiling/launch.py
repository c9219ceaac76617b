"""Start local processes for collectives, as ``torchrun`` does on one machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import IO, Final

from traincast.graph.capture import require_torch
from traincast.profiling.collective_cases import CollectiveRequest

_POLL_S: Final = 0.05
_PATIENCE_S: Final = 10.0


_OPTIONS: Final = {
    "collectives": "--ops",
    "sizes": "--sizes",
    "groups": "--groups",
    "backend": "--backend",
    "repeats": "--repeats",
    "time_limit_s": "--time-limit",
    "threads": "--threads",
    "source": "--source",
    "system": "--system",
    "interconnect": "--interconnect",
    "beside_compute": "--beside-compute",
    "concurrent_groups": "--concurrent-groups",
    "node_sets": "--node-sets",
}
"""The option of ``traincast profile collectives`` for each field of a request."""


def words_of(request: CollectiveRequest, output: Path) -> list[str]:
    """Return the arguments of ``traincast`` that measure ``request`` into ``output``."""
    words = ["profile", "collectives"]
    for field in fields(request):
        value = getattr(request, field.name)
        if value == field.default:
            continue
        if value is True:
            words.append(_OPTIONS[field.name])
            continue
        if isinstance(value, tuple):
            value = ",".join(map(str, value))
        elif field.name == "time_limit_s":
            value = f"{value!r}s"
        words += [_OPTIONS[field.name], str(value)]
    return [*words, "-o", str(output)]


def run_locally(arguments: Sequence[str], *, ranks: int, stdout: IO[bytes] | None = None) -> int:
    """Run ``traincast`` with ``arguments`` in ``ranks`` processes that know each other.

    Returns 0, or the exit code of the first process that failed. Rank 0 writes to ``stdout``, or where this process
    writes; the other ranks write nothing.
    """
    require_torch()
    from datetime import timedelta

    from torch.distributed import TCPStore

    # The store is in this process, on a port that the system chose: two launches never collide.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(minutes=5))
    processes = [
        subprocess.Popen(  # noqa: S603  (this very program)
            [sys.executable, "-m", "traincast", *arguments],
            env=_environment(rank, ranks, store.port),
            stdin=subprocess.DEVNULL,
            stdout=stdout if rank == 0 else subprocess.DEVNULL,
            stderr=None if rank == 0 else subprocess.DEVNULL,
        )
        for rank in range(ranks)
    ]
    try:
        return _wait(processes)
    finally:
        _stop(processes)


def _environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    return {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> int:
    """Wait until all processes have ended, or one has failed."""
    while True:
        codes = [process.poll() for process in processes]
        failed = [code for code in codes if code]
        if failed:
            return codes[0] or (failed[0] if failed[0] > 0 else 128 - failed[0])
        if all(code == 0 for code in codes):
            return 0
        time.sleep(_POLL_S)


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End the processes that still run: terminate, then kill."""
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    end = time.monotonic() + _PATIENCE_S
    for process in processes:
        try:
            process.wait(timeout=max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
