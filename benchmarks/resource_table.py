"""The table of measured use of resources, from the runs of ``benchmarks.resource_runs``.

    python -m benchmarks.resource_table DIR -o benchmarks/data/resource_runs.parquet [--hz 50]
    python -m benchmarks.resource_table TABLE.parquet -o TABLE.parquet

One row for each run: its request, its step time, the twelve figures on the node of rank 0, at ``--hz`` samples per
second, and the curves that they are computed from, as thousandths of the peak. Runs whose hosts lagged behind their
emulated devices by more than 5 % of a step are left out. Given a table, the figures are computed anew from its curves,
as it must be done when their definition changes.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.resource_runs import ResourceRun, request_of
from traincast.cli.resources.real_runs import SampledRun, sampled_run
from traincast.estimate.resource_use import FIGURES, RESOURCES
from traincast.files import writing
from traincast.resources.ask import HZ
from traincast.resources.bursts import use_of
from traincast.tables import read_rows

if TYPE_CHECKING:
    import pyarrow as pa

STORED: Final = 1e-3
"""Share of the peak that one stands for in a stored curve."""
MOST_BEHIND: Final = 0.05
_BEHIND: Final = re.compile(r"processes were ([0-9.]+)% of a step behind")


def row_of(run: ResourceRun, sampled: SampledRun, *, hz: float) -> dict[str, Any]:
    """The row of one run."""
    record, request = sampled.record, request_of(run)
    curves = sampled.curves(hz)
    row: dict[str, Any] = {
        "model": run.model,
        "spec": request.model,
        "strategy": record.strategy,
        "workers": run.workers,
        "servers": run.servers,
        "device": run.device,
        "rate_bytes_per_s": request.rate,
        "batch_per_worker": run.batch,
        "global_batch": record.global_batch,
        "steps": len(record.steps_s),
        "step_s": record.step_s,
        "repeat_cv": record.repeat_cv,
        "behind": behind(record.warnings),
        "observed_s": len(curves.values["compute"][0]) * curves.period_s,
        "hz": hz,
    }
    seen = curves.of_node_of(0)
    return figured(row | {f"{name}_curve": np.round(seen[name] / STORED).astype(int).tolist() for name in RESOURCES})


def figured(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with the figures of its curves."""
    found = dict(row)
    for name in RESOURCES:
        use = use_of(STORED * np.array(row[f"{name}_curve"], dtype=np.float64), period_s=1.0 / row["hz"])
        found |= {f"{name}_{figure}": use.figure(figure) for figure in FIGURES}
        found[f"{name}_pattern"] = use.pattern
    return found


def schema_of(row: Mapping[str, Any]) -> pa.Schema:
    """The columns of a table with such rows: curves are lists of small integers; a refused figure has no value."""
    import pyarrow as pa

    types = {f"{name}_curve": pa.list_(pa.int16()) for name in RESOURCES}
    types |= {f"{name}_{figure}": pa.float64() for name in RESOURCES for figure in FIGURES}
    return pa.schema([pa.field(name, types.get(name) or pa.scalar(row[name]).type) for name in row])


def behind(warnings: Sequence[str]) -> float:
    """By which share of a step hosts were behind their devices; 0 if nobody warns of it."""
    found = [_BEHIND.search(warning) for warning in warnings]
    return max((float(match[1]) / 100.0 for match in found if match), default=0.0)


def runs_in(folder: Path) -> list[ResourceRun]:
    """The runs that are done, in the order of their plan."""
    plan = max(folder.glob("plan-*.json"), key=lambda path: path.stat().st_size)
    runs = [ResourceRun(**row) for row in json.loads(plan.read_text(encoding="utf-8"))]
    return [run for run in runs if (folder / run.name / "run.json").exists()]


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="runs, or a table of them")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--hz", type=float, default=HZ)
    given = parser.parse_args(arguments)
    if given.folder.is_dir():
        rows = [row_of(run, sampled_run(given.folder / run.name), hz=given.hz) for run in runs_in(given.folder)]
    else:
        rows = [figured(row) for row in read_rows(given.folder, needs=[f"{name}_curve" for name in RESOURCES])]
    kept = [row for row in rows if row["behind"] <= MOST_BEHIND]
    with writing(given.output) as out:
        pq.write_table(pa.Table.from_pylist(kept, schema_of(kept[0])), out, compression="zstd", compression_level=19)
    print(f"{len(kept)} of {len(rows)} runs in {given.output}; in the others hosts lagged behind their devices")


if __name__ == "__main__":
    main()
