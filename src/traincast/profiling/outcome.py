"""The result of a profile of operators or collectives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from traincast.brief import Brief, BriefTable
from traincast.profiling.rows import Row

Progress: TypeAlias = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmeasured:
    """Why an operator or a whole model could not be measured; ``count`` is how many have the same reason."""

    what: str
    reason: str
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Profile(Brief):
    """The result of a run of the profiler: all rows of the table ``output``, and what could not be measured.

    ``measured`` counts the rows of this run, ``kept`` those of earlier runs, ``left`` the measurements that a limit
    left for the next run.
    """

    output: Path
    rows: tuple[Row, ...]
    failures: tuple[Unmeasured, ...]
    measured: int
    kept: int
    left: int
    warnings: tuple[str, ...]

    def brief(self) -> BriefTable:
        """Return where the rows are, and how many."""
        counts = (("measured", self.measured), ("kept", self.kept), ("failed", len(self.failures)), ("left", self.left))
        return BriefTable(f"{len(self.rows):,} rows in {self.output}", [(name, f"{count:,}") for name, count in counts])
