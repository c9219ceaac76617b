"""Pages of sampled runs, in a real browser: a monitored command, and a run with its forecast over it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.pages.conftest import Opened
from tests.pages.samples import data_in
from tests.resources.test_sampled import STEP_S, WINDOWS, command, counters, exact_step
from traincast.resources.comparing import compared
from traincast.resources.sampled import mean_step, observed, use_of_command
from traincast.resources.sampled_page import compared_page, monitored_page

Open = Callable[..., Opened]
ABOUT = {"command": "</script><b>train", "samples": 500, "processes": 2, "devices": 0, "processor_s": 5.0}


def test_a_monitored_command_is_drawn(opened: Open, tmp_path: Path) -> None:
    columns = command()
    columns["resident_bytes"] = 1e9 * np.ones(len(columns["time_s"]))
    used = use_of_command(columns, hz=50.0, cores=4)
    path = tmp_path / "page.html"
    about = {**ABOUT, "sampler_cpu_share": 0.012, "warnings": list(used.warnings)}
    path.write_text(monitored_page(used, columns, about), encoding="utf-8")
    shown = opened(path)
    assert shown.problems == []
    assert shown.requests == [path.as_uri()]
    assert shown.texts("h1") == ["</script><b>train"]
    assert shown.texts("h2") == ["Warnings", "Bursts and pauses", "Use over time"]
    assert shown.texts("h3") == ["Compute", "Network received", "Network sent", "Memory held by processes"]
    assert shown.overflow <= 0


def test_a_run_and_its_forecast_are_drawn_over_one_another(opened: Open, tmp_path: Path) -> None:
    measured = observed([counters()], hz=50.0, step_s=STEP_S, windows=WINDOWS)
    starts = STEP_S * np.arange(len(WINDOWS))
    step = mean_step(counters().within(WINDOWS), starts_s=starts.tolist(), step_s=STEP_S, hz=50.0)
    found = compared(measured, measured, exact=exact_step(0.0, STEP_S), step=step, edges_s=np.linspace(0.0, STEP_S, 26))
    path = tmp_path / "page.html"
    path.write_text(compared_page(found, {"title": "gpt", "facts": [["network", "1Gbit"]]}), encoding="utf-8")
    shown = opened(path)
    assert shown.problems == []
    assert shown.texts("h2") == ["Bursts and pauses", "One step"]
    assert shown.count("path.area") == 4
    assert shown.count("path.line") == 4
    data = data_in(path)
    assert data["curves"][0]["correlation"] > 0.98
    assert data["curves"][2]["correlation"] is None
