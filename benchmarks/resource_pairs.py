"""Pairs of jobs really run together on the testbed: how much they slow one another down on shared links.

    python -m benchmarks.resource_pairs -o DIR --table benchmarks/data/resource_pairs.csv
    python -m benchmarks.resource_pairs -o DIR --table benchmarks/data/resource_pairs_more.csv --more --starts 3

``--more`` runs pairs that were chosen after the model of sharing was made. How much two jobs slow one another down
depends on the phase in which they meet, so with ``--starts N`` every pair runs N times, each time with the second job
starting later by another N-th of its step; every start is a line of the table.

Every job first runs alone, then two jobs run at once on the same nodes. Each rank has an emulated device of its own;
the links of the nodes are shared. Steps follow one another without a pause, and only those steps count in which the
other job trains too. What is done stays in DIR. Needs root, for the shaped links.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.forked import ForkedProcess, start_forked
from benchmarks.resource_runs import ResourceRun, prepare, request_of
from traincast.files import make_folder, write_text
from traincast.testbed.folder import RunFolder, read_run_folder
from traincast.testbed.network import NodeNetwork, shaped
from traincast.testbed.rank.launch import PORT
from traincast.testbed.request import RunRequest
from traincast.testbed.run import SharedPlace, run

RATE: Final = "500Mbit"
DEVICE: Final = "k80"
JOBS: Final[dict[str, tuple[str, str, int]]] = {
    "gpt": ("gpt", "dp=2", 256),
    "resnet": ("resnet56", "dp=2", 512),
    "bert": ("bert", "dp=2", 256),
    "luong": ("luong", "dp=2", 512),
    "vae": ("vae", "dp=2", 8192),
    "gpt-server": ("gpt", "dp=2,servers=1", 256),
    "nmt-servers": ("nmt", "dp=2,servers=2", 512),
    "vit-server": ("vit", "dp=2,servers=1", 256),
    "bert-server": ("bert", "dp=2,servers=1", 256),
    "luong-async": ("luong", "dp=2,servers=1,async", 512),
}
"""Model, strategy, and batch of each worker."""
PAIRS: Final = (
    ("gpt", "gpt"),
    ("gpt", "resnet"),
    ("gpt", "bert"),
    ("gpt", "luong"),
    ("gpt", "vae"),
    ("bert", "vae"),
    ("resnet", "vae"),
    ("luong", "vae"),
    ("luong", "bert"),
    ("vae", "vae"),
    ("gpt-server", "gpt-server"),
    ("gpt-server", "nmt-servers"),
    ("gpt-server", "vit-server"),
    ("nmt-servers", "nmt-servers"),
    ("vit-server", "nmt-servers"),
    ("gpt-server", "vae"),
)
MORE: Final = (
    ("gpt-server", "gpt-server"),
    ("nmt-servers", "nmt-servers"),
    ("bert-server", "bert-server"),
    ("bert-server", "vit-server"),
    ("bert-server", "nmt-servers"),
    ("vit-server", "vit-server"),
    ("vit-server", "vae"),
    ("nmt-servers", "gpt"),
    ("luong-async", "bert-server"),
)
"""Pairs with parameter servers, seven of them unlike those of :data:`PAIRS`."""
_NODES: Final = 4
_SECONDS: Final = 10.0
_PATIENCE_S: Final = 120.0


def job(name: str, *, step_s: float) -> RunRequest:
    """The request of a job that trains for some seconds if a step takes ``step_s``."""
    model, strategy, batch = JOBS[name]
    steps = max(6, math.ceil(_SECONDS / step_s))
    made = ResourceRun(model=model, setting=strategy, device=DEVICE, rate=RATE, batch=batch, steps=steps)
    return replace(request_of(made), back_to_back=True)


def together(requests: Sequence[RunRequest], folders: Sequence[Path], *, late_s: float = 0.0) -> list[RunFolder]:
    """Run all requests at once, on the same nodes; all but the first start ``late_s`` later."""
    if all((folder / "run.json").exists() for folder in folders):
        return [read_run_folder(folder) for folder in folders]
    with shaped([requests[0].rate] * _NODES) as network:
        copies = [
            ForkedProcess(partial(_run, request, folder, network, PORT + number, late_s if number else 0.0))
            for number, (request, folder) in enumerate(zip(requests, folders, strict=True))
        ]
        codes = [copy.wait(timeout=_PATIENCE_S) for copy in copies]
    if any(codes):
        raise RuntimeError(f"exit codes {codes}")
    return [read_run_folder(folder) for folder in folders]


def _run(request: RunRequest, folder: Path, network: NodeNetwork, port: int, late_s: float) -> None:
    time.sleep(late_s)
    run(request, folder, start=start_forked, traced=False, place=SharedPlace(network, range(_NODES), port))


def shared_step_s(one: RunFolder, other: RunFolder) -> float:
    """The mean seconds of the steps of ``one`` that lie within the time in which ``other`` trained."""
    begin, end = other.windows_s[0][0], other.windows_s[-1][1]
    at, found = one.windows_s[0][0], []
    for seconds in one.steps_s:
        if at >= begin and at + seconds <= end:
            found.append(seconds)
        at += seconds
    if len(found) < 3:
        raise RuntimeError(f"only {len(found)} steps ran beside the other job")
    return statistics.fmean(found)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all jobs alone and all pairs together, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--table", type=Path, required=True)
    parser.add_argument("--more", action="store_true")
    parser.add_argument("--starts", type=int, default=1)
    given = parser.parse_args(arguments)
    make_folder(given.output)
    prepare(given.output)
    pairs = MORE if given.more else PAIRS
    alone: dict[str, float] = {}
    for name in dict.fromkeys(name for pair in pairs for name in pair):
        folder = given.output / f"alone-{name}"
        alone[name] = statistics.fmean(together([job(name, step_s=0.6)], [folder])[0].steps_s)
        print(f"{name} alone: {alone[name]:.3f} s", flush=True)
    rows = []
    for number, pair in enumerate(pairs):
        requests = [job(name, step_s=alone[name]) for name in pair]
        for start in range(given.starts):
            folders = [given.output / f"{'-'.join(pair)}{f'-{start}' if start else ''}-{side}" for side in "ab"]
            begin = time.monotonic()
            try:
                runs = together(requests, folders, late_s=alone[pair[1]] * start / given.starts)
                seconds = [shared_step_s(runs[0], runs[1]), shared_step_s(runs[1], runs[0])]
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                print(f"{number + 1} of {len(pairs)} · {' and '.join(pair)}: failed ({error})", flush=True)
                continue
            figures = [*(alone[name] for name in pair), *seconds]
            rows.append([*(json.dumps(_told(request)) for request in requests), *(f"{s:.6f}" for s in figures)])
            slower = " and ".join(f"× {s / alone[name]:.3f}" for name, s in zip(pair, seconds, strict=True))
            took = time.monotonic() - begin
            print(f"{number + 1} of {len(pairs)} · {' and '.join(pair)}: {slower} ({took:.0f} s)", flush=True)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["request_a", "request_b", "alone_a_s", "alone_b_s", "together_a_s", "together_b_s"])
    table.writerows(rows)
    write_text(given.table, text.getvalue())


def _told(request: RunRequest) -> dict[str, object]:
    """What a forecast needs of a request."""
    wanted = ("model", "ranks", "strategy", "global_batch", "compute", "network")
    return {key: value for key, value in asdict(request).items() if key in wanted}


if __name__ == "__main__":
    main()
