"""A forecast walks once: one preparation, one report; what does not fit comes with a remedy."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.conftest import GPT, LLAMA, devices, graph_of, request_of
from traincast import Forecast, JobSettings, Report, predict
from traincast.forecast import forecast, job_of
from traincast.strategy import lower, prepare
from traincast.strategy.memory.fits import MemoryFit


def predicted(strategy: str, **settings: Any) -> Forecast:
    return predict(graph_of(GPT), cluster=devices(4), global_batch=16, strategy=strategy, **settings)


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often requests are prepared and reports are made."""
    found = {"prepared": 0, "reports": 0}
    original, made = prepare.prepare, Report.__init__

    def counted(request: Any) -> Any:
        found["prepared"] += 1
        return original(request)

    def reported(self: Report, **values: Any) -> None:
        found["reports"] += 1
        made(self, **values)

    for module in ("traincast.strategy.prepare", "traincast.strategy.lower"):
        monkeypatch.setattr(sys.modules[module], "prepare", counted)
    monkeypatch.setattr(Report, "__init__", reported)
    return found


def test_a_chosen_strategy_says_that_it_was_not_searched_and_what_a_search_could_gain() -> None:
    place: dict[str, Any] = {"cluster": devices(4), "global_batch": 16}
    report = predict(graph_of(GPT), **place).report
    assert report.choice is not None
    assert report.fits and report.choice.fits and report.choice.timed > 1
    assert report.choice.most_gain == pytest.approx(report.to_dict()["choice"]["most_gain"])
    assert report.to_dict()["choice"]["searched"] is False
    assert str(report.choice).startswith(
        f"the fastest of {report.choice.timed} that fit, not searched; a search could "
    )
    assert 0.0 < (report.choice.most_gain or 0.0) <= 1.0 - report.floor_s / report.step_s
    assert predict(graph_of(GPT), strategy=report.strategy, **place).report.choice is None


def test_a_stated_strategy_that_no_small_change_makes_fit_gets_another_that_fits() -> None:
    report = predict("llama3-70b", cluster="dgx-a100:2", global_batch=16, strategy="dp=16").report
    (said,) = (warning for warning in report.warnings if warning.startswith("does not fit"))
    assert "fits with dp=16,zero=3,recompute=full,offload=optimizer" in said


@pytest.mark.parametrize("strategy", ["dp=4,micro_batch=2", "pp=4,micro_batch=2", "dp=4,servers=2,micro_batch=2"])
def test_a_forecast_prepares_and_reports_once(strategy: str, counts: dict[str, int]) -> None:
    made = predicted(strategy, steps=1000)
    assert counts == {"prepared": 1, "reports": 1}
    assert made.report.job is not None and made.report.memory_over_time
    made.detailed()
    assert counts == {"prepared": 1, "reports": 1}


def test_a_lowered_request_carries_what_it_was_made_from() -> None:
    request = request_of("pp=2,num_microbatches=4", model=LLAMA)
    found = lower(request)
    assert found.request is request
    assert found.prepared.micro_batch == request.strategy.micro_batch(request.global_batch)
    assert found.need.forecast == max(memory.total for memory in found.memory)


def test_details_are_there_where_asked_for() -> None:
    request = request_of("dp=4,micro_batch=2", model=GPT, global_batch=16)
    plain, detailed = forecast(request).report, forecast(request, in_detail=True, num_steps=10).report
    assert (plain.memory_over_time, plain.peak_tensors, plain.job) == ((), (), None)
    assert len(detailed.memory_over_time) == 4  # two microbatches, forward and backward
    assert detailed.job is not None and detailed.job.num_steps == 10
    assert (plain.step_s, plain.memory) == (detailed.step_s, detailed.memory)
    assert job_of(forecast(request), 10, JobSettings()) == detailed.job


def test_what_does_not_fit_is_a_value_and_its_warning_has_the_remedy() -> None:
    made = predict("gpt2-xl", cluster="dgx-1-v100", global_batch=64, strategy="dp=8,micro_batch=8", use_cache=True)
    assert made.report.fit is MemoryFit.DOES_NOT_FIT
    assert (made.report.verdict, "fit" in made.report.to_dict()) == ("does not fit", False)
    (warning,) = [w for w in made.report.warnings if w.startswith("does not fit: needs ")]
    assert "; fits with " in warning
    assert predicted("dp=4,micro_batch=1").report.fit is MemoryFit.FITS
