"""Functions that the speed studies share: measured child processes, best-of timing, and a plain table."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Cost:
    """Time and memory that a child process used."""

    wall_s: float
    cpu_s: float
    peak_bytes: float


def run(
    arguments: Sequence[str], *, cache: str | None = None, python: str = sys.executable, root: Path | None = None
) -> Cost:
    """Run ``python -m traincast ARGUMENTS`` in a cold process of the interpreter ``python``; its workers count.

    ``root`` is a checkout of Traincast whose code runs, instead of what is installed.
    """
    environment = dict(os.environ)
    if cache is not None:
        environment["TRAINCAST_CACHE"] = cache
    if root is not None:
        environment["PYTHONPATH"] = str(root / "src")
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
    started = time.perf_counter()
    process = subprocess.Popen(
        [python, "-m", "traincast", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment,
        cwd=root,
    )
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    if status:
        assert process.stderr is not None
        raise SystemExit(f"traincast {' '.join(arguments)} failed: {process.stderr.read().decode()}")
    process.returncode = 0
    return Cost(wall, usage.ru_utime + usage.ru_stime, _bytes(usage))


def _bytes(usage: resource.struct_rusage) -> float:
    return usage.ru_maxrss * (1.0 if sys.platform == "darwin" else 1024.0)


def best(function: Callable[[], object], *, repeats: int = 3) -> float:
    """Return the shortest of a few runs, in seconds: noise of the machine only makes runs longer."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
    return min(times)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table with aligned columns."""
    widths = [max(len(str(row[i])) for row in [columns, *rows]) for i in range(len(columns))]
    print(f"\n{title}")
    for row in [columns, ["-" * w for w in widths], *rows]:
        print("  " + "  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)))


def empty_cache() -> str:
    """Return an empty folder for captured graphs."""
    return tempfile.mkdtemp(prefix="traincast-bench-")
