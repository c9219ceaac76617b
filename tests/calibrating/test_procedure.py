"""A whole calibration: better on runs not seen, resumable, and plain to read."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.calibrating.conftest import MakeRuns
from tests.calibrating.test_fit import TRUE
from traincast import Calibration, FileFormatError, RequestError
from traincast.calibrating import procedure
from traincast.calibrating.few import offsets, share_of_few
from traincast.calibrating.parameters import Prior
from traincast.calibrating.procedure import calibrate_runs
from traincast.calibrating.runs import MeasuredRun
from traincast.calibrating.study import fold_numbers, learning_curve, models_alone, seen_models
from traincast.cluster import SeenModel
from traincast.report.outlook import expect


def test_calibration_helps_on_runs_and_models_not_seen(make_runs: MakeRuns) -> None:
    result = calibrate_runs(make_runs(TRUE), curve=())
    before = np.abs(result.before).mean()
    assert np.abs(result.held.errors()).mean() < 0.3 * before
    assert np.abs(result.held_by_model.errors()).mean() < 0.6 * before
    assert result.calibration.low <= 1.0 <= result.calibration.high < 1.3
    assert result.calibration.runtimes == ("megatron-deepspeed",) and result.calibration.nodes == (1, 4)


def slower(runs: list[MeasuredRun], factor: float) -> list[MeasuredRun]:
    """``runs``, those of the first model ``factor`` times slower than all parameters say."""
    first = runs[0].look.model
    return [
        replace(run, measured=replace(run.measured, seconds=run.seconds * (factor if run.look.model == first else 1.0)))
        for run in runs
    ]


def test_models_that_were_measured_get_the_mean_of_their_errors_drawn_towards_none(make_runs: MakeRuns) -> None:
    runs = slower(make_runs(Calibration()), 1.3)
    number = sum(run.look.model == runs[0].look.model for run in runs)
    left = np.log([run.seconds / run.simulated(Calibration()) for run in runs])
    found = {s.model: s for s in seen_models(runs, left)}
    mine = found[runs[0].look.model]
    assert (mine.precision, mine.runs) == ("fp16", number)
    assert mine.factor == pytest.approx(1.3 ** (number / (number + 1)))
    assert found[runs[-1].look.model].factor == pytest.approx(1.0)


def test_an_unusual_model_is_forecast_by_its_other_runs_without_changing_the_rest(make_runs: MakeRuns) -> None:
    runs = slower(make_runs(Calibration()), 1.3)
    alone = models_alone(runs, fold_numbers(runs, lambda run: run.measured.index))
    assert np.abs(alone.errors()).max() < 0.05
    by_model = models_alone(runs, fold_numbers(runs, lambda run: run.look.model))
    assert by_model.errors()[0] == pytest.approx(1 / 1.3 - 1)
    assert by_model.errors()[-1] == pytest.approx(0.0, abs=1e-9)


def test_repeats_of_a_run_teach_the_factor_of_its_model_where_no_other_run_is_forecast_better(
    make_runs: MakeRuns,
) -> None:
    made = make_runs(Calibration())
    names = dict.fromkeys(run.look.model for run in made)
    first, second = (next(run for run in made if run.look.model == name) for name in names)
    pairs = [(first, 1.3), (second, 1 / 1.3)] * 4
    runs = [
        replace(run, measured=replace(run.measured, index=n, seconds=run.simulated(Calibration()) * factor))
        for n, (run, factor) in enumerate(pairs)
    ]
    result = calibrate_runs(runs, curve=())
    few = offsets(runs)
    share = share_of_few(len(runs))
    own = [share * few.models[s.model, s.precision] for s in result.calibration.seen]
    fitted = [0.8 * (1.0 - share) * side * math.log(1.3) for side in (1, -1)]
    assert np.log([s.factor for s in result.calibration.seen]) == pytest.approx(np.add(own, fitted))
    assert result.calibration.gemm == 1.0 and result.helped
    assert any("repeats of measured runs" in warning for warning in result.warnings)


def test_a_factor_of_a_model_changes_the_forecast_of_its_steps(make_runs: MakeRuns) -> None:
    look = make_runs(Calibration())[0].look
    seen = (SeenModel(model=look.model, precision=look.precision, factor=1.5, runs=2),)
    both = (Calibration(seen=s, low=0.9, high=1.1) for s in ((), seen))
    usual, own = (expect(c, look, usual_s=2.0, stalled_s=2.0, runtime="x") for c in both)
    assert [usual.step_s, own.step_s] == pytest.approx([2.0, 3.0])


def test_the_error_falls_as_runs_are_added(make_runs: MakeRuns) -> None:
    points = learning_curve(make_runs(TRUE), sizes=(0, 3, 10))
    assert [p.runs for p in points] == [0, 3, 10]
    assert points[2].mean_error < points[1].mean_error < points[0].mean_error


def test_an_odd_run_is_pointed_out(make_runs: MakeRuns) -> None:
    runs = make_runs(TRUE)
    runs[7] = replace(runs[7], measured=replace(runs[7].measured, seconds=3 * runs[7].seconds))
    odd = calibrate_runs(runs, curve=()).odd
    assert odd and odd[0].index == 7


def test_measured_memory_teaches_the_allocator(make_runs: MakeRuns) -> None:
    runs = [
        replace(run, measured=replace(run.measured, memory_bytes=1.2 * run.predicted_memory))
        for run in make_runs(Calibration())
    ]
    assert calibrate_runs(runs, curve=()).calibration.memory_share == pytest.approx(1.2)


def test_no_run_is_refused() -> None:
    with pytest.raises(RequestError, match="no run to calibrate with"):
        calibrate_runs([])


def test_one_that_was_stopped_goes_on(make_runs: MakeRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, journal = make_runs(TRUE)[:10], tmp_path / "my.toml.journal"
    whole = calibrate_runs(runs, curve=(1,))

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(procedure, "learning_curve", stop)
    with pytest.raises(KeyboardInterrupt):
        calibrate_runs(runs, curve=(1,), journal=journal)
    assert journal.exists()
    monkeypatch.undo()
    monkeypatch.setattr(procedure, "fit", stop)
    monkeypatch.setattr(procedure, "held_out", stop)
    again = calibrate_runs(runs, curve=(1,), journal=journal)
    assert again.calibration == whole.calibration and again.curve == whole.curve
    assert not journal.exists()


def test_finished_stages_stay_until_the_result_is_saved(make_runs: MakeRuns, tmp_path: Path) -> None:
    runs, journal = make_runs(TRUE)[:6], tmp_path / "journal"

    def full(result: object) -> None:
        raise FileFormatError("cannot write my.toml: no space left on device")

    with pytest.raises(FileFormatError):
        calibrate_runs(runs, curve=(), journal=journal, save=full)
    _, *kept = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    assert [name for name, _ in kept] == ["fit", "held out runs", "held out models", "curve []"]
    calibrate_runs(runs, curve=(), journal=journal, save=lambda result: None)
    assert not journal.exists()


def stopped(runs: list[MeasuredRun], journal: Path, **other: Any) -> None:
    """A calibration that was stopped before its result was saved: the journal has all its stages."""

    def full(result: object) -> None:
        raise FileFormatError("cannot write my.toml: no space left on device")

    with pytest.raises(FileFormatError):
        calibrate_runs(runs, curve=(), journal=journal, save=full, **other)


def test_a_journal_of_other_runs_is_not_used_and_this_is_said(make_runs: MakeRuns, tmp_path: Path) -> None:
    journal, runs = tmp_path / "journal", make_runs(TRUE)[:6]
    alone = calibrate_runs(runs, curve=())
    usual = Prior.usual()
    for others, belief in ((make_runs(TRUE)[1:7], None), (runs, replace(usual, spread=2.0 * usual.spread))):
        stopped(others, journal, prior=belief)
        result = calibrate_runs(runs, curve=(), journal=journal)
        assert result.calibration == alone.calibration
        (warning,) = result.warnings
        assert "was started for other inputs" in warning and "not used" in warning
        assert result.to_dict()["warnings"] == [warning]
    assert alone.warnings == ()


def test_a_file_that_is_no_journal_is_not_written_over(make_runs: MakeRuns, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.write_text("{ not json", encoding="utf-8")
    with pytest.raises(FileFormatError, match="not a journal of a calibration"):
        calibrate_runs(make_runs(TRUE)[:6], curve=(), journal=journal)
    assert journal.read_text(encoding="utf-8") == "{ not json"


def test_everything_can_be_said_in_json(make_runs: MakeRuns) -> None:
    data = calibrate_runs(make_runs(TRUE)[:6], curve=(0, 1)).to_dict()
    assert set(data) >= {"calibration", "parameters", "errors", "learning_curve", "odd", "correction"}
    json.dumps(data)


def test_runs_with_one_key_are_in_one_fold(plain_runs: list[MeasuredRun]) -> None:
    folds = fold_numbers(plain_runs, lambda run: run.nodes)
    by_nodes = {run.nodes: fold for run, fold in zip(plain_runs, folds.tolist(), strict=True)}
    assert [by_nodes[run.nodes] for run in plain_runs] == folds.tolist()
    assert (folds == fold_numbers(plain_runs, lambda run: run.nodes)).all()
