"""Processes that run together: how each starts, waiting for them, and ending them whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, NoReturn, Protocol, TypeAlias

from traincast.processes.enter import command_in
from traincast.processes.janitor import Janitor

_POLL_S: Final = 0.05
_PATIENCE_S: Final = 10.0
_KILLED: Final = 128
"""What a shell adds to the number of the signal that ended a command."""
_TAIL: Final = 65536
_LOST: Final = ("connection closed", "connection reset", "connection refused", "broken pipe", "timed out")
"""What a process says when another one has gone."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStart:
    """How a process starts: its variables, its place, and where it writes.

    ``stdout`` and ``stderr`` are as in ``subprocess``: a file, ``DEVNULL``, or ``None`` for where this process writes.
    ``namespace`` is a network namespace, ``cores`` pins it to some cores, and an ``urgent`` process runs before all
    usual ones, where that is allowed. In a ``session`` of its own, it does not hear the Ctrl-C of a terminal.
    """

    environment: Mapping[str, str]
    stdout: IO[bytes] | int | None = subprocess.DEVNULL
    stderr: IO[bytes] | int | None = subprocess.DEVNULL
    namespace: Path | None = None
    cores: tuple[int, ...] = ()
    urgent: bool = False
    session: bool = True


Starter: TypeAlias = Callable[[Sequence[str], ProcessStart], Process]
"""Starts a command."""


def environment_of(rank: int, ranks: int, *, address: str, port: int) -> dict[str, str]:
    """Returns the variables by which ``torch.distributed`` in rank ``rank`` of ``ranks`` finds the others."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }


def start_program(words: Sequence[str], how: ProcessStart) -> Process:
    """Starts a command as a program that dies with this process."""
    return subprocess.Popen(  # noqa: S603  (commands of this project)
        command_in(list(words), namespace=how.namespace, cores=how.cores, urgent=how.urgent),
        env=dict(how.environment),
        stdin=subprocess.DEVNULL,
        stdout=how.stdout,
        stderr=how.stderr,
        start_new_session=how.session,
    )


@contextmanager
def started(
    commands: Sequence[Sequence[str]],
    starts: Sequence[ProcessStart],
    *,
    start: Starter = start_program,
    janitor: Janitor | None = None,
    patience_s: float = _PATIENCE_S,
) -> Iterator[list[Process]]:
    """Starts one process for each command; all have ended when the body is left, however it is left.

    Those that still run are terminated, and killed if they run on after ``patience_s`` seconds, with the children of
    those that have a session of their own. A ``janitor`` ends them even if this process is killed.
    """
    processes: list[Process] = []
    try:
        for words, how in zip(commands, starts, strict=True):
            processes.append(start(words, how))
            if janitor is not None:
                janitor.watch_group(processes[-1].pid)
        yield processes
    finally:
        _end(processes, patience_s=patience_s)
        for process, how in zip(processes, starts, strict=False):
            if how.session:
                with suppress(ProcessLookupError):  # children that it left behind
                    os.killpg(process.pid, signal.SIGKILL)
            if janitor is not None:
                janitor.forget_group(process.pid)


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


def shell_code(code: int) -> int:
    """Returns an exit code as a shell gives it: 128 + n for a process that signal n ended."""
    return code if code >= 0 else _KILLED - code


def first_failure(failed: Sequence[int], errors: Sequence[IO[bytes]]) -> tuple[int, str]:
    """Returns which of the ``failed`` processes failed first, and the last line that it wrote to its file of errors.

    A process that only lost its connection to another one is not taken for the first.
    """
    said = {number: _last_line(errors[number]) for number in failed}
    first = min(failed, key=lambda number: any(word in said[number].lower() for word in _LOST))
    return first, said[first]


def _end(processes: Sequence[Process], *, patience_s: float) -> None:
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


def _last_line(written: IO[bytes]) -> str:
    size = written.seek(0, os.SEEK_END)
    written.seek(max(0, size - _TAIL))
    lines = [line.strip() for line in written.read().decode(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line), "")


def end_at_once() -> NoReturn:
    """End this process with exit code 0 and without tearing down its libraries.

    A thread of gloo that still runs while C++ destroys its objects aborts the process, although its work is done.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
