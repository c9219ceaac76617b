"""The page of a queue, in a real browser: twenty policies can be told apart, chosen and compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.pages.conftest import Opened
from tests.pages.samples import data_in, schedule_page

Open = Callable[..., Opened]
SIDE = "section:has(h2:text('Policies side by side'))"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    path = schedule_page(tmp_path_factory.mktemp("page"))
    return path, data_in(path)


def test_it_draws_without_errors_and_without_the_network(shown: Opened, written: tuple[Path, Any]) -> None:
    path, data = written
    made = shown
    count = len(data["policies"])
    assert count == 20
    assert made.problems == []
    assert made.requests == [path.as_uri()]
    assert made.count(f"{SIDE} tbody tr") == made.count(".choose button") == count
    assert made.count(".curve path.line") == made.count(".distribution path.line") == 2 * count
    assert made.count("section:has(h2:text('Where the GPU time')) .row") == count
    assert made.inked("canvas.occupancy") > 5


def test_no_two_policies_look_the_same(shown: Opened, written: tuple[Path, Any]) -> None:
    made = shown
    looks = made.page.locator(".choose path").evaluate_all(
        "all => all.map(one => { const s = getComputedStyle(one); return s.stroke + s.strokeDasharray; })"
    )
    assert len(set(looks)) == len(looks) == 20
    grey = made.page.locator(".curve").first.locator("path.line.quiet")
    assert grey.count() == 19


def test_pointing_at_a_policy_lights_and_names_its_line(opened: Open, written: tuple[Path, Any]) -> None:
    path, data = written
    made = opened(path)
    assert made.texts(".distribution text.note") == [data["policies"][0]["policy"]] * 2
    made.page.locator(f"{SIDE} tbody tr").nth(4).hover()
    assert made.count(".curve path.line.lit") == 2
    names = [data["policies"][n]["policy"] for n in (0, 4)]
    assert made.texts(".distribution text.note") == names * 2


def test_choosing_a_policy_shows_its_figures(opened: Open, written: tuple[Path, Any]) -> None:
    path, data = written
    made = opened(path)
    before = made.texts(".tile .value")
    made.page.locator(".choose button").nth(4).click()
    assert made.texts(".tile .value") != before
    assert made.texts("tr.chosen td:first-child") == [data["policies"][4]["policy"]]
    assert made.page.locator(".choose button").nth(4).get_attribute("aria-pressed") == "true"


def test_the_table_sorts_and_marks_the_best(opened: Open, written: tuple[Path, Any]) -> None:
    path, data = written
    made = opened(path)
    made.page.locator(f"{SIDE} button.sort:text-is('Mean completion')").click()
    best = min(data["policies"], key=lambda policy: policy["mean_jct_s"])
    assert made.texts(f"{SIDE} tbody tr:first-child td:first-child") == [best["policy"]]
    assert "best" in made.page.locator(f"{SIDE} tbody tr:first-child td").nth(1).get_attribute("class")


def test_tooltips_name_jobs_and_compare_policies(shown: Opened, written: tuple[Path, Any]) -> None:
    made = shown
    job = made.tip_at("canvas.occupancy", part=(0.115, 0.1))
    assert job.startswith("Job ") and "completion time" in job
    said = made.tip_at(".curve .pane", part=(0.5, 0.5))
    assert "▸ fifo" in said and "more between" in said
    assert made.tip_at(".distribution .pane").startswith("Within ")


def test_zooming_moves_all_charts_over_time(opened: Open, written: tuple[Path, Any]) -> None:
    made = opened(written[0])
    before = made.texts(".curve text:not(.title):not(.note)")
    made.page.locator("button[title='Zoom in (+)']").click()
    made.page.wait_for_timeout(60)
    assert made.texts(".curve text:not(.title):not(.note)") != before
    made.page.locator("canvas.occupancy").press("0")
    made.page.wait_for_timeout(60)
    assert made.texts(".curve text:not(.title):not(.note)") == before


def test_a_phone_shows_it_without_scrolling_sideways(opened: Open, written: tuple[Path, Any]) -> None:
    made = opened(written[0], width=390, dark=True)
    assert made.problems == []
    assert made.overflow == 0
    assert made.page.locator(f"{SIDE} p.more").is_visible()


def test_failures_and_one_policy_are_drawn_too(opened: Open, tmp_path: Path) -> None:
    path = schedule_page(tmp_path, ("srtf",), fails=True)
    assert data_in(path)["policies"][0]["down"]
    made = opened(path)
    assert made.problems == []
    assert made.count("path.outage") == 1
    assert "out of service" in " ".join(made.texts(".key li"))
    assert made.count(".choose") == 0
