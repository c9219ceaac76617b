"""Options that several verbs of ``profile`` share."""

from __future__ import annotations

from typing import Final

from traincast.ask import Option

COMPUTE: Final = Option(
    "Operators run on this machine (real), or take the time that DEVICE would need (see `traincast devices`).",
    "real|DEVICE",
)
DEVICE: Final = Option("Where to run: cpu or cuda.", "NAME")
INTERCONNECT: Final = Option("Value of the table's interconnect column, such as NVLink.", "TEXT")
REPEATS: Final = Option("Timed runs of each measurement.", "N")
SOURCE: Final = Option("Value of the table's source column; errors are grouped by it.", "NAME")
THREADS: Final = Option("Threads of each process.", "N")
TIME_LIMIT: Final = Option(
    "Stop after this time, such as 30min. The same command resumes later.", "TIME", flag="--time-limit", time=True
)
TIMED_STEPS: Final = Option("Timed steps of each model.", "N", flag="--timed-steps")
