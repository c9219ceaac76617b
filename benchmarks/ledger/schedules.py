"""The part ``schedules``: when every job of a queue starts and ends, under every policy."""

from __future__ import annotations

import tempfile
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
    "jobs, failing": (
        "jobs.csv",
        {
            "nodes": 4,
            "gpus_per_node": 8,
            "costs": traincast.Costs(checkpoint_s=20.0, restore_s=30.0, restart_s=60.0, interval_s=900.0),
            "failures": traincast.Failures(laws=(traincast.FailureLaw(kind="node", mtbf_s=2e4, repair_s=1800.0),)),
            "seed": 1,
        },
    ),
    "shared": ("shared_jobs.csv", {"nodes": "6x4:V100", "hardware": {"V100": "dgx-1-v100"}, "share": "blind"}),
    "forecast": ("shared_jobs.csv", {"nodes": "6x4:V100", "hardware": {"V100": "dgx-1-v100"}}),
}
_REAL: Final[dict[str, dict[str, Any]]] = {
    "jobs/reference/philly_ee9e8c_30d.csv": {"nodes": 5, "gpus_per_node": 8},
}
_FEW: Final = ("fifo", "srtf", "easy", "tiresias", "gavel", "elastic")
"""Policies for queues whose jobs are forecast."""
_GAVEL: Final = ("ResNet-50", "ResNet-18", "Transformer", "LM", "Recommendation", "CycleGAN", "A3C")
"""Models that a public trace names, for which others of the zoo stand."""


def _entries(scope: Scope) -> Iterator[Entry]:
    for name, (file, given) in (_SMALL if scope.small else _SMALL | _LARGE).items():
        for policy in _FEW if "hardware" in given else _POLICIES:
            yield f"{name}, {policy}", _scheduled(_EXAMPLES / file, policy=policy, **given)
    with tempfile.TemporaryDirectory() as folder:
        written = _write_gavel(Path(folder))
        for policy in () if scope.small else ("sjf", "gavel"):
            yield (
                f"stand-ins, {policy}",
                _scheduled(written, policy=policy, nodes="4x4:V100", estimates="predicted:gavel"),
            )
    for name, given in {} if scope.small else _REAL.items():
        path = scope.data / name if scope.data else None
        if path is None or not path.is_file():
            scope.skip(f"{name}, ", "the trace is not at hand; name its folder with --data")
            continue
        for policy in _POLICIES:
            yield f"{name}, {policy}", _scheduled(path, policy=policy, **given)


def _write_gavel(folder: Path) -> Path:
    """Write a trace of jobs that are made up, with models that others stand for."""
    path = folder / "stand-ins.csv"
    jobs = []
    for n in range(14):
        model, gpus, seconds = _GAVEL[n % len(_GAVEL)], 2 ** (n % 3), 4000 + 700 * (n % 5)
        jobs.append(f"job{n:02},{300 * n},{gpus},{seconds},{model},{16 << n // 7},{2000 + 100 * n}")
    path.write_text("\n".join(("job_id,submit_s,num_gpus,duration_s,model,batch,steps", *jobs)), encoding="utf-8")
    return path


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
