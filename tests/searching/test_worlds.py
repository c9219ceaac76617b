"""Laws of worlds that are conditioned on measurements."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import AnalyticalCostModel
from tests.searching.problems import asked
from traincast import Forecast
from traincast.forecast import forecast
from traincast.searching import worlds
from traincast.searching.doubts import TECHNIQUE
from traincast.searching.sureness import REPEATS, Draws
from traincast.searching.worlds import DrawnStep, Seen, Worlds, step_of

NAMES = [("gemm",), ("inter",), ("mesh",), ("own",)]
effects = st.lists(st.floats(0.0, 0.4), min_size=4, max_size=4).map(lambda found: dict(zip(NAMES, found, strict=True)))
steps = st.lists(
    st.builds(lambda m, e: DrawnStep(median=m, effects=e), st.floats(-0.2, 0.2), effects), min_size=1, max_size=4
)
seen = st.lists(st.builds(lambda e, n: Seen(effects=e, noise=n), effects, st.floats(0.01, 0.5)), min_size=1, max_size=3)


MODEL = "gpt:layers=4,hidden=4096,heads=32,vocab=2000,seq=2048"


def made(strategy: str, batch: int = 32, cluster: str = "dgx-a100:2") -> Forecast:
    return forecast(asked(strategy, model=MODEL, cluster=cluster, batch=batch), cost_model=AnalyticalCostModel())


@settings(deadline=None, derandomize=True, max_examples=40)
@given(steps=steps, seen=seen)
def test_a_measurement_never_adds_doubt(steps: list[DrawnStep], seen: list[Seen]) -> None:
    known = Worlds(steps)
    for number, step in enumerate(steps):
        assert known.spread(number) == pytest.approx(step.spread)
        assert known.spread(number, seen) <= known.spread(number) + 1e-9
    assert 0.0 <= known.regret(seen) <= known.regret()


@settings(deadline=None, derandomize=True, max_examples=40)
@given(steps=steps, noise=st.floats(0.01, 1.0))
def test_a_measurement_of_something_else_lowers_nothing(steps: list[DrawnStep], noise: float) -> None:
    known, other = Worlds(steps), [Seen(effects={("coffee",): 1.0}, noise=noise)]
    for number in range(len(steps)):
        assert known.spread(number, other) == pytest.approx(known.spread(number))
    assert known.regret(other) == known.regret()


@settings(deadline=None, derandomize=True, max_examples=40)
@given(step=steps.map(lambda found: found[0]))
def test_the_step_itself_leaves_its_noise(step: DrawnStep) -> None:
    left = Worlds([step]).spread(0, [Seen(effects=step.effects, noise=0.05)])
    both = math.hypot(step.spread, 0.05)
    assert left == pytest.approx(step.spread * 0.05 / both, abs=1e-6)


def test_one_strategy_has_no_regret() -> None:
    assert Worlds([DrawnStep(median=0.0, effects={("gemm",): 0.3})]).regret() == 0.0


def test_a_step_is_as_unknown_as_its_interval_says() -> None:
    one = made("dp=16")
    whole = math.log(one.report.high_s / one.report.low_s) / (2 * 1.645)
    assert step_of(one).spread == pytest.approx(math.hypot(whole, REPEATS))
    doubted = step_of(one, ("offload=activations",))
    assert doubted.spread > step_of(one).spread
    assert doubted.median - step_of(one).median == pytest.approx(TECHNIQUE * math.sqrt(2 / math.pi))


def test_a_calibrated_cluster_is_unknown_by_what_its_calibration_leaves() -> None:
    one = made("dp=8", cluster="h100-sxm5-80gb-nanotron-ultrascale:1")
    kinds = {name[0] for name in step_of(one).effects}
    assert kinds <= {"run", "calibrated", "repeats"}


def width(drawn: npt.NDArray[np.float64]) -> float:
    """The width of the 90 % interval, in standard deviations of a normal variable."""
    low, high = np.quantile(drawn, (0.05, 0.95)).tolist()
    return float(high - low) / (2 * 1.645)


def test_the_doubt_that_a_run_leaves_is_what_drawn_worlds_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of drawn worlds on one node tell about a step on two what the conditioned worlds say, within a fifth."""
    monkeypatch.setattr(worlds, "OWN", 0.0)  # draws give a strategy no error of its own but that of repeats
    monkeypatch.setattr(worlds, "RUN", 0.0)
    small, large = made("dp=4,tp=2", batch=16, cluster="dgx-a100:1"), made("dp=8,tp=2")
    draws = Draws(800, 0)
    y, x = np.log(draws.seconds(large)), np.log(draws.seconds(small))
    slope = np.cov(x, y)[0, 1] / x.var()
    left = width(y - slope * x)
    shown = {name: e for name, e in step_of(small).effects.items() if name[0] != "repeats"}
    told = Worlds([step_of(large)]).spread(0, [Seen(effects=shown, noise=REPEATS)])
    assert Worlds([step_of(large)]).spread(0) == pytest.approx(width(y), rel=0.2)
    assert told == pytest.approx(left, rel=0.2)


def test_what_is_expected_moves_towards_what_was_seen() -> None:
    step = DrawnStep(median=1.0, effects={("gemm",): 0.3})
    known, figure = Worlds([step]), [Seen(effects={("gemm",): 0.3}, noise=0.001)]
    assert known.mean(0, figure, [0.2]) == pytest.approx(1.2, abs=1e-3)
    assert known.mean(0, [replace(figure[0], noise=100.0)], [0.2]) == pytest.approx(1.0, abs=1e-3)
