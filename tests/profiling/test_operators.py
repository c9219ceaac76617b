"""Operators are measured once each, and a run that was killed goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.conftest import graph_of
from traincast import OperatorRequest, RequestError, UnknownNameError
from traincast.estimate.events.keys import operator_key
from traincast.graph import zoo
from traincast.profiling.operators import measure as module
from traincast.profiling.operators.measure import (
    distinct_operators,
    in_turn,
    operators_of,
    profile_operators,
    request_sources,
    summary_of,
)
from traincast.profiling.output import journal_path
from traincast.profiling.rows import OPERATOR_COLUMNS, operator_from_row

TINY = "gpt:layers=3,hidden=16,heads=2,vocab=50,seq=8"
REQUEST = OperatorRequest(models=(TINY,), batch=2, repeats=3, timed_steps=2)


def table(path: Path) -> list[dict[str, Any]]:
    found = pq.read_table(path)
    assert found.column_names == list(OPERATOR_COLUMNS)
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


def test_equal_operators_are_measured_once() -> None:
    captured = graph_of(TINY).operators
    found = distinct_operators(captured)
    assert len(found) < len(captured)
    assert set(found) == {operator_key(op) for op in captured}
    moved = [replace(op, scope="elsewhere") for op in captured]
    assert distinct_operators([*captured, *moved]) == found


def test_any_first_part_of_the_operators_has_all_kinds() -> None:
    found = distinct_operators(graph_of(TINY).operators)
    ordered = in_turn(found)
    assert ordered == found
    kinds = {op.kind for op in found.values()}
    assert {op.kind for op in list(ordered.values())[: len(kinds)]} == kinds


def test_a_model_is_measured_alone_and_in_its_run(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    result = profile_operators(REQUEST, path)
    rows = table(path)
    assert len(rows) == result.measured == len(result.rows)
    assert (result.kept, result.left, result.failures, result.warnings) == (0, 0, (), ())
    wanted, _, _ = operators_of(REQUEST)
    for context in ("alone", "model"):
        found = [r for r in rows if r["context"] == context]
        assert {operator_key(operator_from_row(r)) for r in found} == set(wanted)
        assert all(r["n_meas"] >= 2 for r in found)
    for r in rows:
        assert 0 < r["time_us_min"] <= r["time_us"]
        assert r["suspect"] == (r["dispersion"] > 0.25)
        assert r["tflops"] == pytest.approx(operator_from_row(r).flops / r["time_us"] / 1e6)
        assert r["source"] == "profile"
        assert "(1 of " in r["device"]
        assert r["framework"].startswith("PyTorch ")
        assert r["framework"].endswith(" cpu")
        assert r["model"].startswith(TINY)
    assert {r["phase"] for r in rows} == {"fwd", "bwd", "update"}
    total = sum(line["n"] for line in summary_of(rows))
    assert total == len(rows)


def test_what_is_in_the_table_is_not_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    request = replace(REQUEST, in_context=False)
    first = profile_operators(request, path)
    times = [r["time_us"] for r in table(path)]
    second = profile_operators(request, path)
    assert (second.measured, second.kept) == (0, first.measured)
    assert [r["time_us"] for r in table(path)] == times
    other = profile_operators(replace(request, batch=3), path)
    assert other.measured > 0
    assert other.kept == first.measured


def test_a_limit_leaves_the_rest_for_the_next_run(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    request = replace(REQUEST, in_context=False, limit=5)
    first = profile_operators(request, path)
    assert first.measured == 5
    second = profile_operators(replace(request, limit=None), path)
    assert second.measured == first.left
    assert second.kept == 5


def test_a_spent_budget_still_gives_a_table(tmp_path: Path) -> None:
    result = profile_operators(replace(REQUEST, time_limit_s=1e-9), tmp_path / "t.parquet")
    assert result.measured == 0
    assert result.left == len(operators_of(REQUEST)[0]) + 1
    assert table(tmp_path / "t.parquet") == []


def test_what_cannot_be_measured_is_named_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "free_memory", lambda device: 1.0)
    result = profile_operators(REQUEST, tmp_path / "t.parquet")
    wanted, _, _ = operators_of(REQUEST)
    assert sum(f.count for f in result.failures) == len(wanted) + 1
    assert all("are free" in f.reason for f in result.failures)
    assert {f.what for f in result.failures} == {op.name for op in wanted.values()} | {f"{TINY} (whole model)"}


def test_half_precision_is_measured_in_half_precision(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    profile_operators(replace(REQUEST, precision="bf16", in_context=False), path)
    rows = table(path)
    assert {r["dtype"] for r in rows if r["op"] == "gemm"} == {"bf16"}
    assert {r["dtype"] for r in rows if r["op"] == "loss"} == {"fp32"}


def test_a_killed_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    model = "gpt:layers=2,hidden=32,heads=2,vocab=50,seq=8"
    words = ["profile", "operators", "--from", model, "--alone", "--repeats", "200", "-o", str(path)]
    run = subprocess.Popen([sys.executable, "-m", "traincast", *words], stdout=subprocess.DEVNULL)
    journal = journal_path(path)
    end = time.monotonic() + 60
    while time.monotonic() < end and (not journal.exists() or journal.read_bytes().count(b"\n") < 4):
        time.sleep(0.005)
    run.send_signal(signal.SIGKILL)
    run.wait()
    assert not path.exists()
    finished = journal.read_bytes().count(b"\n") - 1
    assert finished >= 3
    with journal.open("ab") as file:
        file.write(b'{"row":{"so')
    request = OperatorRequest(models=(model,), repeats=3, in_context=False)
    result = profile_operators(request, path)
    assert result.kept == finished
    assert len(result.warnings) == 1
    wanted, _, _ = operators_of(request)
    rows = table(path)
    assert {operator_key(operator_from_row(r)) for r in rows} == set(wanted)
    assert len(rows) == len(wanted) == finished + result.measured
    assert sum(r["n_meas"] == 200 for r in rows) == finished
    assert list(tmp_path.iterdir()) == [path]


def test_sources_are_read_with_the_commas_that_families_have() -> None:
    models, files, opset = request_sources("resnet50, gpt:layers=2,hidden=8,heads=2 ,opset")
    assert (models, files, opset) == (("resnet50", "gpt:layers=2,hidden=8,heads=2"), (), True)
    assert request_sources("zoo,resnet50") == (tuple(zoo.names()), (), False)
    with pytest.raises(UnknownNameError, match="nosuch"):
        request_sources("nosuch")
    with pytest.raises(RequestError, match="expected models"):
        request_sources(" , ")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"repeats": -3}, "repeats is -3"),
        ({"batch": 0}, "batch is 0"),
        ({"threads": 0}, "threads is 0"),
        ({"limit": 0}, "limit is 0"),
        ({"time_limit_s": -1.0}, "time_limit_s is -1"),
        ({"precision": "fp8"}, "precision is 'fp8'"),
        ({"models": ()}, "nothing to profile"),
    ],
)
def test_a_request_that_cannot_be_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        replace(REQUEST, **change)
