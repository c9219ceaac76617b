"""A fit finds the parameters that made its runs, says which it cannot know, and is not led astray."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.calibrating.conftest import MakeRuns
from traincast import Calibration
from traincast.calibrating.fit import fit
from traincast.calibrating.parameters import NAMES, Prior, calibration_at
from traincast.calibrating.runs import MeasuredRun
from traincast.cluster import Stall

TRUE = replace(calibration_at(Prior.usual().mean), gemm=1.3, inter=1.8, kernels=1.4, step_s=0.01)


def errors(runs: list[MeasuredRun], calibration: Calibration) -> list[float]:
    return [abs(run.simulated(calibration) / run.seconds - 1) for run in runs]


def test_a_fit_to_no_run_is_the_prior() -> None:
    made = fit([])
    assert made.calibration == calibration_at(Prior.usual().mean)
    assert made.spread == pytest.approx(Prior.usual().spread)


def test_a_fit_finds_what_made_its_runs(make_runs: MakeRuns) -> None:
    runs = make_runs(TRUE)
    made = fit(runs)
    assert max(errors(runs, made.calibration)) < 0.03
    assert made.calibration.kernels == pytest.approx(1.4, rel=0.15)
    assert made.calibration.inter == pytest.approx(1.8, rel=0.25)
    assert np.mean(errors(runs, made.calibration)) < 0.2 * np.mean(errors(runs, Calibration()))


def test_parameters_that_no_run_depends_on_stay_where_they_were(make_runs: MakeRuns) -> None:
    made = fit(make_runs(TRUE))
    for name in ("grouped", "conv", "half_conv", "narrow_gemm"):
        i = NAMES.index(name)
        assert getattr(made.calibration, name) == 1.0
        assert made.spread[i] == pytest.approx(made.prior.spread[i])


def test_more_runs_make_surer(make_runs: MakeRuns) -> None:
    runs = make_runs(TRUE)
    few, many = fit(runs[:4]), fit(runs)
    assert (many.spread <= few.spread + 1e-9).all()
    assert many.spread[NAMES.index("kernels")] < 0.55 * few.prior.spread[NAMES.index("kernels")]


def test_one_odd_run_does_not_bend_the_rest(make_runs: MakeRuns) -> None:
    runs = make_runs(TRUE)
    odd = [replace(runs[0], measured=replace(runs[0].measured, seconds=10 * runs[0].seconds)), *runs[1:]]
    assert max(errors(runs[1:], fit(odd).calibration)) < 0.06


def test_a_run_that_is_many_times_off_moves_little(make_runs: MakeRuns) -> None:
    slower, absurd = (make_runs(replace(TRUE, kernels=host))[0] for host in (1.6, 400.0))
    believed = fit([]).calibration
    near, far = (fit([run]).calibration for run in (slower, absurd))
    assert slower.simulated(near) == pytest.approx(slower.seconds, rel=0.06)
    assert absurd.simulated(far) < 2.0 * absurd.simulated(believed) < 0.1 * absurd.seconds


def test_runs_that_stall_are_told_from_those_that_do_not(make_runs: MakeRuns) -> None:
    stalling = replace(TRUE, stall=Stall(seconds=0.3, base=0.0))
    usual, slow = make_runs(TRUE), make_runs(stalling)
    slow = [replace(run, measured=replace(run.measured, seconds=run.simulated(stalling, stalled=True))) for run in slow]
    piped = [i for i, run in enumerate(usual) if run.look.stages > 1]
    stalls = set(piped[::2])
    runs = [slow[i] if i in stalls else usual[i] for i in range(len(usual))]
    runs += [replace(slow[i], measured=replace(slow[i].measured, index=100 + i)) for i in piped]
    made = fit(runs)
    assert made.calibration.stall is not None
    assert made.calibration.stall.seconds == pytest.approx(0.3, rel=0.05)
    assert set(np.flatnonzero(made.stalled[: len(usual)]).tolist()) == stalls
    assert runs[piped[0]].look.stalls(made.calibration) > runs[0].look.stalls(made.calibration)
