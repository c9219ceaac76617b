"""Processes of one distributed run: their environment, waiting for them, and ending them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import Final, Protocol

_POLL_S: Final = 0.05
_PATIENCE_S: Final = 10.0


class Process(Protocol):
    """A process that was started here, as ``subprocess.Popen`` shows it."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None:
        """The exit code, or ``None`` while the process runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the exit code; raises ``subprocess.TimeoutExpired``."""

    def send_signal(self, sig: int) -> None:
        """Send a signal, unless the process has ended."""

    def kill(self) -> None:
        """End the process at once."""


def environment_of(rank: int, ranks: int, *, address: str, port: int) -> dict[str, str]:
    """Returns the variables by which ``torch.distributed`` in rank ``rank`` of ``ranks`` finds the others."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }


def wait_for(processes: Sequence[Process], *, timeout_s: float | None = None) -> list[int]:
    """Waits until all processes have ended or one has failed, and returns the numbers of those that have failed.

    Raises ``TimeoutError`` if some still run after ``timeout_s`` seconds.
    """
    end = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        codes = [process.poll() for process in processes]
        failed = [number for number, code in enumerate(codes) if code]
        if failed or all(code == 0 for code in codes):
            return failed
        if end is not None and time.monotonic() > end:
            raise TimeoutError
        time.sleep(_POLL_S)


def end(processes: Sequence[Process], *, patience_s: float = _PATIENCE_S) -> None:
    """Ends the processes that still run: terminates them, then kills those that run on after ``patience_s`` seconds."""
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    latest = time.monotonic() + patience_s
    for process in processes:
        try:
            process.wait(timeout=max(0.1, latest - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
