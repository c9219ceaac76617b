"""The page holds all it shows, asks nothing of the network, and takes no string for markup."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import ChosenSeconds, graph_of, request_of
from traincast import Conditions, FileFormatError, JobForecast, Report, Timeline, predict
from traincast.report import make_report, page, write_page
from traincast.report.assemble import step_figures
from traincast.report.trace import STREAM_NAMES
from traincast.simulate import expand, simulate
from traincast.strategy import NUM_STREAMS, Category, Stream, lower
from traincast.work import Launch, Work

TINY = "gpt:layers=2,hidden=256,heads=4,vocab=1000,seq=128"
HOSTILE = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(1)> & \u2028"
JOB = JobForecast(
    num_steps=1000,
    startup_s=60.0,
    data_loading_s=1.0,
    steps_s=3600.0,
    checkpoints_s=30.0,
    evaluation_s=12.0,
    cost=99.0,
    energy_j=3.6e6,
)


def rule(work: Work) -> float:
    return 5e-6 * work.launches if isinstance(work, Launch) else 123.456e-6


@cache
def forecast(strategy: str = "dp=2,tp=2,pp=2", *, all_ranks: bool = False) -> tuple[Report, Timeline]:
    request = request_of(strategy, model=TINY, global_batch=8, runtime="megatron")
    lowered = lower(request, grain="operator")
    estimates = ChosenSeconds(rule).estimate(lowered.plan.works, request.cluster)
    timeline = simulate(lowered.plan, estimates.seconds)
    report = make_report(request, lowered, estimates, step_figures(request, lowered, estimates, timeline))
    if all_ranks:
        timeline = simulate(expand(lowered.plan), estimates.seconds)
    return report, timeline


class Elements(HTMLParser):
    """Start tags with their attributes, and the text of the data element."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.data = ""
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = dict(attrs).get("id") == "data"

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.data += data


def written(path: Path, report: Report, timeline: Timeline) -> tuple[str, Elements]:
    write_page(report, timeline, path)
    text = path.read_text(encoding="utf-8")
    elements = Elements()
    elements.feed(text)
    return text, elements


def data_of(path: Path, report: Report, timeline: Timeline) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(written(path, report, timeline)[1].data)
    return data


