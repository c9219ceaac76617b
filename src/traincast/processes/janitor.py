"""Cleans up after a testbed, also if its process was killed.

A janitor is a small process in a session of its own. It reads from a pipe what the owner has made: process groups and
network namespaces. When the owner closes the pipe or dies, the janitor kills the groups that are left, deletes the
namespaces that are left, and exits. This file is also the program of that process; it imports only the standard
library.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

PREFIX: Final = "traincast"
NAMESPACES: Final = Path("/run/netns")
_PATIENCE_S: Final = 5.0
_POLL_S: Final = 1.0
_START_FIELD: Final = 22  # of /proc/PID/stat, counted from 1


def start_of(pid: int) -> int | None:
    """Returns when a process started, in clock ticks since boot, or None if it does not run.

    A process that has ended and was not waited for counts as one that does not run.
    """
    fields = _stat(pid)
    return None if fields is None or fields[0] in ("Z", "X") else int(fields[_START_FIELD - 3])


def namespace_prefix(pid: int) -> str:
    """Returns the beginning of the names of all namespaces that the process ``pid`` owns."""
    return f"{PREFIX}-{pid}-{start_of(pid)}-"


def sweep() -> list[str]:
    """Deletes the namespaces of testbeds whose owner no longer runs, and returns their names."""
    found = NAMESPACES.glob(f"{PREFIX}-*-*-*") if NAMESPACES.is_dir() else ()
    left = sorted(path.name for path in found if not _has_owner(path.name))
    for name in left:
        delete_namespace(name)
    return left


def delete_namespace(name: str) -> None:
    """Kills the processes of a namespace and deletes it; does nothing if it does not exist."""
    if not (NAMESPACES / name).exists():
        return
    inside = _run("ip", "netns", "pids", name).split()
    for pid in map(int, inside):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    _run("ip", "netns", "delete", name)


class Janitor:
    """The owner's end of the pipe to a janitor process."""

    def __init__(self) -> None:
        owner = os.getpid()
        self._process = subprocess.Popen(  # noqa: S603  (this very file)
            [sys.executable, "-I", "-S", str(Path(__file__)), str(owner), str(start_of(owner))],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def watch_group(self, leader: int) -> None:
        """Asks the janitor to kill the process group of ``leader`` when this process ends."""
        self._say(f"group {leader} {start_of(leader)}")

    def forget_group(self, leader: int) -> None:
        """Takes back :meth:`watch_group`: the group has ended."""
        self._say(f"forget {leader} 0")

    def watch_namespace(self, name: str) -> None:
        """Asks the janitor to delete a namespace when this process ends. Call it before the namespace is made."""
        self._say(f"namespace {name} 0")

    def close(self) -> None:
        """Lets the janitor clean up what is left, and waits until it has done so."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=2 * _PATIENCE_S)

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # killed: the next testbed sweeps
            self._process.stdin.write(f"{line}\n".encode())


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the third (the state) on, or None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def _has_owner(name: str) -> bool:
    _, pid, start, _ = name.split("-", 3)
    return pid.isdecimal() and str(start_of(int(pid))) == start


def _run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603
    return done.stdout


def _kill_group(leader: int, start: int | None) -> None:
    """Kills a process group unless another process has taken the number of its leader since."""
    now = _stat(leader)
    if now is not None and start is not None and int(now[_START_FIELD - 3]) != start:
        return  # a number is free for others only after the whole group has ended
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _serve(owner: int, start: str) -> None:
    """The janitor itself: reads lines until the owner is gone, then cleans up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: dict[int, int | None] = {}
    namespaces: list[str] = []
    rest = b""
    while str(start_of(owner)) == start:  # a forked child of the owner may keep the pipe open
        if not select.select([0], [], [], _POLL_S)[0]:
            continue
        read = os.read(0, 65536)
        if not read:
            break
        *lines, rest = (rest + read).split(b"\n")
        for line in lines:
            word, what, when = line.decode().split()
            if word == "namespace":
                namespaces.append(what)
            elif word == "group":
                groups[int(what)] = int(when) if when.isdecimal() else None
            else:
                groups.pop(int(what), None)
    for leader, began in groups.items():
        _kill_group(leader, began)
    end = time.monotonic() + _PATIENCE_S
    while any(start_of(leader) for leader in groups) and time.monotonic() < end:
        time.sleep(0.02)
    for name in namespaces:
        delete_namespace(name)


if __name__ == "__main__":
    _serve(int(sys.argv[1]), sys.argv[2])
