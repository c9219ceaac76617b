"""The page of a comparison, in a real browser: both timelines, the errors by device and class, the worst of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.pages.conftest import Opened
from tests.pages.samples import data_in
from tests.testbed.runs import Span, write_run
from traincast.testbed.compare import compare
from traincast.testbed.page import page_data, write_comparison

Open = Callable[..., Opened]


def later(span: Span) -> Span:
    """Every span of rank 1 a little later and longer, and named so that it would break out of a page."""
    late = 3e-4 if span["rank"] == 1 else 0.0
    name = '</script><b>"' if span["rank"] == 1 else span["name"]
    return {**span, "start_s": span["start_s"] + late, "end_s": span["end_s"] + 2 * late, "name": name}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("compare")
    write_run(folder / "run", "dp=2,pp=2,num_microbatches=4", 4, runtime="pytorch", change=later)
    path = folder / "compare.html"
    write_comparison(compare(folder / "run"), path)
    return path, data_in(path)


def test_it_draws_without_errors_and_without_the_network(shown: Opened, written: tuple[Path, Any]) -> None:
    assert shown.problems == []
    assert shown.requests == [written[0].as_uri()]
    assert shown.page.title().endswith("Traincast comparison")
    assert shown.texts("h2") == [
        "Warnings",
        "The run and its forecast",
        "Worst disagreements",
        "Activity error by device",
    ]
    assert shown.inked("canvas.lanes") > 20
    assert shown.overflow <= 0


def test_every_lane_of_the_run_has_one_of_the_forecast(written: tuple[Path, Any]) -> None:
    line = written[1]["timeline"]
    by_side = {
        side: [(lane["row"], lane["stream"]) for lane in line["lanes"] if lane["side"] == side]
        for side in ("run", "forecast")
    }
    assert by_side["run"] == by_side["forecast"]
    streams = {"compute", "communication", "data", "send forward", "send backward"}
    assert {stream for _, stream in by_side["run"]} == streams  # communication: gradients of the tied table
    assert [row["rank"] for row in line["rows"]] == [0, 1, 2, 3]
    assert [mark["name"] for mark in line["marks"]] == ["run", "forecast"]
    assert max(mark["at"] for mark in line["marks"]) <= line["step_ns"]


def test_tables_have_a_row_for_every_device_and_class(shown: Opened, written: tuple[Path, Any]) -> None:
    found = written[1]["comparison"]
    classes = sum(len(device["classes"]) for device in found["by_device"])
    assert shown.count("section:has(h2:text('Activity error')) tbody tr") == 4 + classes
    worst = shown.texts("ol.worst li")
    assert len(worst) == len(found["worst"]) == 10
    assert worst[0].startswith(f"rank 1, {found['worst'][0]['class']}: the forecast ")
    tiles = dict(zip(shown.texts(".tile .name"), shown.texts(".tile .value"), strict=True))
    assert list(tiles) == ["Measured step", "Forecast step", "Batch error", "Activity error", "Shift of single spans"]
    assert tiles["Activity error"].startswith(f"{100 * found['activity_error']:.1f}")


def test_a_tooltip_says_which_side_a_span_is_of(shown: Opened) -> None:
    canvas = shown.page.locator("canvas.lanes").first
    height = canvas.bounding_box()["height"]
    run = shown.tip_at("canvas.lanes", part=(0.14, (26 + 4 + 13) / height))
    forecast = shown.tip_at("canvas.lanes", part=(0.14, (26 + 4 + 27 + 13) / height))
    assert "run" in run.split() and "rank 0" in run
    assert "forecast" in forecast.split() and "rank 0" in forecast


def test_zooming_redraws_both_timelines_on_one_canvas(opened: Open, written: tuple[Path, Any]) -> None:
    made = opened(written[0])
    assert made.count("canvas.lanes") == 1
    before = drawn(made)
    made.page.locator("button:text('+')").click()
    made.page.wait_for_timeout(100)
    assert drawn(made) != before
    made.page.locator("button:text('Whole step')").click()
    made.page.wait_for_timeout(100)
    assert drawn(made) == before
    assert made.problems == []


def drawn(made: Opened) -> str:
    """What the canvas shows."""
    image: str = made.page.locator("canvas.lanes").evaluate("canvas => canvas.toDataURL()")
    return image


@pytest.mark.parametrize(("width", "dark"), [(380, False), (1400, True)])
def test_it_is_readable_on_a_phone_and_in_the_dark(
    opened: Open, written: tuple[Path, Any], width: int, dark: bool
) -> None:
    made = opened(written[0], width=width, dark=dark)
    assert made.problems == []
    assert made.overflow <= 0
    assert made.inked("canvas.lanes") > 10


def test_servers_have_lanes_of_their_own(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "dp=2,servers=1", 2, runtime="pytorch")
    line = page_data(compare(tmp_path / "run"))["timeline"]
    assert line["rows"][2] == {"rank": 2, "server": 0}
    assert {lane["stream"] for lane in line["lanes"] if lane["row"] == 2} == {"update"}


def test_the_shown_step_is_the_one_nearest_to_the_median(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "dp=2", 2, steps_s=[0.03, 0.01, 0.02])
    line = page_data(compare(tmp_path / "run"))["timeline"]
    assert line["step"] == 2
    assert line["marks"][0] == {"at": 20_000_000, "name": "run"}
