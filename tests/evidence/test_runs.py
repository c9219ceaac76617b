"""The index of measured runs that ships, and how one is read and written."""

from __future__ import annotations

import math
from pathlib import Path
from typing import get_args

import pytest

from tests.evidence.samples import run_of
from traincast.cluster import load_device
from traincast.errors import FileFormatError
from traincast.evidence import RunKind, Runs, measured_runs
from traincast.evidence.runs import COLUMNS, INDEX, index_bytes, read_runs
from traincast.strategy import load_runtime, parse_strategy

NOTICE = (Path(__file__).parents[2] / "NOTICE").read_text(encoding="utf-8")


def test_the_shipped_index_is_well_formed() -> None:
    runs = measured_runs()
    assert len(runs) > 1000
    assert {len(runs[name]) for name in COLUMNS} == {len(runs)}
    assert set(runs["kind"].tolist()) == set(get_args(RunKind))
    for name in ("measured_s", "predicted_s", "parameters", "active_parameters", "power_w", "devices", "nodes"):
        assert (runs[name] > 0).all(), name
    assert (runs["active_parameters"] <= runs["parameters"]).all()
    assert (runs["dp"] * runs["tp"] * runs["pp"] * runs["cp"] == runs["devices"]).all()
    assert (runs["sharded"] <= runs["replicas"]).all()
    assert INDEX.stat().st_size < 300_000


def test_forecasts_of_the_index_are_not_absurd() -> None:
    runs = measured_runs()
    off = sorted(abs(math.log(p / m)) for p, m in zip(runs["predicted_s"], runs["measured_s"], strict=True))
    assert off[len(off) // 2] < math.log(1.25)


def test_devices_and_runtimes_of_the_index_are_in_the_catalog() -> None:
    runs = measured_runs()
    for name in set(runs["device"].tolist()):
        assert load_device(name).name == name
    for name in set(runs["runtime"].tolist()):
        assert load_runtime(name).name == name


def test_strategies_of_the_index_say_what_its_columns_say() -> None:
    runs = measured_runs()
    for number in range(0, len(runs), 25):
        traits = runs.run(number).traits
        strategy = parse_strategy(traits.strategy, global_batch=traits.global_batch)
        said = strategy.dp, strategy.tp, strategy.pp, strategy.cp, strategy.ep, strategy.zero, strategy.recompute
        assert said == (traits.dp, traits.tp, traits.pp, traits.cp, traits.ep, traits.zero, traits.recompute)


def test_every_source_of_the_index_is_credited() -> None:
    names = set(measured_runs()["source"].tolist())
    assert {name for name in names if name not in NOTICE} == set()


def test_no_source_fills_the_index() -> None:
    runs = measured_runs()
    counts = [int((runs["source"] == name).sum()) for name in set(runs["source"].tolist())]
    assert max(counts) <= 120


def test_an_index_is_written_and_read_again(tmp_path: Path) -> None:
    runs = [run_of(), run_of(source="other", measured_s=1.5, tp=8, offload="optimizer")]
    path = tmp_path / "runs.json"
    path.write_bytes(index_bytes(runs))
    again = read_runs(path)
    assert [again.run(number) for number in range(len(again))] == runs
    assert index_bytes(runs) == path.read_bytes()


def test_runs_can_be_chosen_by_number() -> None:
    runs = Runs.of([run_of(source=name) for name in "abc"])
    assert runs.of_numbers([2, 0])["source"].tolist() == ["c", "a"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format": 1}'])
def test_another_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "runs.json"
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match="not an index of measured runs"):
        read_runs(path)


def test_an_index_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    path.write_bytes(b'{"format": 99, "numbers": {}, "texts": {}}')
    with pytest.raises(FileFormatError, match="format 1"):
        read_runs(path)
