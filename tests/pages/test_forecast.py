"""The page of a forecast, in a real browser: everything is drawn, explained on demand, and readable on a phone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.pages.conftest import Opened
from tests.pages.samples import data_in, forecast_page, servers_page

Open = Callable[..., Opened]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    path = forecast_page(tmp_path_factory.mktemp("page"))
    return path, data_in(path)


def test_it_draws_without_errors_and_without_the_network(shown: Opened, written: tuple[Path, Any]) -> None:
    path, _ = written
    made = shown
    assert made.problems == []
    assert made.requests == [path.as_uri()]
    assert made.page.title().endswith("Traincast forecast")
    assert made.texts("h2") == [
        *("Warnings",) * bool(written[1]["report"]["warnings"]), "How sure the step time is", "Where the step goes",
        "What bounds the step", "What was measured nearby", "Who waits for whom", "What each device does when",
        "What the step draws from its machines", "What decides the step time", "Memory", "Memory over time",
        "Where the numbers come from", "The whole job",
    ]  # fmt: skip


def test_bars_rows_and_areas_are_those_of_the_data(shown: Opened, written: tuple[Path, Any]) -> None:
    _, data = written
    report = data["report"]
    made = shown
    assert made.count(".rows.lined .row") == len(report["ranks"]) == 4
    assert made.count(".place .bar") == len({rank["stage"] for rank in report["ranks"]}) == 2
    assert made.count(".areas polygon.area") == 5
    corners = made.page.locator(".areas polygon.area").first.get_attribute("points")
    assert len(corners.split(" ")) == 4 * len(report["memory_over_time"])
    shares = report["critical_path"]
    assert made.count("section:has(h2:text('What decides')) tbody tr") in (len(shares), len(shares) + 1)
    assert made.count(".small-charts .use") == 6
    assert made.count("section:has(h2:text('What the step draws')) tbody tr") == 4
    assert made.count("section:has(h2:text('What the step draws')) option") == len(data["resources"]["rows"])
    whole = sum(float(width.removesuffix("%")) for width in widths(made, ".bar.big"))
    assert whole == pytest.approx(200, abs=0.1)  # the step's bar and the job's


def widths(made: Opened, selector: str) -> list[str]:
    found: list[str] = made.page.locator(f"{selector} span").evaluate_all("all => all.map(one => one.style.width)")
    return found


def test_memory_over_time_and_the_interval_have_axes_with_units(shown: Opened, written: tuple[Path, Any]) -> None:
    made = shown
    titles = made.texts(".areas text.title")
    assert titles[0].startswith("passes of stage ")
    assert titles[1] in ("memory (GiB)", "memory (MiB)")
    assert len(made.texts(".areas text:not(.title):not(.note)")) >= 4
    ticks = made.texts(".interval text:not(.title):not(.note)")
    assert len(ticks) >= 3
    assert all(tick.split(" ")[1] in ("s", "ms", "µs") for tick in ticks)
    assert made.texts(".interval text.title") == ["step time (shorter is better)"]


def test_the_slow_rank_and_those_that_wait_for_it_are_named(shown: Opened, written: tuple[Path, Any]) -> None:
    _, data = written
    made = shown
    assert made.count(".columns rect.slow") == 1
    (said,) = made.texts("section:has(h2:text('Who waits')) .say")
    assert said.startswith("Rank 1 computes 2 times slower.")
    waiting = [rank for rank in data["report"]["waits"] if rank["for_rank"] == 1]
    assert f"{len(waiting)} rank" in said and "for rank 1" in said
    tip = made.tip_at(".columns .pane", part=(0.4, 0.5))  # the second of four columns
    assert tip.startswith("Rank 1")
    assert "2 times" in tip


def test_neighbours_are_points_and_rows_and_what_nobody_measured_is_listed(
    shown: Opened, written: tuple[Path, Any]
) -> None:
    report = written[1]["report"]
    card = "section:has(h2:text('What was measured nearby'))"
    assert shown.count(".strip circle.dot") == shown.count(f"{card} tbody tr") == len(report["evidence"]) == 5
    assert shown.texts(f"{card} tbody td:first-child") == [run["source"] for run in report["evidence"]]
    first, *others = report["evidence_words"]
    assert shown.texts(f"{card} .say")[0].lower() == f"{first}.".lower()
    assert shown.texts(f"{card} .worst li") == others
    assert "distance" in shown.tip_at(".strip circle.dot")


def test_causes_of_the_interval_fill_a_bar(shown: Opened, written: tuple[Path, Any]) -> None:
    card = "section:has(h2:text('How sure'))"
    causes = [share for share in written[1]["report"]["doubt"].values() if share >= 0.005]
    assert shown.count(f"{card} .bar span") == len(causes) > 0
    whole = sum(float(width.removesuffix("%")) for width in widths(shown, f"{card} .bar"))
    assert whole == pytest.approx(100, abs=0.1)


def test_a_bundle_is_shown_with_its_shares(shown: Opened, written: tuple[Path, Any]) -> None:
    cells = shown.texts("section:has(h2:text('Where the numbers')) tbody td")
    assert cells == ["/data/my-bundle", "50 %", "75 %", "25 %"]


def test_tooltips_explain_spans_parts_and_moments(shown: Opened, written: tuple[Path, Any]) -> None:
    made = shown
    assert made.inked("canvas.lanes") > 5
    assert "share" in made.tip_at(".bar.big span")
    assert "duration" in made.tip_at("canvas.lanes", part=(0.5, 0.12))
    assert "activations" in made.tip_at(".areas .pane")
    assert "90 % interval" in made.tip_at(".interval .band", part=(0.9, 0.5))


def test_keys_move_in_the_timeline(opened: Open, written: tuple[Path, Any]) -> None:
    made = opened(written[0])
    made.page.locator("canvas.lanes").focus()
    made.page.keyboard.press("ArrowDown")
    first = made.texts(".pinned")[0]
    made.page.keyboard.press("]")
    assert first and made.texts(".pinned")[0] != first
    made.page.keyboard.press("Escape")
    assert made.texts(".pinned") == [""]


def test_a_stream_can_be_hidden(opened: Open, written: tuple[Path, Any]) -> None:
    made = opened(written[0], width=390)
    boxes = made.page.locator(".tools label input")
    before = made.page.locator("canvas.lanes").bounding_box()["height"]
    boxes.first.uncheck()
    assert made.page.locator("canvas.lanes").bounding_box()["height"] < before


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_shows_it_without_scrolling_sideways(opened: Open, written: tuple[Path, Any], dark: bool) -> None:
    made = opened(written[0], width=390, dark=dark)
    assert made.problems == []
    assert made.overflow == 0
    assert "tap a span" in " ".join(made.texts(".hint"))
    background = made.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(14, 18, 23)" if dark else "rgb(244, 245, 247)")


def test_servers_have_rows_and_a_table(opened: Open, tmp_path: Path) -> None:
    made = opened(servers_page(tmp_path))
    assert made.problems == []
    assert made.count("section:has(h2:text('Parameter servers')) tbody tr") == 2
    assert "Wait" in made.texts(".tools .key li")
