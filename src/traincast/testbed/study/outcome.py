"""What a study found: the outcome of each cell, means by kind of cell, and what measuring cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class CellOutcome:
    """What a cell measured and what was forecast; errors as in :class:`traincast.testbed.outcome.Comparison`.

    ``noise`` is that of the machine. ``run_s`` and ``events_s`` are the seconds that the run and the measuring of its
    events took, with as many processes as ``ranks`` and ``events_processes``. If the machine could not carry the cell,
    ``cannot_carry`` says why.
    """

    name: str
    kind: str
    model: str
    strategy: str
    network: str
    compute: str
    ranks: int
    steps: int
    measured_s: float
    predicted_s: float
    batch_error: float
    noise: float
    activity_error: float
    activity_noise: float
    span_shift: float | None
    job_measured_s: float
    job_predicted_s: float
    run_s: float
    events_s: float
    events_processes: int
    cannot_carry: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def job_error(self) -> float:
        """The signed error of the time of all counted steps."""
        return self.job_predicted_s / self.job_measured_s - 1.0

    @property
    def is_beyond_noise(self) -> bool:
        """Whether the batch error is larger than twice the noise."""
        return abs(self.batch_error) > 2.0 * self.noise

    def to_dict(self) -> dict[str, Any]:
        """Return the cell as JSON shows it; errors are ``None`` if the machine could not carry it."""
        told = {**asdict(self), "job_error": self.job_error}
        if self.cannot_carry:
            told |= dict.fromkeys(("batch_error", "activity_error", "span_shift", "job_error"))
        return told


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySummary:
    """Mean figures of the cells of one kind; ``worst_batch_error`` is the largest absolute one.

    ``beyond_noise`` is the number of cells whose batch error is larger than twice their noise.
    """

    cells: int
    batch_error: float
    worst_batch_error: float
    activity_error: float
    activity_noise: float
    noise: float
    beyond_noise: int
    job_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyCost:
    """What events cost against full runs, in seconds of one process, for all strategies of a model on a network."""

    model: str
    network: str
    strategies: int
    events: float
    runs: float

    @property
    def share(self) -> float:
        """The cost of the events divided by that of the runs."""
        return self.events / self.runs if self.runs else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The outcome of a study: cells that were compared, and for those that failed the reason.

    Figures are of the cells that the machine could carry.
    """

    done: tuple[CellOutcome, ...]
    failed: dict[str, str]
    warnings: tuple[str, ...] = ()

    @property
    def carried(self) -> tuple[CellOutcome, ...]:
        """The cells that the machine could carry."""
        return tuple(cell for cell in self.done if not cell.cannot_carry)

    def summaries(self) -> dict[str, StudySummary]:
        """Return the mean figures of each kind of cells."""
        kinds = dict.fromkeys(cell.kind for cell in self.carried)
        return {kind: summary_of([cell for cell in self.carried if cell.kind == kind]) for kind in kinds}

    def costs(self) -> tuple[StudyCost, ...]:
        """Return the cost of events for each model and network of the grid."""
        grid = [cell for cell in self.carried if cell.kind == "emulated"]
        found = []
        for model, network in dict.fromkeys((cell.model, cell.network) for cell in grid):
            cells = [cell for cell in grid if (cell.model, cell.network) == (model, network)]
            found.append(
                StudyCost(
                    model=model,
                    network=network,
                    strategies=len(cells),
                    events=sum(cell.events_s * cell.events_processes for cell in cells),
                    runs=sum(cell.run_s * cell.ranks for cell in cells),
                )
            )
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        """Return the study as JSON shows it."""
        return {
            "cells": [cell.to_dict() for cell in self.done],
            "summary": {kind: asdict(summary) for kind, summary in self.summaries().items()},
            "costs": [{**asdict(cost), "share": cost.share} for cost in self.costs()],
            "failed": self.failed,
            "warnings": list(self.warnings),
        }


def summary_of(cells: Sequence[CellOutcome]) -> StudySummary:
    """Return the mean figures of ``cells``; errors are absolute."""

    def mean(values: Sequence[float]) -> float:
        return sum(values) / len(values)

    return StudySummary(
        cells=len(cells),
        batch_error=mean([abs(cell.batch_error) for cell in cells]),
        worst_batch_error=max(abs(cell.batch_error) for cell in cells),
        activity_error=mean([cell.activity_error for cell in cells]),
        activity_noise=mean([cell.activity_noise for cell in cells]),
        noise=mean([cell.noise for cell in cells]),
        beyond_noise=sum(cell.is_beyond_noise for cell in cells),
        job_error=mean([abs(cell.job_error) for cell in cells]),
    )
