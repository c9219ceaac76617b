"""Results show themselves on one screen, in a session and in a notebook."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import GPT
from traincast import Forecast, Schedule, Validation, predict, schedule, search, validate
from traincast.brief import Brief, BriefTable

ROOT = Path(__file__).parents[1]
TABLE = "source,model,gpu,n_gpus,seq,global_batch,dp,step_time_s\nlab,gpt2,H100,8,1024,8,8,0.1\n"


class Few(Brief):
    """A result with markup in it."""

    def brief(self) -> BriefTable:
        return BriefTable("a < b", [("x", "<i>1</i>"), ("long", "2")], ("name", "value"))


@pytest.fixture(scope="module")
def forecast() -> Forecast:
    return predict(GPT, cluster="dgx-h100:1x2", strategy="dp=2", global_batch=8, tokens=10**6)


def test_a_table_is_aligned_and_its_texts_are_escaped_in_html() -> None:
    assert repr(Few()) == "a < b\n  name  value\n  x     <i>1</i>\n  long  2"
    assert Few()._repr_html_() == (
        "<b>a &lt; b</b><table><tr><th>name</th><th>value</th></tr>"
        "<tr><td>x</td><td>&lt;i&gt;1&lt;/i&gt;</td></tr><tr><td>long</td><td>2</td></tr></table>"
    )


def test_a_forecast_shows_its_report_and_the_report_its_step(forecast: Forecast) -> None:
    shown = repr(forecast).splitlines()
    assert repr(forecast) == repr(forecast.report)
    assert shown[0].startswith("gpt") and "dp=2" in shown[0]
    assert [line.split()[0] for line in shown[1:3]] == ["step", "throughput"]
    assert any(line.split()[0] == "job" for line in shown)
    assert len(shown) <= 20 and max(map(len, shown)) <= 160


def test_warnings_beyond_the_third_are_counted(forecast: Forecast) -> None:
    from dataclasses import replace

    many = replace(forecast.report, warnings=tuple(f"{n} {'x' * 300}" for n in range(9)))
    shown = repr(many).splitlines()
    assert sum("warning" in line for line in shown) == 4  # three, and the sentence that counts the others
    assert shown[-1].strip() == "and 6 more in .warnings"
    assert max(map(len, shown)) <= 160


def test_a_timeline_a_search_a_schedule_and_a_validation_fit_on_a_screen(forecast: Forecast, tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    table.write_text(TABLE)
    found: Validation = validate(table)
    queue: Schedule = schedule(ROOT / "examples" / "jobs.csv", nodes="2x8")
    for result in (forecast.timeline, search(GPT, cluster="dgx-h100:1x2", global_batch=8), queue, found):
        shown = repr(result).splitlines()
        assert isinstance(result, Brief)
        assert 1 <= len(shown) <= 24 and max(map(len, shown)) <= 160
        assert result._repr_html_().startswith("<b>")
    assert repr(queue).startswith("40 jobs on 16 GPUs under fifo\n")
    assert "lab" in repr(found)
