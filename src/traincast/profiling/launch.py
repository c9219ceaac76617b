"""Start local processes for collectives, as ``torchrun`` does on one machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import IO, Final

from traincast.graph.capture.capture import require_torch
from traincast.processes.run import ProcessStart, environment_of, shell_code, started, wait_for
from traincast.profiling.collectives.cases import CollectiveRequest

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


def run_locally(
    arguments: Sequence[str], *, ranks: int, stdout: IO[bytes] | None = None, module: str = "traincast"
) -> int:
    """Run ``traincast``, or another ``module``, with ``arguments`` in ``ranks`` processes that know each other.

    Returns 0, or the exit code of the first process that failed. Rank 0 writes to ``stdout``, or where this process
    writes; the other ranks write nothing.
    """
    require_torch()
    from datetime import timedelta

    from torch.distributed import TCPStore

    # The store is in this process, on a port that the system chose: two launches never collide.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(minutes=5))
    starts = [
        ProcessStart(
            environment=_environment(rank, ranks, store.port),
            stdout=stdout if rank == 0 else subprocess.DEVNULL,
            stderr=None if rank == 0 else subprocess.DEVNULL,
            session=False,  # an interrupt is for rank 0 as well: it says what was kept
        )
        for rank in range(ranks)
    ]
    with started([[sys.executable, "-m", module, *arguments]] * ranks, starts) as processes:
        failed = wait_for(processes)
        return shell_code(processes[failed[0]].returncode or 0) if failed else 0


def _environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    return {
        **os.environ,
        **environment_of(rank, ranks, address="127.0.0.1", port=port),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_RANK": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
