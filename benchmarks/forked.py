"""Starts ranks as copies of this process, which has imported everything: a start takes milliseconds, not seconds.

For programs that make hundreds of short runs. This process must not have run a backward pass before (PyTorch refuses
them in its copies then), and it may have no other threads that hold locks.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NoReturn

from traincast.processes.enter import enter
from traincast.processes.run import Process, ProcessStart

_POLL_S: Final = 0.005


class ForkedProcess:
    """A copy of this process, with the methods of ``subprocess.Popen`` that are needed here."""

    def __init__(self, body: Callable[[], object]) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if not self.pid:
            _become(body)

    def poll(self) -> int | None:
        """The exit code, or ``None`` while the process runs."""
        if self.returncode is None:
            with suppress(ChildProcessError):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the exit code; raises ``subprocess.TimeoutExpired``."""
        latest = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if latest is not None and time.monotonic() > latest:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            time.sleep(_POLL_S)
        return code

    def send_signal(self, sig: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, sig)

    def kill(self) -> None:
        """End the process at once."""
        self.send_signal(signal.SIGKILL)


def start_forked(words: Sequence[str], how: ProcessStart) -> Process:
    """Starts ``python -m MODULE ARGUMENT…`` as a copy of this process that calls ``MODULE.main(ARGUMENT, …)``."""
    _, _, module, *arguments = words
    parent = os.getpid()

    def body() -> None:
        if how.session:
            os.setsid()
        for number, file in ((1, how.stdout), (2, how.stderr)):
            if isinstance(file, int):  # DEVNULL
                os.dup2(os.open(os.devnull, os.O_WRONLY), number)
            elif file is not None:
                os.dup2(file.fileno(), number)
        os.environ.clear()
        os.environ.update(how.environment)
        enter(
            parent,
            namespace=None if how.namespace is None else str(how.namespace),
            cores=how.cores,
            urgent=how.urgent,
        )
        importlib.import_module(module).main(*arguments)

    return ForkedProcess(body)


def _become(body: Callable[[], object]) -> NoReturn:
    code = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        body()
        code = 0
    except BaseException:
        traceback.print_exc(file=sys.stderr)
    finally:
        sys.stderr.flush()
        os._exit(code)
