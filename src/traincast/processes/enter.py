"""Runs a program in a network namespace and on chosen cores; the program dies with its parent.

This file is run as a program: ``enter.py PARENT NAMESPACE CORES CLASS WORD…``. ``NAMESPACE`` is the path of a network
namespace or ``-``, ``CORES`` a list such as ``0,1`` or ``-``, ``CLASS`` is ``urgent`` or ``-``. It imports only the
standard library.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_CLONE_NEWNET: Final = 0x40000000


def command_in(words: list[str], *, namespace: Path | None, cores: tuple[int, ...], urgent: bool) -> list[str]:
    """Returns the command that runs ``words`` in ``namespace`` and on ``cores``, until this process ends.

    Without a namespace it runs in that of this process, without cores on all of them. If it is ``urgent``, it runs
    before all usual processes of the machine, where that is allowed. Only Linux can do this; elsewhere it is ``words``.
    """
    if sys.platform != "linux":
        return words
    place = "-" if namespace is None else str(namespace)
    pins, order = ",".join(map(str, cores)) or "-", "urgent" if urgent else "-"
    return [sys.executable, "-I", "-S", str(Path(__file__)), str(os.getpid()), place, pins, order, *words]


def enter(parent: int, *, namespace: str | None, cores: tuple[int, ...], urgent: bool) -> None:
    """Moves this process to a namespace and to cores; it dies with ``parent``, which must be its parent."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the request above
        os._exit(1)
    if namespace is not None:
        inside = os.open(namespace, os.O_RDONLY)
        if libc.setns(inside, _CLONE_NEWNET):
            number = ctypes.get_errno()
            sys.exit(f"cannot enter the network namespace {namespace}: {os.strerror(number)}")
        os.close(inside)
    if cores:
        os.sched_setaffinity(0, set(cores))
    if urgent:
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def _become(parent: int, place: str, pins: str, order: str, words: list[str]) -> None:
    cores = () if pins == "-" else tuple(int(core) for core in pins.split(","))
    enter(parent, namespace=None if place == "-" else place, cores=cores, urgent=order == "urgent")
    os.execvp(words[0], words)  # noqa: S606


if __name__ == "__main__":
    _become(int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5:])
