"""Simulate many runs, and write the use of their resources as a table to fit an inspector to.

Runs are independent tasks of an engine (processes of this machine, or Ray). Finished runs are kept in a journal, so an
interrupted command resumes where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from traincast.engines import Engine, local_engine
from traincast.errors import RequestError, TraincastError
from traincast.fitting.inspector.runs import request_of, use_columns, write_runs
from traincast.fitting.inspector.settings import drawn
from traincast.forecast import forecast
from traincast.journal import Journal, key_of
from traincast.resources.bursts import ResourceUse
from traincast.resources.curves import uses_of
from traincast.resources.forecasting import forecast_curves
from traincast.strategy import Request
from traincast.strategy.prepare import for_workers, need_only

SETUP: Final = "traincast.fitting.inspector.make:worker"
_LARGEST_BATCH: Final = 256
_MOST_STEP_S: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeRuns:
    """How many runs were simulated and written to ``table``; others were left out: they fit no memory or no rule."""

    table: Path
    written: int
    left_out: int

    def to_dict(self) -> dict[str, Any]:
        """The numbers as plain values, for JSON."""
        return {"table": str(self.table), "runs": self.written, "left_out": self.left_out}


def simulate_resources(
    output: Path | str,
    *,
    runs: int = 3000,
    seed: int = 0,
    models: Sequence[str] = (),
    engine: Engine | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> MadeRuns:
    """Simulate ``runs`` runs, and write those that are possible to ``output``, a .csv or .csv.gz file.

    They are drawn by ``seed`` over all models, or over ``models``. ``engine`` comes from :func:`traincast.load_engine`;
    without it, they run one after the other. ``progress`` is called with the number of finished runs and of all runs.
    The journal is the file ``output`` with ``.journal`` at its end. It is removed when the table is written.
    """
    output = Path(output)
    if not output.name.endswith((".csv", ".csv.gz")):
        raise RequestError(f"{output}: expected a name that ends in .csv or .csv.gz")
    rows = list(drawn(runs, seed=seed, models=models))
    path = output.with_name(f"{output.name}.journal")
    with Journal(path, kind="simulated runs", key=key_of(seed, *models), sync=False) as journal:
        left = [row for row in rows if str(row["number"]) not in journal.parts]
        finished = len(rows) - len(left)

        def done(index: int, made: Any) -> None:
            nonlocal finished
            journal.keep(str(left[index]["number"]), made)
            finished += 1
            if progress is not None:
                progress(finished, runs)

        (engine or local_engine(1)).run(SETUP, None, left, done=done)
        found = [journal.parts[str(row["number"])] for row in rows]
        kept = [row for row in found if row is not None]
        write_runs(output, kept)
        journal.remove()
    return MadeRuns(table=output, written=len(kept), left_out=runs - len(kept))


def worker(_: None) -> Callable[[Mapping[str, Any]], dict[str, Any] | None]:
    """Set up a worker of an engine: return the function that simulates one run."""
    return simulated_row


def simulated_row(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return ``row`` with its batch and its figures, or ``None`` if no batch fits or the strategy is refused."""
    try:
        request = _largest(row)
        if request is None:
            return None
        uses, step_s = simulated_uses(request)
    except TraincastError:
        return None
    if step_s > _MOST_STEP_S:
        return None
    described = {name: value for name, value in row.items() if name not in ("number", "batch_share")}
    return described | {
        "global_batch": request.global_batch,
        "precision": request.precision.name,
        "step_s": step_s,
        **use_columns(uses),
    }


def _largest(row: Mapping[str, Any]) -> Request | None:
    """The request with the asked share of the largest batch that fits; ``None`` if not even one sample fits."""
    parsed = request_of({**row, "global_batch": 2**20})
    each = parsed.strategy.dp * parsed.strategy.num_microbatches

    def fits(power: int) -> bool:
        return need_only(for_workers(replace(parsed, global_batch=each * 2**power))).fits

    low, high = -1, _LARGEST_BATCH.bit_length() - 1
    middle = high  # most often the largest fits
    while low < high:  # memory grows with the batch
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
        middle = (low + high + 1) // 2
    if low < 0:
        return None
    return replace(parsed, global_batch=each * max(1, round(2**low * row["batch_share"])))


def simulated_uses(request: Request) -> tuple[dict[str, ResourceUse], float]:
    """Return the uses of a simulated run of ``request``, and the seconds of its step."""
    result = forecast(request)
    return uses_of(forecast_curves(result)), result.report.step_s
