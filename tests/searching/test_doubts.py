"""Techniques that no measured run near a strategy has used: how they are counted, and what a search makes of them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.searching.problems import asked
from tests.searching.test_search import found, usual
from traincast.evidence import support
from traincast.searching.doubts import EXPECTED, TECHNIQUE, Doubts, lacking
from traincast.searching.problem import Best
from traincast.searching.sureness import median_regrets, regrets
from traincast.strategy import Request


def gpt3(strategy: str) -> Request:
    return asked(strategy, model="gpt3-175b", cluster="dgx-a100:128", batch=1536)


def test_the_mean_of_a_techniques_factor_is_what_draws_have() -> None:
    drawn = np.exp(TECHNIQUE * np.abs(np.random.default_rng(0).normal(size=200_000)))
    assert pytest.approx(drawn.mean(), rel=2e-3) == EXPECTED
    assert EXPECTED > 1.1


@pytest.mark.parametrize(
    ("strategy", "without"),
    [
        ("dp=16,tp=8,pp=8,num_microbatches=96,zero=1,sequence_parallel", ()),
        ("dp=512,cp=2,zero=3,offload=activations", ("cp", "offload=activations")),
        ("dp=16,tp=8,pp=8,num_microbatches=96,schedule=zb-v", ("schedule=zb-v",)),
    ],
)
def test_what_no_run_near_gpt3_has_used_is_named(strategy: str, without: tuple[str, ...]) -> None:
    request = gpt3(strategy)
    assert lacking(Doubts(request).of(request.strategy)) == without


def test_techniques_are_those_of_the_evidence_of_a_forecast() -> None:
    request = gpt3("dp=64,tp=4,pp=4,num_microbatches=24,zero=1,sequence_parallel,recompute=full,offload=optimizer")
    told = {each.technique: each.runs for each in Doubts(request).of(request.strategy)}
    assert told == {each.technique: each.runs for each in support(request)}


def test_rows_are_counted_as_single_strategies_are() -> None:
    answer = usual()
    doubts = Doubts(answer.requests[0])
    counted = doubts.counted(answer.columns)
    for row in range(0, len(answer.columns), 37):
        strategy = answer.columns.strategy(row, answer.requests[0].strategy)
        assert counted[row] == len(lacking(doubts.of(strategy)))


def test_a_calibrated_cluster_judges_meshes_itself() -> None:
    plain = asked("dp=4,tp=2", model="llama3-8b", cluster="dgx-h100:1", batch=8)
    known = asked("dp=4,tp=2", model="llama3-8b", cluster="h100-sxm5-80gb-nanotron-ultrascale:1", batch=8)
    assert "tp" in {each.technique for each in Doubts(plain).of(plain.strategy)}
    assert known.cluster.calibration is not None
    assert "tp" not in {each.technique for each in Doubts(known).of(known.strategy)}


def test_a_model_that_nothing_was_measured_near_has_no_doubted_technique() -> None:
    model = "gpt:layers=2,hidden=32,heads=2,vocab=64,seq=32"
    tiny = asked("dp=2,tp=2,pp=2,num_microbatches=8", model=model, cluster="dgx-a100:1", batch=16)
    assert Doubts(tiny).of(tiny.strategy) == ()


def test_the_first_has_evidence_unless_nothing_with_evidence_fits() -> None:
    answer = usual()
    assert answer.fastest.marked
    assert not answer.best.marked
    assert answer.reason == ""
    assert answer.with_evidence is not None
    assert answer.with_evidence.strategy == answer.best.strategy
    forced = found(constraint="pp=2,offload=none,recompute=none,cp=1", searcher="exhaustive")
    assert forced.best.marked
    assert forced.with_evidence is None
    assert "no strategy fits" in forced.reason
    assert {each["technique"] for each in forced.best.to_dict()["evidence"] if not each["runs"]} >= {"pp"}


def test_robust_compares_losses_and_says_what_is_at_risk() -> None:
    answer = found(objective="robust", searcher="exhaustive")
    assert answer.objective == "robust"
    assert all(c.regret is not None and c.regret >= 0.0 for c in answer.candidates)
    assert not answer.best.marked
    assert answer.to_dict()["best"]["regret"] == answer.best.regret


def test_regret_is_nothing_for_what_is_always_best() -> None:
    drawn = np.array([[1.0, 2.0], [3.0, 3.3]])
    assert regrets(drawn).tolist() == pytest.approx([0.0, (1.0 + 0.1) / 2])
    three = np.array([[1.0, 2.0], [1.0, 1.3], [2.0, 1.0]])
    assert median_regrets(three).tolist() == pytest.approx([0.0, 0.3])


def test_what_is_worth_finding_depends_on_evidence() -> None:
    best = Best(fastest_s=10.0, expected_s=12.0, evident_s=13.0)
    assert best.most_s(1.1, 1.0) == pytest.approx(14.3)
    assert best.most_s(1.1, 1.2) == pytest.approx(11.0)
    assert best.most_s(1.1, 2.0) == 10.0
    assert Best(10.0, 12.0).most_s(1.1, 1.0) == pytest.approx(26.4)
    assert math.isinf(Best().most_s(1.1, 1.0))
    assert best.least(Best(11.0, 11.0, 11.0)) == Best(10.0, 11.0, 11.0)


def test_branch_and_bound_finds_the_fastest_and_the_best_with_evidence() -> None:
    whole, cut = usual(), found(searcher="branch-and-bound")
    assert cut.fastest.report.step_s == pytest.approx(whole.fastest.report.step_s, rel=1e-6)
    assert whole.with_evidence is not None
    assert cut.with_evidence is not None
    assert cut.with_evidence.report.step_s == pytest.approx(whole.with_evidence.report.step_s, rel=1e-6)
    assert cut.best.strategy == whole.best.strategy
