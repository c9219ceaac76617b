"""Judges forecast slowdowns of pairs of jobs by pairs that were really run together on the testbed.

    python -m benchmarks.sharing PAIRS.csv

The table has a line for each pair: ``request_a``, ``request_b`` (runs of the testbed, as JSON), and the seconds of
their steps alone and together: ``alone_a_s``, ``alone_b_s``, ``together_a_s``, ``together_b_s``. Lines of the same pair
are runs that began in other phases: their mean counts.
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from traincast.cluster import load_cluster
from traincast.forecast import predict
from traincast.scheduling.sharing.programs import forecast_program
from traincast.scheduling.sharing.server_programs import ServerProgram
from traincast.scheduling.sharing.together import StepProgram, slowdowns
from traincast.testbed.request import RunRequest
from traincast.testbed.run import cluster_text
from traincast.testbed.setup import RUNTIME


@cache
def program_of(text: str) -> StepProgram | ServerProgram:
    """Return the step of a run of the testbed, given as JSON, as a program that shares its network."""
    request = RunRequest(**json.loads(text))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cluster.toml"
        path.write_text(cluster_text(request), encoding="utf-8")
        made = predict(
            request.model,
            cluster=load_cluster(str(path), hosts=True),
            global_batch=request.global_batch,
            strategy=request.strategy,
            precision="fp32",
            runtime=RUNTIME,
            use_cache=True,
        )
    return forecast_program(made).only("receive", "send")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the measured and forecast slowdown of every job, and the errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    given = parser.parse_args(arguments)
    errors: dict[str, list[float]] = {"all-reduce": [], "parameter servers": []}
    with given.table.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    measured: dict[tuple[str, str], list[list[float]]] = {}
    for row in rows:
        slower = [float(row[f"together_{side}_s"]) / float(row[f"alone_{side}_s"]) for side in "ab"]
        measured.setdefault((row["request_a"], row["request_b"]), []).append(slower)
    for pair, runs in measured.items():
        ranks = [range(json.loads(text)["ranks"]) for text in pair]
        forecast = slowdowns([program_of(text) for text in pair], nodes=ranks)
        kind = "parameter servers" if "servers" in pair[0] + pair[1] else "all-reduce"
        for text, slowdown, each in zip(pair, forecast, np.transpose(runs).tolist(), strict=True):
            mean = float(np.mean(each))
            errors[kind].append(slowdown / mean - 1.0)
            name = json.loads(text)["model"].partition(":")[0]
            spread = f" ({min(each):.3f} to {max(each):.3f})" if len(each) > 1 else ""
            print(f"{name:<14} measured {mean:.3f}{spread}  forecast {slowdown:.3f}  {errors[kind][-1]:+.1%}")
    errors["all"] = [error for own in errors.values() for error in own]
    for kind, own in errors.items():
        size = np.abs(own)
        if len(own):
            middle = f"mean {size.mean():.1%}, median {np.median(size):.1%}"
            print(f"{kind}: {len(own)} figures, {middle}, worst {size.max():.1%}")


if __name__ == "__main__":
    main()
