"""The part ``schedules``: when every job of a queue starts and ends, under every policy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import traincast
from benchmarks.ledger import canonical
from benchmarks.ledger.entries import REFUSED, Entry, Part, Scope

_EXAMPLES: Final = Path(__file__).parents[2] / "examples"
_POLICIES: Final = tuple(
    """fifo fifo-fit sjf sjf-fit srtf srsf priority easy conservative las tiresias gittins gandiva max-min themis gavel
    elastic edf qssf failure-aware""".split()
)
_SMALL: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "jobs": ("jobs.csv", {"nodes": 2, "gpus_per_node": 8}),
}
_LARGE: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "jobs, consolidated": ("jobs.csv", {"nodes": 4, "gpus_per_node": 4, "placement": "consolidated", "load": 2.0}),
    "jobs, noisy": ("jobs.csv", {"nodes": 2, "gpus_per_node": 8, "estimates": "noisy:0.5", "seed": 3}),
    "jobs, user": ("jobs.csv", {"nodes": 2, "gpus_per_node": 8, "estimates": "user"}),
    "jobs, few nodes": ("jobs.csv", {"nodes": 1, "gpus_per_node": 4, "oversize": "drop"}),
    "shared": ("shared_jobs.csv", {"nodes": "6x4:V100", "hardware": {"V100": "dgx-1-v100"}, "share": "blind"}),
    "forecast": ("shared_jobs.csv", {"nodes": "6x4:V100", "hardware": {"V100": "dgx-1-v100"}}),
}
_REAL: Final[dict[str, dict[str, Any]]] = {
    "jobs/reference/philly_ee9e8c_30d.csv": {"nodes": 5, "gpus_per_node": 8},
    "jobs/gavel_msr_seed0.csv.gz": {"nodes": 24, "gpus_per_node": 8},
}
_FEW: Final = ("fifo", "fifo-fit", "easy", "srtf", "las", "tiresias")
"""Policies for long traces."""


def _entries(scope: Scope) -> Iterator[Entry]:
    for name, (file, given) in (_SMALL if scope.small else _SMALL | _LARGE).items():
        for policy in _POLICIES:
            yield f"{name}, {policy}", _scheduled(_EXAMPLES / file, policy=policy, **given)
    for name, given in {} if scope.small else _REAL.items():
        path = scope.data / name if scope.data else None
        if path is None or not path.is_file():
            scope.skip(f"{name}, ", "the trace is not at hand; name its folder with --data")
            continue
        for policy in _POLICIES if "reference" in name else _FEW:
            yield f"{name}, {policy}", _scheduled(path, policy=policy, **given)


def _scheduled(path: Path, **given: Any) -> tuple[str, ...]:
    try:
        made = traincast.schedule(path, **given)
    except traincast.TraincastError as error:
        return (f"{REFUSED}{str(error).replace(str(path), path.name)}",)
    figures = {field: value for field, value in canonical.plain(made).items() if field not in ("trace", "notes")}
    return (
        canonical.job_outcomes(made),
        canonical.digest_of_json(figures),
        canonical.digest_of_json([note.replace(str(path), path.name) for note in made.notes], 8),
        float(figures["mean_jct_s"]).hex(),
    )


PART: Final = Part(name="schedules", columns=("jobs", "figures", "notes", "mean_jct_s"), entries=_entries)
