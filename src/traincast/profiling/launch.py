"""Start local processes for collectives, as ``torchrun`` does on one machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import IO

from traincast.graph.capture.capture import require_torch
from traincast.processes.run import ProcessStart, environment_of, shell_code, started, wait_for


def run_locally(module: str, arguments: Sequence[str], *, ranks: int, stdout: IO[bytes] | None = None) -> int:
    """Run ``module`` with ``arguments`` in ``ranks`` processes that know each other.

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