def busy_per_lane(timeline: Timeline) -> dict[tuple[int, str], int]:
    """Nanoseconds of every lane that has spans, as the page counts them."""
    plan = timeline.plan
    start, end = np.rint(timeline.start * 1e9), np.rint(timeline.end * 1e9)
    total: dict[tuple[int, str], int] = {}
    for task in range(plan.num_tasks):
        lanes = sorted(plan.lanes[plan.lane_start[task] : plan.lane_start[task + 1]].tolist())
        for row in {lane // NUM_STREAMS for lane in lanes}:
            mine = [lane for lane in lanes if lane // NUM_STREAMS == row]
            lane = mine[-1] if plan.category[task] == Category.COMMUNICATION else mine[0]
            key = (row, STREAM_NAMES[Stream(lane % NUM_STREAMS)])
            total[key] = total.get(key, 0) + int(end[task] - start[task])
    return {key: value for key, value in total.items() if value}


def busy_on_page(line: dict[str, Any]) -> dict[tuple[int, str], int]:
    idle = line["idle"] or [0] * len(line["duration"])
    return {
        (lane["row"], lane["stream"]): sum(line["duration"][a:b]) - sum(idle[a:b])
        for lane, a, b in zip(line["lanes"], line["lane_start"], line["lane_start"][1:], strict=False)
    }


def test_the_page_needs_nothing_but_itself(tmp_path: Path) -> None:
    text, elements = written(tmp_path / "page.html", *forecast())
    assert not re.search(r"(src|href)\s*=\s*[\"']?\s*(https?:)?//", text)
    for word in ("http://", "https://", "@import", "url(", "fetch(", "XMLHttpRequest", "WebSocket", "sendBeacon"):
        assert word not in text
    assert not any(tag in ("link", "iframe", "img", "object", "embed") for tag, _ in elements.tags)
    assert not any("src" in attributes or "href" in attributes for _, attributes in elements.tags)
    policies = [a["content"] or "" for tag, a in elements.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policies
    assert "default-src 'none'" in policies[0]


def test_the_script_never_turns_strings_into_markup_or_code(tmp_path: Path) -> None:
    text, _ = written(tmp_path / "page.html", *forecast())
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert word not in text


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    report, timeline = forecast()
    plain = written(tmp_path / "plain.html", report, timeline)[1]
    hostile = replace(report, model=HOSTILE, strategy=HOSTILE, cluster=HOSTILE, warnings=(HOSTILE,), job=JOB)
    labels = tuple(HOSTILE + label for label in timeline.plan.labels)
    bad = replace(timeline, plan=replace(timeline.plan, labels=labels))
    text, elements = written(tmp_path / "hostile.html", hostile, bad)
    assert "alert(1)</script>" not in text
    assert [tag for tag, _ in elements.tags] == [tag for tag, _ in plain.tags]
    data = json.loads(elements.data)
    assert data["report"]["model"] == HOSTILE
    assert data["report"]["warnings"] == [HOSTILE]
    assert data["timeline"]["labels"][0].startswith(HOSTILE)


def test_the_report_is_embedded_whole(tmp_path: Path) -> None:
    report, timeline = forecast()
    data = data_of(tmp_path / "page.html", replace(report, job=JOB), timeline)["report"]
    assert data["step_s"] == report.step_s
    assert data["fits"] is report.fits
    assert data["job"]["job_s"] == JOB.job_s
    assert [rank["stage"] for rank in data["ranks"]] == [0, 1]
    assert data["ranks"][1]["memory"] == report.ranks[1].memory.to_dict()
    assert len(data["critical_path"]) == len(report.critical_path)


def test_values_that_json_lacks_become_null(tmp_path: Path) -> None:
    report, timeline = forecast()
    data = data_of(tmp_path / "page.html", replace(report, mfu=float("nan"), high_s=float("inf")), timeline)
    assert data["report"]["mfu"] is None
    assert data["report"]["high_s"] is None


@pytest.mark.parametrize("all_ranks", [False, True])
def test_the_timeline_is_embedded_whole_and_once(tmp_path: Path, all_ranks: bool) -> None:
    report, timeline = forecast(all_ranks=all_ranks)
    line = data_of(tmp_path / "page.html", report, timeline)["timeline"]
    assert line["merged_below_s"] is None
    assert line["step_ns"] == round(timeline.step_s * 1e9)
    assert len(line["rows"]) == line["num_rows"] == (8 if all_ranks else 2)
    assert busy_on_page(line) == busy_per_lane(timeline)
    columns = ("gap", "duration", "label", "category", "microbatch")
    assert {len(line[name]) for name in columns} == {line["num_tasks"]}
    assert min(line["gap"]) >= 0
    ends = [
        sum(line["gap"][a:b]) + sum(line["duration"][a:b])
        for a, b in zip(line["lane_start"], line["lane_start"][1:], strict=False)
    ]
    assert max(ends) == line["step_ns"]
    assert line["critical"]


def test_too_many_spans_are_merged_without_losing_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report, timeline = forecast()
    monkeypatch.setattr(page, "MAX_SPANS", 100)
    line = data_of(tmp_path / "page.html", report, timeline)["timeline"]
    assert line["merged_below_s"] > 0
    assert len(line["gap"]) <= 100 < line["num_tasks"]
    assert sum(line["count"]) == line["num_tasks"]
    assert min(line["gap"]) >= 0
    assert busy_on_page(line) == busy_per_lane(timeline)
    merged = [n for n, label in zip(line["count"], line["label"], strict=True) if label < 0]
    assert merged
    assert min(merged) > 1


def test_too_many_ranks_leave_some_of_every_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report, timeline = forecast(all_ranks=True)
    monkeypatch.setattr(page, "MAX_ROWS", 4)
    line = data_of(tmp_path / "page.html", report, timeline)["timeline"]
    assert line["num_rows"] == 8
    assert [(row["rank"], row["stage"]) for row in line["rows"]] == [(0, 0), (1, 0), (4, 1), (5, 1)]
    assert {lane["row"] for lane in line["lanes"]} == {0, 1, 2, 3}


def test_a_slow_rank_is_among_the_rows_of_its_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report, timeline = forecast(all_ranks=True)
    monkeypatch.setattr(page, "MAX_ROWS", 4)
    slow = replace(report, conditions=Conditions(slow=((7, 2.0),)))
    rows = data_of(tmp_path / "page.html", slow, timeline)["timeline"]["rows"]
    assert [(row["rank"], row["stage"]) for row in rows] == [(0, 0), (1, 0), (4, 1), (7, 1)]


@pytest.mark.parametrize("strategy", ["dp=4,servers=2", "dp=4,servers=2,async"])
def test_servers_have_rows_with_pushes_pulls_and_updates(tmp_path: Path, strategy: str) -> None:
    made = predict(
        graph_of(TINY), cluster="dgx-a100:2x2", global_batch=8, strategy=strategy, runtime="pytorch",
        cost_model=ChosenSeconds(rule), conditions=Conditions(slow=((1, 2.0),), busy_network=0.25),
    )  # fmt: skip
    data = data_of(tmp_path / "page.html", made.report, made.detailed())
    line = data["timeline"]
    assert line["rows"] == [{"rank": n, "stage": 0} for n in range(4)] + [{"rank": 4 + n, "server": n} for n in (0, 1)]
    assert line["num_servers"] == 2
    lanes = {(lane["row"], lane["stream"]) for lane in line["lanes"]}
    assert {(0, "compute"), (0, "push"), (0, "pull"), (0, "waiting"), (4, "push"), (4, "update"), (4, "pull")} <= lanes
    assert "wait" in {line["categories"][c] for c in line["category"]}
    # Messages that share a link are cut where one begins or ends: no two spans of a lane overlap.
    assert min(line["gap"]) >= 0
    assert made.request.strategy.asynchronous or max(line["count"]) > 1
    assert data["report"]["conditions"]["text"] == "rank 1 computes 2 times slower, other jobs use 25 % of the network"
    assert data["report"]["servers"]["nodes"] == [0, 1]
    assert data["report"]["servers"]["own_nodes"] is False


def test_a_lane_is_as_long_in_use_with_messages_cut_as_it_was(tmp_path: Path) -> None:
    made = predict(
        graph_of(TINY), cluster="dgx-a100:2x2", global_batch=8, strategy="dp=4,servers=2", runtime="pytorch",
        cost_model=ChosenSeconds(rule),
    )  # fmt: skip
    line = data_of(tmp_path / "page.html", made.report, made.timeline)["timeline"]
    plan = made.timeline.plan
    start, end = np.rint(made.timeline.start * 1e9), np.rint(made.timeline.end * 1e9)
    for (row, stream), busy in busy_on_page(line).items():
        number = next(s for s, name in STREAM_NAMES.items() if name == stream)
        lane = row * NUM_STREAMS + int(number)
        holds = np.array([lane in plan.lanes[a:b] for a, b in zip(plan.lane_start, plan.lane_start[1:], strict=False)])
        edges = np.unique(np.concatenate([start[holds], end[holds]]))
        used = sum(b - a for a, b in pairwise(edges) if ((start[holds] <= a) & (end[holds] >= b)).any())
        assert busy == used


def test_rows_of_servers_stay_when_there_are_many_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MAX_ROWS", 4)
    made = predict(
        graph_of(TINY), cluster="dgx-a100:2x4", global_batch=8, strategy="dp=8,servers=3", runtime="pytorch",
        cost_model=ChosenSeconds(rule),
    )  # fmt: skip
    rows = data_of(tmp_path / "page.html", made.report, made.timeline)["timeline"]["rows"]
    assert [row["rank"] for row in rows] == [0, 1, 8, 9]


def test_a_single_rank_has_a_page_too(tmp_path: Path) -> None:
    line = data_of(tmp_path / "page.html", *forecast("dp=1"))["timeline"]
    assert line["rows"] == [{"rank": 0, "stage": 0}]


def test_a_place_that_cannot_be_written_is_an_error_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"cannot write .*page\.html: the folder .*none does not exist"):
        write_page(*forecast(), tmp_path / "none" / "page.html")
