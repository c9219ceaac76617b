"""What tests of the testbed share."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from traincast.processes.janitor import NAMESPACES, PREFIX
from traincast.testbed.network import why_not_shaped

needs_shaping = pytest.mark.skipif(bool(why_not_shaped()), reason=why_not_shaped() or "can be shaped")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc, which only Linux has")


def namespaces_of(pid: int) -> list[str]:
    """Names of the namespaces that the process ``pid`` made."""
    return sorted(path.name for path in NAMESPACES.glob(f"{PREFIX}-{pid}-*"))


def commands_with(word: str) -> list[int]:
    """Numbers of the running processes that have ``word`` among their arguments."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def comes_true(question: Callable[[], bool], *, within_s: float = 20.0) -> bool:
    """Whether ``question`` is answered with yes in time."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if question():
            return True
        time.sleep(0.05)
    return question()
