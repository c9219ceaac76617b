"""The page of a queue holds all it shows, asks nothing of the network, and takes no string for markup."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.scheduling.queues import job, queue
from traincast import Costs, FailureEvent, FailureLaw, Failures, FileFormatError, Job, Schedule, schedule
from traincast.scheduling import page
from traincast.scheduling.page import page_data, write_page

JOBS = Path(__file__).parents[2] / "examples" / "jobs.csv"
HOSTILE = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(1)> & \u2028"


def some(policy: str = "srtf", **more: Any) -> Schedule:
    return schedule(JOBS, nodes="2x8", policy=policy, placement="consolidated", **more)


def data_of(path: Path, runs: list[Schedule]) -> Any:
    write_page(runs, path)
    text = path.read_text(encoding="utf-8")
    (found,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', text, re.S)
    return json.loads(found)


def test_the_page_needs_nothing_but_itself(tmp_path: Path) -> None:
    write_page([some("fifo"), some()], tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    for word in ("http://", "https://", "@import", "url(", "fetch(", "XMLHttpRequest", "WebSocket", "sendBeacon"):
        assert word not in text
    assert not re.search(r"<(link|iframe|img|object|embed)\b", text)
    assert not re.search(r"\s(src|href)\s*=", text)
    assert "default-src 'none'" in text
    assert "prefers-color-scheme: dark" in text


def test_the_script_never_turns_strings_into_markup_or_code(tmp_path: Path) -> None:
    write_page([some()], tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert word not in text


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    jobs = [job(0, 1, 10, job_id=HOSTILE, vc=HOSTILE)]
    data = data_of(tmp_path / "page.html", [schedule(jobs, nodes="1x1")])
    assert data["jobs"]["job_id"] == [HOSTILE]
    assert (tmp_path / "page.html").read_text(encoding="utf-8").count("<script") == 2


def test_stretches_on_the_page_add_up_to_the_time_that_jobs_held_gpus(tmp_path: Path) -> None:
    run = some(costs=Costs(checkpoint_s=5, restore_s=7))
    (policy,) = data_of(tmp_path / "page.html", [run])["policies"]
    spans = policy["spans"]
    shown = sum(
        (end - start) * rows * share
        for start, end, rows, share in zip(*(spans[k] for k in ("start", "end", "rows", "share")), strict=True)
    )
    assert shown == pytest.approx(sum(fate.served_gpu_s for fate in run.fates), rel=1e-6)
    assert sum(policy["gpu_time"].values()) == pytest.approx(16 * run.metrics.makespan_s)
    assert np.mean(policy["curves"]["used"]) == pytest.approx(run.metrics.utilization, rel=1e-3)


def test_shares_of_a_gpu_are_drawn_beside_each_other() -> None:
    jobs = [job(0, 0.5, 10, job_id="a"), job(0, 0.25, 5, job_id="b"), job(5, 0.25, 5, job_id="c")]
    (policy,) = page_data([schedule(jobs, nodes="1x1")])["policies"]
    assert policy["spans"]["offset"] == [0, 0.5, 0.5]
    assert policy["spans"]["share"] == [0.5, 0.25, 0.25]


def test_gpus_out_of_service_are_those_of_the_failures() -> None:
    event = FailureEvent(time_s=15, kind="device", target="node1", repair_s=10, gpu=1)
    run = schedule(queue((10, 1, 100)), nodes="2x2", failures=Failures(events=(event,)))
    (policy,) = page_data([run])["policies"]
    assert policy["down"] == [(3, 1, 5, 15)]  # counted from the first submission, the GPUs of node0 first
    assert policy["gpu_time"]["down"] == pytest.approx(10)
    drawn = some(failures=Failures(laws=(FailureLaw(kind="node", mtbf_s=40000, repair_s=2000),)))
    (policy,) = page_data([drawn])["policies"]
    down = sum(rows * (end - start) for _, rows, start, end in policy["down"])
    assert down == pytest.approx(policy["gpu_time"]["down"], rel=1e-6)


def test_large_clusters_are_shown_in_steps_of_time_without_losing_any(monkeypatch: pytest.MonkeyPatch) -> None:
    run = some()
    assert page_data([run])["exact"]
    monkeypatch.setattr(page, "MAX_GPU_ROWS", 8)
    data = page_data([run])
    assert not data["exact"]
    assert data["jobs"] is None
    assert [row["name"] for row in data["rows"]] == ["node0", "node1"]
    heat = np.frombuffer(base64.b64decode(data["policies"][0]["heat"]), dtype=np.uint8) / 255
    assert len(heat) == 2 * page.BINS
    assert heat.mean() == pytest.approx(run.metrics.utilization, abs=0.003)


def test_many_nodes_share_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MAX_NODE_ROWS", 4)
    monkeypatch.setattr(page, "MAX_GPU_ROWS", 0)
    data = page_data([schedule(JOBS, nodes="10x8:V100")])
    assert [(row["name"], row["last"], row["gpus"]) for row in data["rows"]] == [
        *(("node0", "node2", 24), ("node3", "node5", 24), ("node6", "node8", 24), ("node9", "node9", 8)),
    ]


def test_distributions_run_from_the_least_to_the_most() -> None:
    run = some("fifo")
    (policy,) = page_data([run])["policies"]
    assert len(policy["jct"]) == page.QUANTILES
    assert policy["jct"] == sorted(policy["jct"])
    assert policy["jct"][-1] == pytest.approx(max(fate.jct_s for fate in run.fates))
    assert policy["queue"][0] == 0


def test_all_policies_share_one_clock() -> None:
    data = page_data([some("fifo"), some("srtf")])
    assert data["span_s"] == max(policy["makespan_s"] for policy in data["policies"])
    assert [policy["policy"] for policy in data["policies"]] == ["fifo", "srtf"]


def test_a_single_short_job_has_a_page_too(tmp_path: Path) -> None:
    jobs = [Job(job_id="a", submit_s=1e9, num_gpus=1, duration_s=1e-3)]
    assert data_of(tmp_path / "page.html", [schedule(jobs, nodes="1x1")])["jobs"]["submit"] == [0]


def test_a_place_that_cannot_be_written_is_an_error_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="does not exist"):
        write_page([some()], tmp_path / "none" / "page.html")
