"""A column in the wrong unit is refused with the guess, and real runs are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.calibrating.test_read import GOOD, run, table
from traincast.calibrating.read import read_runs
from traincast.cluster import load_cluster
from traincast.errors import FileFormatError
from traincast.measured.wrong_units import memory_unit, time_unit, wrong_time_unit
from traincast.validating.steps import validate_steps

FORECAST_S = 0.05


@pytest.mark.parametrize(
    ("measured", "unit"),
    [
        (50e6, "nanoseconds"),
        (60e3, "microseconds"),
        (30.0, "milliseconds"),
        (200.0, "milliseconds"),
        (FORECAST_S / 60, "minutes"),
        (FORECAST_S / 900, "thousands of seconds"),
        (FORECAST_S / 5000, "hours"),
        (FORECAST_S, ""),
        (FORECAST_S * 20, ""),
        (FORECAST_S / 8, ""),
    ],
)
def test_a_unit_is_guessed_from_the_forecast(measured: float, unit: str) -> None:
    assert time_unit(measured, FORECAST_S) == unit


def test_memory_in_other_units_is_told_too() -> None:
    assert [memory_unit(x * 2**30, 10 * 2**30) for x in (9.0, 11e3, 10e9, 1e-2)] == ["", "MiB", "bytes", "TiB"]


def test_a_table_is_in_another_unit_if_most_of_it_is() -> None:
    assert "milliseconds" in wrong_time_unit([(50.0, 0.05), (60.0, 0.05), (0.05, 0.05)])
    assert wrong_time_unit([(50.0, 0.05), (0.06, 0.05), (0.05, 0.05)]) == ""
    assert wrong_time_unit([]) == ""


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


def test_validate_warns_of_another_unit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = table(tmp_path, GOOD.replace("0.05,A100", "50,A100"))
    (warning,) = validate_steps(path, cluster=load_cluster("dgx-a100")).warnings()
    assert warning.startswith("unknown: step_time_s looks like milliseconds")
    _, out, _ = run(["validate", "steps", str(path), "--cluster", "dgx-a100"], capsys)
    assert "step_time_s looks like milliseconds" in out
