"""The page of a search, in a real browser: points and rows are those of the data; rows sort, filter and copy."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.pages.conftest import Opened
from tests.pages.samples import answer, data_in, search_page
from traincast.cli.main import main
from traincast.searching.page import command_of, write_page
from traincast.strategy import parse_strategy

Open = Callable[..., Opened]
BEST = "section:has(h2:text('The best strategies'))"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    path = search_page(tmp_path_factory.mktemp("page"))
    return path, data_in(path)


def strategies(made: Opened) -> list[str]:
    return made.texts(f"{BEST} tbody td code")


def test_it_draws_without_errors_and_without_the_network(shown: Opened, written: tuple[Path, Any]) -> None:
    path, data = written
    made = shown
    assert made.problems == []
    assert made.requests == [path.as_uri()]
    assert strategies(made) == [candidate["strategy"] for candidate in data["candidates"]]
    assert made.count(".cloud circle.dot") == len(data["plot"]["cells"])
    assert made.count(".cloud circle.front") == len(data["pareto"])
    assert made.count(".cloud polygon.star") == 1
    assert made.count(".row.numbered") == len(data["candidates"])
    assert made.count(".axes > div") == len(data["influence"])


def test_rows_sort_by_a_column_and_back(opened: Open, written: tuple[Path, Any]) -> None:
    path, data = written
    made = opened(path)
    memory = [candidate["peak_memory_bytes"] for candidate in data["candidates"]]
    assert memory != sorted(memory)
    made.page.locator(f"{BEST} button.sort:text-is('Memory')").click()
    by_memory = [c["strategy"] for c in sorted(data["candidates"], key=lambda c: c["peak_memory_bytes"])]
    assert strategies(made) == by_memory
    made.page.locator(f"{BEST} button.sort:text-is('Memory')").click()
    assert strategies(made)[0] == max(data["candidates"], key=lambda c: c["peak_memory_bytes"])["strategy"]
    assert made.count(f"{BEST} th[aria-sort='descending']") == 1


def test_rows_filter_by_every_word(opened: Open, written: tuple[Path, Any]) -> None:
    path, data = written
    made = opened(path)
    every = [candidate["strategy"] for candidate in data["candidates"]]
    word = next(w for s in every for w in s.split(",") if 0 < sum(w in other for other in every) < len(every))
    made.page.locator(f"{BEST} input").fill(word.upper())
    assert strategies(made) == [strategy for strategy in every if word in strategy]
    assert f" of {len(every)} strategies" in made.texts(f"{BEST} .tools .hint")[0]
    made.page.locator(f"{BEST} button:text-is('Clear')").click()
    assert strategies(made) == every


@pytest.mark.long(guard="test_it_draws_without_errors_and_without_the_network")
def test_a_copied_command_forecasts_that_candidate(
    opened: Open, written: tuple[Path, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    path, data = written
    made = opened(path)
    made.page.locator(f"{BEST} tbody button.copy").nth(1).click()
    made.page.locator(f"{BEST} tbody button.copy:text-is('Copied')").wait_for()
    copied = made.page.evaluate("navigator.clipboard.readText()")
    assert copied == data["candidates"][1]["command"]
    program, *arguments = shlex.split(copied)
    assert program == "traincast"
    with pytest.raises(SystemExit):
        main([*arguments, "--json"])
    assert json.loads(capsys.readouterr().out)["step_s"] == data["candidates"][1]["step_s"]


def test_every_command_names_its_strategy_whole() -> None:
    found = [*answer().candidates, *answer().pareto]
    assert {candidate.strategy.num_microbatches == 1 for candidate in found} == {True, False}
    for candidate in found:
        words = shlex.split(command_of(candidate, {}) or "")
        text = words[words.index("--strategy") + 1]
        assert parse_strategy(text, global_batch=16) == candidate.strategy


def test_a_cluster_that_no_name_gives_has_no_command() -> None:
    best = answer().best
    assert command_of(best, {}) is not None
    odd = replace(best.request.cluster, name="nowhere")
    other = replace(
        best.request.cluster, devices_per_node=2, device=replace(best.request.cluster.device, memory_bytes=1)
    )
    for cluster in (odd, other):
        assert command_of(replace(best, request=replace(best.request, cluster=cluster)), {}) is None


def test_every_point_has_a_tooltip(shown: Opened, written: tuple[Path, Any]) -> None:
    _, data = written
    made = shown
    dots = made.page.locator(".cloud circle.dot")
    for n in range(0, dots.count(), max(1, dots.count() // 5)):
        dots.nth(n).dispatch_event("pointermove", {"clientX": 50, "clientY": 50})
        said = made.texts("#tip")[0]
        assert "memory" in said and "dp=" in said
        number = data["plot"]["cells"][n][2]
        assert said.startswith("One strategy" if number == 1 else f"The fastest of {number:,} strategies")
    made.page.locator(".cloud .star").focus()
    assert made.texts("#tip")[0].startswith("The best")


def test_bars_grow_when_worse(shown: Opened, written: tuple[Path, Any]) -> None:
    made = shown
    widths = made.page.locator(".level").evaluate_all(
        "all => all.map(one => [one.classList.contains('best'), parseFloat(one.querySelector('i').style.width)])"
    )
    assert {width for best, width in widths if best} == {0.0}
    assert all(width > 0 for best, width in widths if not best)
    assert "A longer bar is worse" in " ".join(made.texts(".head .hint"))


def test_a_phone_shows_it_without_scrolling_sideways(opened: Open, written: tuple[Path, Any]) -> None:
    made = opened(written[0], width=390, dark=True)
    assert made.problems == []
    assert made.overflow == 0
    assert made.page.locator(f"{BEST} p.more").is_visible()


def test_one_candidate_is_a_page_too(opened: Open, tmp_path: Path) -> None:
    whole = answer()
    write_page(
        replace(whole, candidates=whole.candidates[:1], pareto=whole.pareto[:1], naive=()), tmp_path / "one.html"
    )
    made = opened(tmp_path / "one.html")
    assert made.problems == []
    assert len(strategies(made)) == 1
