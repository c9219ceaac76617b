"""The study of unseen sources: who guides, who judges, and what its figures mean."""

from __future__ import annotations

import math
import tomllib
from typing import Any

import pytest
from benchmarks.unseen import SOURCES, Judged, figures, fitted, guiding, left_out, role_of

from traincast import learned_cost_model

DIVIDED = tomllib.loads(SOURCES.read_text(encoding="utf-8"))


def run(source: str, error: float, **changes: Any) -> Judged:
    given: dict[str, Any] = {
        "kind": "steps", "table": "steps", "index": 0, "source": source, "step": "language", "framework": "megatron",
        "device": "h100-sxm5-80gb", "devices": 8, "error": error, "below": 0.0, "above": 0.0, "low": 0.2, "high": 0.2,
    }  # fmt: skip
    return Judged(**{**given, **changes})


@pytest.mark.parametrize("kind", DIVIDED)
def test_every_kind_has_both_roles_and_a_third_of_its_sources_only_judge(kind: str) -> None:
    guide, judge = (set(DIVIDED[kind][role]) for role in ("guide", "judge"))
    assert guide and judge and not guide & judge
    assert len(judge) / len(guide | judge) >= 1 / 3


def test_a_source_has_the_role_that_it_was_given_once() -> None:
    assert (role_of("steps", "llm-foundry"), role_of("steps", "internevo")) == ("guide", "judge")
    assert role_of("steps", "a source that arrived today") == "new"


@pytest.mark.parametrize("source", ["internevo", "a source that arrived today"])
def test_nothing_is_fitted_to_sources_that_only_judge(source: str) -> None:
    rows = [run("llm-foundry", 0.1), run(source, 0.1)]
    with pytest.raises(ValueError, match="nothing may be fitted"):
        guiding(rows)
    with pytest.raises(ValueError, match=source):
        fitted(rows)


def test_factors_leave_a_twentieth_of_the_guiding_runs_out_at_each_end() -> None:
    errors = [(n - 99.5) / 1000 for n in range(200)]
    low, high = fitted([run("llm-foundry", error) for error in errors])["language"]
    outside = [run("llm-foundry", error).within((low, high)) for error in errors].count(False)
    assert 18 <= outside <= 20
    assert low == pytest.approx(high, rel=0.02)


def test_figures_are_errors_of_the_forecast_relative_to_the_measurement() -> None:
    found = figures([run("llm-foundry", math.log(measured)) for measured in (0.8, 1.0, 1.25)])
    assert found.median == pytest.approx(20.0)
    assert found.mean == pytest.approx((25.0 + 0.0 + 20.0) / 3)
    assert found.bias == pytest.approx(0.0)
    assert found.inside == pytest.approx(1 / 3)
    assert found.width == pytest.approx(math.exp(0.4))


def test_a_group_is_judged_by_factors_of_the_others() -> None:
    rows = [run("llm-foundry", error) for error in (-0.1, 0.1)] + [run("simumax", error) for error in (-0.5, 0.5)]
    found = left_out(rows, "source")
    assert found["simumax"].inside == 0.0
    assert found["llm-foundry"].inside == 1.0


def test_the_shipped_prior_of_collectives_was_not_fitted_to_systems_that_judge() -> None:
    (model,) = learned_cost_model().collectives
    assert model.prior is not None
    assert len(model.prior.systems) > 30
    assert {role_of("collectives", system) for system in model.prior.systems} == {"guide"}
