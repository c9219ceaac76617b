"""Small pages of every kind, each written once per session, and the data that they show."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from tests.conftest import GPT, ChosenSeconds, graph_of
from traincast import (
    Answer,
    Conditions,
    FailureLaw,
    Failures,
    JobForecast,
    load_engine,
    predict,
    resources_of,
    schedule,
    search,
)
from traincast.report import write_page as write_forecast
from traincast.report.report import BundleUse
from traincast.resources.forecasting import forecast_curves, page_data
from traincast.scheduling import POLICIES
from traincast.scheduling.page import write_page as write_schedule
from traincast.searching.page import write_page as write_search
from traincast.work import Launch, Work

MODEL = GPT
JOBS = Path(__file__).parents[2] / "examples" / "jobs.csv"
NARROW = "schedule=1f1b|interleaved|gpipe,cp=1,recompute=none|full,offload=none,tp<=2"
JOB = JobForecast(
    num_steps=1000, startup_s=60.0, data_loading_s=1.0, steps_s=3600.0, checkpoints_s=30.0, evaluation_s=12.0,
    cost=99.0, energy_j=3.6e6,
)  # fmt: skip


def data_in(path: Path) -> Any:
    """The data inside a page."""
    text = path.read_text(encoding="utf-8")
    (found,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', text, re.DOTALL)
    return json.loads(found)


def _seconds(work: Work) -> float:
    return 5e-6 * work.launches if isinstance(work, Launch) else 123.456e-6


def forecast_page(folder: Path) -> Path:
    """Two stages of two ranks, of which rank 1 is slow; with a job and a bundle."""
    made = predict(
        graph_of(MODEL), cluster="dgx-a100:1x4", global_batch=8, strategy="tp=2,pp=2,num_microbatches=4",
        runtime="megatron", cost_model=ChosenSeconds(_seconds), conditions=Conditions(slow=((1, 2.0),)),
    )  # fmt: skip
    bundle = BundleUse(path="/data/my-bundle", covered=0.5, operators=0.75, collectives=0.25)
    drawn = page_data(resources_of(made), forecast_curves(made, hz=None))
    report = replace(made.report, job=JOB, bundles=(bundle,))
    write_forecast(report, made.detailed(), folder / "forecast.html", resources=drawn)
    return folder / "forecast.html"


def servers_page(folder: Path) -> Path:
    """Four workers and two parameter servers."""
    made = predict(
        graph_of(MODEL), cluster="dgx-a100:2x2", global_batch=8, strategy="dp=4,servers=2", runtime="pytorch",
        cost_model=ChosenSeconds(_seconds),
    )  # fmt: skip
    write_forecast(made.report, made.detailed(), folder / "servers.html")
    return folder / "servers.html"


@cache
def answer() -> Answer:
    """A search of a few hundred strategies."""
    one = load_engine("local", workers=1)
    return search(graph_of(MODEL), cluster="dgx-a100:1x4", global_batch=16, constraint=NARROW, top=8, engine=one)


def search_page(folder: Path) -> Path:
    """The page of that search."""
    write_search(answer(), folder / "search.html")
    return folder / "search.html"


def schedule_page(folder: Path, policies: tuple[str, ...] = tuple(POLICIES), *, fails: bool = False) -> Path:
    """The queue of the examples under several policies."""
    law = FailureLaw(kind="node", mtbf_s=7200.0, repair_s=1200.0)
    failures = Failures(laws=(law,)) if fails else None
    runs = [schedule(JOBS, nodes="2x8", policy=policy, failures=failures) for policy in policies]
    write_schedule(runs, folder / "schedule.html")
    return folder / "schedule.html"
