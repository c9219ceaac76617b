"""The search from end to end, on problems of a second."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import AnalyticalCostModel, devices
from tests.searching.problems import CNN, DEEP, MOE, TINY
from traincast import Answer, RequestError, StrategyError, UnknownNameError, predict, search
from traincast.engines import local_engine
from traincast.forecast import forecast
from traincast.report.job import price_per_s
from traincast.searching.answer import PARTS
from traincast.searching.odds import odds
from traincast.searching.places import MEMORY_REACH
from traincast.searching.search import REACH, SEARCHERS
from traincast.strategy.prepare import need_only

FEW = "offload=none,recompute=none|full,cp=1,micro_batch<=4"


def found(model: str = TINY, **settings: Any) -> Answer:
    """A search with one worker and the analytical cost model."""
    usual: dict[str, Any] = {
        "cluster": devices(8),
        "global_batch": 16,
        "constraint": FEW,
        "engine": local_engine(1),
        "cost_model": AnalyticalCostModel(),
        "use_cache": True,
    }
    return search(model, **{**usual, **settings})


@cache
def usual() -> Answer:
    """The answer most tests read."""
    return found(searcher="exhaustive")


def test_the_fastest_of_all_that_fit_is_named_and_the_rest_is_in_the_order_of_expected_times() -> None:
    answer = usual()
    assert answer.best is answer.candidates[0]
    assert answer.fastest.report.step_s == pytest.approx(answer.columns.seconds.min(), rel=1e-6)
    assert (answer.counts.evaluated, answer.counts.behind) == (len(answer.columns), 0)
    assert answer.counts.feasible == np.isfinite(answer.columns.seconds).sum()
    assert len(answer.candidates) == 10
    times = [c.report.step_s * c.expected for c in answer.candidates]
    assert times[1:] == sorted(times[1:])
    assert answer.best.behind == 0.0
    for candidate in answer.candidates:
        assert candidate.report.fits
        assert candidate.behind == pytest.approx(candidate.report.step_s * candidate.expected / times[0] - 1.0)
        assert candidate.report.step_s == pytest.approx(
            forecast(candidate.request, cost_model=AnalyticalCostModel()).report.step_s
        )
        assert sum(candidate.shares.values()) == pytest.approx(1.0)
        assert candidate.limiter in PARTS


def test_a_search_states_the_interval_that_a_forecast_of_the_same_plan_states() -> None:
    for candidate in usual().candidates[:3]:
        alone = predict(
            TINY,
            cluster=devices(8),
            strategy=candidate.request.strategy,
            runtime=candidate.request.runtime.name,
            global_batch=16,
            cost_model=AnalyticalCostModel(),
            use_cache=True,
        )
        shown = candidate.report
        assert (alone.report.low_s, alone.report.high_s) == pytest.approx((shown.low_s, shown.high_s))


def test_the_answer_says_how_sure_it_is() -> None:
    answer = found(searcher="exhaustive", top=30)
    assert sum(c.chance for c in answer.candidates) == pytest.approx(1.0)
    assert answer.sure == answer.best.chance
    assert 0 < answer.sure <= 1
    assert not answer.best.tie
    assert answer.candidates[1].tie or answer.candidates[1].behind > 0.02


def test_no_two_candidates_are_the_same_strategy() -> None:
    answer = usual()
    assert len({c.strategy for c in answer.candidates}) == len(answer.candidates)
    assert len({c.strategy for c in answer.pareto}) == len(answer.pareto)


def test_the_front_has_nothing_that_another_one_beats() -> None:
    points = [(c.report.step_s, c.report.peak_memory_bytes) for c in usual().pareto]
    assert len(points) > 1
    assert points == sorted(points)
    memory = [bytes_ for _, bytes_ in points]
    assert memory == sorted(memory, reverse=True)
    assert points[0][0] == pytest.approx(usual().fastest.report.step_s, rel=1e-6)


def test_naive_choices_are_compared_with_the_best() -> None:
    names = [naive.name for naive in usual().naive]
    assert names[:2] == ["data parallel", "sharded data parallel (ZeRO-3)"]
    assert "tensor parallel in a node" in names
    assert "first that fits, by habit" in names
    for naive in usual().naive:
        assert (naive.candidate is None) <= bool(naive.reason)
        if naive.candidate:
            assert naive.candidate.behind >= -1e-6
            assert naive.to_dict()["candidate"]["strategy"] == str(naive.candidate.strategy)
    plain = next(n for n in usual().naive if n.name == "data parallel").candidate
    assert plain is not None
    assert (plain.strategy.dp, plain.strategy.zero) == (8, 0)


@pytest.mark.long(guard="test_naive_choices_are_compared_with_the_best")
def test_what_does_not_fit_naively_is_said() -> None:
    small = replace(devices(8), device=replace(devices(8).device, memory_bytes=3e9))
    answer = found(DEEP, cluster=small, global_batch=64, constraint="offload=none,cp=1,micro_batch<=2")
    assert all(c.report.peak_memory_bytes <= 3e9 for c in answer.candidates)
    for naive in answer.naive:
        if naive.candidate and not naive.candidate.report.fits:
            assert naive.reason == naive.candidate.report.verdict in ("does not fit", "may not fit")


def test_the_answer_as_plain_values_has_what_is_promised() -> None:
    told = usual().to_dict()
    assert {"evaluated", "feasible", "seconds", "best", "candidates", "pareto", "sure", "naive", "influence"} <= set(
        told
    )
    assert told["best"] == told["candidates"][0]
    assert {"step_s", "low_s", "high_s", "mfu", "peak_memory_bytes", "limiter", "strategy", "tie"} <= set(told["best"])
    assert told["searcher"] == "exhaustive"


@pytest.mark.long(but=1)
@pytest.mark.parametrize("searcher", [name for name in SEARCHERS if name != "exhaustive"])
def test_every_searcher_finds_the_best_of_a_small_space(searcher: str) -> None:
    answer = found(searcher=searcher)
    exact = usual().best.report.step_s
    assert answer.best.report.step_s <= exact * (1.05 if searcher == "annealing" else 1 + 1e-9)
    assert answer.best.report.step_s >= exact * (1 - 1e-9)


@pytest.mark.long(guard="test_every_searcher_finds_the_best_of_a_small_space")
def test_branch_and_bound_ranks_those_within_reach_as_the_exhaustive_search_does() -> None:
    bounded, whole = found(searcher="branch-and-bound", top=24), found(searcher="exhaustive", top=24)
    limit = whole.best.report.step_s * REACH
    plain = [c.strategy for c in whole.candidates if c.report.step_s < limit and c.strategy.recompute == "none"]
    there = [c.strategy for c in bounded.candidates]
    assert plain
    assert set(plain) <= set(there)
    assert bounded.counts.evaluated < whole.counts.evaluated


def test_the_answer_does_not_depend_on_the_workers() -> None:
    answer = found(searcher="exhaustive", engine=local_engine(2))
    assert [c.strategy for c in answer.candidates] == [c.strategy for c in usual().candidates]
    assert [c.strategy for c in answer.pareto] == [c.strategy for c in usual().pareto]
    assert answer.counts == replace(usual().counts, works=answer.counts.works)
    assert answer.influence == usual().influence
    assert answer.sure == usual().sure


def test_the_least_memory_is_counted() -> None:
    answer = found(objective="memory", searcher="exhaustive")
    near = answer.columns.seconds <= MEMORY_REACH * answer.columns.seconds.min()
    assert answer.best.report.peak_memory_bytes == pytest.approx(answer.columns.memory[near].min())
    assert need_only(answer.best.request).forecast == pytest.approx(answer.best.report.peak_memory_bytes)
    assert answer.sure == 1.0
    assert answer.best.chance == 1.0
    least = answer.best.report.peak_memory_bytes
    for candidate in answer.candidates[1:]:
        assert candidate.tie == (candidate.report.peak_memory_bytes <= least * (1 + 1e-9))


@pytest.mark.long(but=1)
@pytest.mark.parametrize("objective", ["cost", "energy"])
def test_on_one_cluster_the_cheapest_is_the_fastest(objective: str) -> None:
    answer = found(objective=objective, searcher="exhaustive")
    assert answer.best.report.step_s == pytest.approx(usual().best.report.step_s, rel=0.02)
    values = [c.expected * (c.cost if objective == "cost" else c.energy_j) for c in answer.candidates]
    assert values[1:] == sorted(values[1:])


def test_of_several_clusters_the_cheapest_within_the_deadline_is_chosen() -> None:
    choices: dict[str, Any] = {"cluster": "dgx-a100", "nodes": (1, 2), "steps": 1_000_000, "global_batch": 1024}
    limits = "offload=none,recompute=none,cp=1,pp=1,tp=1,zero=0|1,micro_batch=4|8"
    fast = found(objective="time", constraint=limits, **choices)
    cheap = found(objective="cost", constraint=limits, **choices)
    assert {r.cluster.num_nodes for r in cheap.requests} == {1, 2}
    assert cheap.best.cost <= fast.best.cost * (1 + 1e-9)
    assert fast.best.job is not None
    assert cheap.best.job is not None
    assert fast.best.job.job_s <= cheap.best.job.job_s * (1 + 1e-9)
    assert (fast.best.request.cluster.num_nodes, cheap.best.request.cluster.num_nodes) == (2, 1)
    between = 0.5 * (fast.best.job.job_s + cheap.best.job.job_s)
    hurried = found(objective="cost", constraint=limits, deadline_s=between, confidence=0.5, **choices)
    assert hurried.best.job is not None
    assert hurried.best.job.job_s <= between
    assert hurried.best.cost >= cheap.best.cost * (1 - 1e-9)
    assert [place.status for place in hurried.places] == ["late", "ok"]
    poor = found(objective="time", constraint=limits, budget=cheap.best.cost * 1.1, confidence=0.5, **choices)
    assert poor.best.cost <= cheap.best.cost * 1.1
    assert poor.best.in_budget is not None
    assert poor.best.in_budget >= 0.5


@pytest.mark.long(guard="test_of_several_clusters_the_cheapest_within_the_deadline_is_chosen")
def test_a_budget_leaves_what_it_pays_for() -> None:
    answer = found(steps=1000, budget=1e9)
    assert answer.best.job is not None
    assert answer.best.in_budget == pytest.approx(1.0)
    assert answer.best.in_time is None
    least = min(c.cost for c in answer.candidates)
    with pytest.raises(
        StrategyError, match=r"no strategy meets the budget of \$\S+ with a chance of 80%: the nearest, "
    ) as poor:
        found(steps=1000, budget=least / 1000)
    assert "deadline" not in str(poor.value)
    with pytest.raises(StrategyError, match="no strategy meets the deadline of 1 ms with a chance of 80%: ") as late:
        found(steps=1000, deadline_s=1e-3)
    assert "budget" not in str(late.value)
    with pytest.raises(StrategyError, match="no strategy meets the deadline of 1 ms and the budget of "):
        found(steps=1000, deadline_s=1e-3, budget=least / 1000)


@pytest.mark.parametrize("limit", [{"deadline_s": 10.0}, {"budget": 10.0}])
def test_a_limit_needs_the_length_of_the_job(limit: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="give its length in tokens, samples or steps"):
        found(**limit)


@pytest.mark.long(but=1)
@pytest.mark.parametrize("limit", ["deadline_s", "budget"])
def test_what_a_job_does_beside_its_steps_counts_within_its_limits(limit: str) -> None:
    free = found(steps=5000)
    assert free.best.job is not None
    steps_s = free.best.report.step_s * 5000
    spent = steps_s if limit == "deadline_s" else steps_s * price_per_s(free.best.request.cluster)
    allowed: dict[str, Any] = {limit: spent * 1.001}
    likely = odds(free.best.report.step_s, free.best.report.low_s, free.best.report.high_s, calibrated=False)
    with pytest.raises(StrategyError, match="the nearest, "):
        found(steps=5000, **allowed, confidence=likely.chance(free.best.report.step_s) * 0.99)


def test_nothing_fits_is_told_with_the_leanest() -> None:
    with pytest.raises(StrategyError) as caught:
        found(constraint=f"{FEW},memory<=10MB")
    told = str(caught.value)
    assert told.startswith("no strategy fits: the leanest of ")
    assert "needs " in told
    assert "9.5 MiB there are" in told
    assert "\n" not in told


def test_what_fits_by_its_forecast_and_not_with_its_margin_is_told_so() -> None:
    leanest = found(constraint=FEW, objective="memory").best.report.peak_memory_bytes
    full = replace(devices(8), device=replace(devices(8).device, memory_bytes=1.01 * leanest))
    with pytest.raises(StrategyError, match=r"may not fit: .* available with \d\d %; 85 % is required"):
        found(constraint=FEW, cluster=full)


def test_no_legal_strategy_is_told() -> None:
    with pytest.raises(StrategyError, match="no legal strategy: no mesh of these devices divides the global batch"):
        found(global_batch=7, constraint="tp=1,pp=1,cp=1")


@pytest.mark.parametrize(
    ("settings", "kind", "said"),
    [
        ({"objective": "fame"}, UnknownNameError, "unknown objective 'fame'"),
        ({"searcher": "luck"}, UnknownNameError, "unknown searcher 'luck'"),
        ({"top": 0}, RequestError, "top 0"),
        ({"global_batch": 0}, RequestError, "global batch 0: expected a whole number"),
        ({"constraint": "tp<<2"}, RequestError, "constraint 'tp<<2'"),
        ({"nodes": (1, 2), "cluster": "dgx-a100+dgx-h100"}, RequestError, "has nodes of several kinds"),
    ],
)
def test_wrong_requests_are_told(settings: dict[str, Any], kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=None) as caught:
        found(**settings)
    assert said in str(caught.value)


def test_candidates_that_are_not_accepted_are_left_out() -> None:
    answer = found(accepts=lambda request: request.strategy.pp == 1)
    assert {c.strategy.pp for c in (*answer.candidates, *answer.pareto)} == {1}
    with pytest.raises(StrategyError, match="the given filter accepted none of the strategies"):
        found(accepts=lambda request: False)


def test_top_says_how_many() -> None:
    answer = found(top=1)
    assert len(answer.candidates) == 1
    assert len(answer.pareto) > 1


def test_progress_counts_up_to_all_parts() -> None:
    steps: list[tuple[int, int]] = []
    found(progress=lambda *at: steps.append(at), searcher="exhaustive")
    assert [done for done, _ in steps] == list(range(1, len(steps) + 1))
    assert steps[-1][0] == steps[-1][1]
    bounded: list[tuple[int, int]] = []
    found(progress=lambda *at: bounded.append(at), searcher="branch-and-bound")
    assert all(done <= total for done, total in bounded)
    assert bounded[-1][0] <= bounded[-1][1]


@pytest.mark.long(guard="test_the_fastest_of_all_that_fit_is_named_and_the_rest_is_in_the_order_of_expected_times")
def test_a_cnn_and_experts_are_searched_too() -> None:
    cnn = found(CNN, cluster=devices(4), runtime="pytorch", constraint="recompute=none|full,offload=none")
    assert cnn.best.report.step_s > 0
    moe = found(MOE, constraint="offload=none,recompute=none,zero=0|1,micro_batch<=4,cut=even")
    assert {int(ep) for ep in moe.columns.ep} == {1, 2, 4, 8}


@pytest.mark.long(guard="test_the_fastest_of_all_that_fit_is_named_and_the_rest_is_in_the_order_of_expected_times")
def test_unlike_nodes_are_searched() -> None:
    answer = found(cluster="dgx-a100:1+dgx-h100:1", constraint=f"{FEW},zero=1,schedule=1f1b")
    assert answer.best.report.num_devices == 16


@pytest.mark.long(guard="searching/test_journal.py::test_a_search_that_is_stopped_goes_on_where_it_was")
def test_a_search_with_a_folder_leaves_its_parts_there(tmp_path: Path) -> None:
    first = found(resume=tmp_path, searcher="exhaustive")
    (path,) = tmp_path.iterdir()
    assert path.read_bytes().count(b"\n") > 2
    second = found(resume=tmp_path, searcher="exhaustive")
    assert [c.strategy for c in second.candidates] == [c.strategy for c in first.candidates]
    assert math.isclose(second.sure, first.sure)


@pytest.mark.parametrize("chance", [0.0, 1.0, -0.5, math.nan])
def test_a_chance_that_is_none_is_refused(chance: float) -> None:
    with pytest.raises(RequestError, match="expected a chance between 0 and 1"):
        found(steps=10, deadline_s=1.0, confidence=chance)


@pytest.mark.parametrize("limit", [{"deadline_s": 0.0}, {"budget": -1.0}, {"deadline_s": math.nan}])
def test_a_limit_of_nothing_is_refused(limit: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="expected more than 0"):
        found(steps=10, **limit)
