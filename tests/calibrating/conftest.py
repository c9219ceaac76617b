"""Runs with known answers: small models whose measured times are simulated under a calibration of our own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from traincast import Calibration, Request, capture, load_cluster, load_runtime
from traincast.calibrating.runs import MeasuredRun, prepare_run
from traincast.measured import Measured
from traincast.strategy import load_precision, parse_strategy

STRATEGIES = (
    ("dp=8", 1, 64), ("dp=8", 1, 128), ("dp=4,tp=2", 1, 64), ("dp=2,tp=4", 1, 64), ("tp=8", 1, 16),
    ("dp=4,pp=2", 1, 64), ("dp=16", 2, 128), ("dp=8,tp=2", 2, 128), ("dp=8,pp=2", 2, 128), ("dp=2,tp=8", 2, 32),
    ("dp=4,tp=2,pp=2", 2, 64), ("dp=32", 4, 256), ("dp=16,tp=2", 4, 256), ("dp=8,tp=4", 4, 128), ("dp=8,pp=4", 4, 128),
)  # fmt: skip
MODELS = ("gpt:layers=4,hidden=1024,heads=16,seq=512", "gpt:layers=8,hidden=2048,heads=16,seq=512")

MakeRuns = Callable[[Calibration], list[MeasuredRun]]


@pytest.fixture(scope="session")
def plain_runs() -> list[MeasuredRun]:
    """One run for each strategy and model, measured to take what its simulation says."""
    runs: list[MeasuredRun] = []
    for model in MODELS:
        graph = capture(model, use_cache=True)
        for written, nodes, batch in STRATEGIES:
            request = Request(
                graph=graph,
                cluster=load_cluster(f"dgx-a100:{nodes}"),
                strategy=parse_strategy(f"{written},micro_batch=2", global_batch=batch),
                runtime=load_runtime("megatron-deepspeed"),
                precision=load_precision("fp16"),
                global_batch=batch,
            )
            runs.append(prepare_run(Measured(index=len(runs), request=request, seconds=1.0)))
    return runs


@pytest.fixture(scope="session")
def make_runs(plain_runs: list[MeasuredRun]) -> MakeRuns:
    """The same runs, measured to take what a calibration says."""

    def make(calibration: Calibration) -> list[MeasuredRun]:
        return [replace(run, measured=replace(run.measured, seconds=run.simulated(calibration))) for run in plain_runs]

    return make
