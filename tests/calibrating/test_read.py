"""Tables of runs as users write them, and what is said of rows that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from traincast import FileFormatError, load_cluster
from traincast.calibrating.calibrate import read_runs
from traincast.calibrating.explain import explain
from traincast.cli.main import main

HEADER = "model,n_gpus,strategy,global_batch,seq,framework,step_time_s,gpu,status,mem_gb\n"
GOOD = 'bert-base,8,"dp=8,micro_batch=4",64,128,PyTorch,0.05,A100,ok,11.5\n'


def table(folder: Path, *rows: str, header: str = HEADER) -> Path:
    path = folder / "runs.csv"
    path.write_text(header + "".join(rows), encoding="utf-8")
    return path


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    said = capsys.readouterr()
    return int(stop.value.code or 0), said.out, said.err


def test_a_strategy_may_be_one_text(tmp_path: Path) -> None:
    runs, skipped = read_runs(table(tmp_path, GOOD), load_cluster("dgx-a100"))
    (found,) = runs
    assert not skipped
    request = found.measured.request
    assert (request.strategy.dp, request.strategy.num_microbatches, request.global_batch) == (8, 2, 64)
    assert request.cluster.num_nodes == 1 and request.runtime.name == "pytorch"
    assert found.measured.memory_bytes == 11.5 * 2**30


def test_part_of_a_node_and_several_nodes_are_those_of_the_cluster(tmp_path: Path) -> None:
    rows = [GOOD.replace(",8,", f",{n},").replace("dp=8", f"dp={n}") for n in (2, 16)]
    runs, _ = read_runs(table(tmp_path, *rows), load_cluster("dgx-a100"))
    places = [run.measured.request.cluster for run in runs]
    assert [(place.num_nodes, place.devices_per_node) for place in places] == [(1, 2), (2, 8)]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (GOOD.replace("0.05", ""), "step_time_s"),
        (GOOD.replace("0.05", "-1"), "step_time_s"),
        (GOOD.replace("0.05", "nan"), "step_time_s"),
        (GOOD.replace("ok", "OOM"), "the run failed"),
        (GOOD.replace(",8,", ",12,"), "do not fill nodes of 8"),
        (GOOD.replace("A100", "H100"), "ran on h100"),
        (GOOD.replace("bert-base", "no-such-model"), "not in the zoo"),
        (GOOD.replace("dp=8", "dp=three"), "three"),
    ],
)
def test_a_row_that_cannot_be_used_is_left_out_with_its_reason(tmp_path: Path, row: str, reason: str) -> None:
    runs, skipped = read_runs(table(tmp_path, GOOD, row), load_cluster("dgx-a100"))
    assert len(runs) == 1
    assert list(skipped) == [1] and reason in skipped[1]


def test_a_table_without_a_usable_row_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="no run that can be forecast: row 0"):
        read_runs(table(tmp_path, GOOD.replace("0.05", "0")), load_cluster("dgx-a100"))
    with pytest.raises(FileFormatError, match="no rows"):
        read_runs(table(tmp_path), load_cluster("dgx-a100"))


def test_what_an_error_depends_on_would_mend_it(tmp_path: Path) -> None:
    runs, _ = read_runs(table(tmp_path, GOOD), load_cluster("dgx-a100"))
    found = explain(runs[0].measured)
    assert found.error == pytest.approx(found.report.step_s / 0.05 - 1)
    steepest = found.sensitivities[0]
    assert steepest.per_tenth > 1.0
    assert all(s.to_match > 1.0 for s in found.sensitivities if s.to_match) or found.error > 0
    assert sum(found.seconds_by_part.values()) > 0.0
    json.dumps(found.to_dict())


def test_calibrate_writes_a_cluster_that_predict_can_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [
        GOOD.replace("0.05", str(t)).replace("micro_batch=4", f"micro_batch={m}") for t, m in ((0.05, 4), (0.06, 8))
    ]
    table(tmp_path, *rows)
    (tmp_path / "my.toml").write_text('extends = "dgx-a100"\n', encoding="utf-8")
    code, out, _ = run(
        ["calibrate", "runs.csv", "--cluster", "my.toml", "-o", "my-calibrated.toml", "--json"], capsys
    )  # fmt: skip
    said = json.loads(out)
    assert code == 0 and said["runs"] == 2 and said["calibration"]["few"]["share"] == 1.0
    assert not list(tmp_path.glob("*.journal")) and not list(tmp_path.glob(".*.part"))
    cluster = load_cluster("my-calibrated.toml:2")
    assert cluster.calibration is not None and cluster.calibration.runs == 2
    assert cluster.calibration.few is not None and cluster.calibration.few.doubt < 1.0
    code, out, _ = run(
        ["predict", "bert-base", "--cluster", "my-calibrated.toml", "--global-batch", "64", "--strategy",
         "dp=8,micro_batch=4", "--seq", "128", "--runtime", "pytorch", "--json"], capsys
    )  # fmt: skip
    report = json.loads(out)
    parts = ("compute_s", "exposed_communication_s", "bubble_s", "optimizer_s", "overhead_s", "calibrated_s")
    assert sum(report[part] for part in parts) == pytest.approx(report["step_s"])
    assert report["low_s"] < report["step_s"] < report["high_s"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["runs.csv", "--cluster", "dgx-a100", "-o", "out.json"], "must end in .toml"),
        (["runs.csv", "--cluster", "dgx-a100", "-o", "no/such/out.toml"], "cannot write"),
        (["runs.csv", "--cluster", "dgx-a100", "-o", "/proc/out.toml"], "cannot write"),
        (["runs.csv", "--cluster", "no-such", "-o", "out.toml"], "no-such"),
        (["runs.csv", "--cluster", "dgx-a100:1x4", "-o", "out.toml"], "whole kind of node"),
        (["runs.csv", "--cluster", "dgx-a100", "-o", "out.toml", "--curve", "1,x"], "--curve"),
        (["none.csv", "--cluster", "dgx-a100", "-o", "out.toml"], "none.csv"),
        (["bad.csv", "--cluster", "dgx-a100", "-o", "out.toml"], "step_time_s"),
    ],
)
def test_a_wrong_request_is_one_line_and_writes_nothing(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    table(tmp_path, GOOD)
    (tmp_path / "bad.csv").write_text("model,n_gpus\nbert-base,8\n", encoding="utf-8")
    code, out, err = run(["calibrate", *arguments], capsys)
    assert code in (1, 2) and not out
    assert said in err and err.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.csv", "runs.csv"]


def test_one_row_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(table(tmp_path, GOOD))
    code, out, _ = run(["validate", "steps", path, "--cluster", "dgx-a100", "--explain", "0"], capsys)
    assert code == 0 and "what the forecast depends on" in out and "kernels" in out
    code, _, err = run(["validate", "steps", path, "--explain", "5"], capsys)
    assert code == 2 and "rows 0 to 0" in err


def test_a_table_of_ones_own_is_judged_on_its_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(table(tmp_path, GOOD))
    code, out, _ = run(["validate", "steps", path, "--cluster", "dgx-a100", "--json"], capsys)
    (row,) = json.loads(out)["rows"]
    assert code == 0 and row["status"] == "ok" and row["measured"] == 0.05
    code, _, err = run(["validate", "steps", path], capsys)
    assert code == 2 and "lacks the columns source" in err


def test_a_forecast_points_to_what_is_calibrated(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["predict", "bert-base", "--global-batch", "64", "--strategy", "dp=8,micro_batch=4", "--seq", "128"]
    place = ["--cluster", "dgx-a100", "--runtime"]
    _, out, _ = run([*asked, *place, "pytorch-1"], capsys)
    assert "not calibrated; a100-sxm4-80gb-pytorch-1-sequences-deep-learning-examples is calibrated with" in out
    _, out, _ = run([*asked, *place, "nanotron"], capsys)
    assert "calibrated" not in out


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("0.05,A100", "50,A100", "step_time_s looks like milliseconds: a row states 50 s, its forecast is 0.0"),
        ("0.05,A100", "0.00005,A100", "step_time_s looks like thousands of seconds"),
        ("11.5", "11776", "mem_gb looks like MiB"),
        ("11.5", "12348030976", "mem_gb looks like bytes"),
    ],
)
def test_calibrate_refuses_a_table_in_another_unit_with_the_guess(
    old: str, new: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = table(tmp_path, GOOD.replace(old, new), GOOD.replace(old, new))
    code, out, err = run(["calibrate", str(path), "--cluster", "dgx-a100", "-o", str(tmp_path / "out.toml")], capsys)
    assert code == 2 and not out and said in err and err.count("\n") == 1
    assert not (tmp_path / "out.toml").exists()
    with pytest.raises(FileFormatError, match="convert the column"):
        read_runs(path, load_cluster("dgx-a100"))


def test_single_rows_in_another_unit_are_left_out_with_the_guess(tmp_path: Path) -> None:
    path = table(tmp_path, GOOD, GOOD.replace("0.05,A100", "47,A100"), GOOD)
    runs, skipped = read_runs(path, load_cluster("dgx-a100"))
    assert [run.measured.index for run in runs] == [0, 2]
    assert list(skipped) == [1] and "it looks like milliseconds" in skipped[1]
