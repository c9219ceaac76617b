"""The search among several clusters, deadlines and budgets."""

from __future__ import annotations

from typing import Any

import pytest

from tests.searching.test_search import found
from traincast import StrategyError
from traincast.searching.odds import odds
from traincast.searching.search import REACH
from traincast.units import format_bytes

SIMPLE = "offload=none,recompute=none,cp=1,pp=1,zero=0|1,micro_batch<=4"


def test_a_deadline_is_met_with_the_chance_asked_for() -> None:
    """The same job and deadline: enough for a chance of 70 %, not for one of 90 %."""
    simple = SIMPLE.replace("zero=0|1", "zero=0")
    free = found(constraint=simple, steps=10_000_000)
    report = free.best.report
    likely = odds(report.step_s, report.low_s, report.high_s, calibrated=False)
    assert free.best.job is not None
    deadline = free.best.job.job_s * likely.quantile(0.8) / report.step_s
    answer = found(constraint=simple, steps=10_000_000, deadline_s=deadline, confidence=0.7)
    assert answer.best.in_time == pytest.approx(0.8, abs=0.01)
    assert all(c.in_time is not None and c.in_time >= 0.7 for c in answer.candidates)
    with pytest.raises(
        StrategyError, match="meets the deadline with a chance of 80%; with a chance of 90% it ends within "
    ) as late:
        found(constraint=simple, steps=10_000_000, deadline_s=deadline, confidence=0.9)
    assert f"the nearest, {free.best.strategy} on 1 × " in str(late.value)
    assert "too late" in str(late.value)


def test_every_cluster_says_what_became_of_it() -> None:
    """Two that fit, one whose memory is too small, one that has no tensor group as wide as asked for."""
    limits = "offload=none,recompute=none,cp=1,pp=1,zero=0,micro_batch<=2,tp>=2"
    free = found(constraint=limits, cluster="dgx-a100", nodes=(1, 2), global_batch=32, steps=10_000)
    assert [place.status for place in free.places] == ["ok", "ok"]
    assert sum(place.chance for place in free.places) == pytest.approx(1.0)
    for place, told in zip(free.places, free.to_dict()["clusters"], strict=True):
        here = free.columns.seconds[free.columns.cluster == free.places.index(place)]
        assert place.best is not None
        assert place.best.report.step_s == pytest.approx(here.min(), rel=1e-6)
        assert (told["cluster"], told["num_nodes"]) == ("dgx-a100", place.request.cluster.num_nodes)
        assert (told["status"], told["best"]["strategy"]) == ("ok", str(place.best.strategy))
        assert (told["evaluated"], told["feasible"]) == (len(here), len(here))
    slow, fast = (place.best for place in free.places)
    assert slow is not None and slow.job is not None and fast is not None and fast.job is not None
    assert fast.job.job_s < slow.job.job_s
    hurried = found(
        constraint=limits, cluster="dgx-a100", nodes=(1, 2), global_batch=32, steps=10_000, objective="cost",
        deadline_s=0.5 * (fast.job.job_s + slow.job.job_s), confidence=0.25,
    )  # fmt: skip
    late = hurried.places[0]
    assert (late.status, late.chance, hurried.places[1].status) == ("late", 0.0, "ok")
    assert late.best is not None and late.best.in_time is not None and late.best.in_time < 0.25
    assert late.reason.startswith("forecast to take ")
    assert late.reason.endswith(f"with a chance of {late.best.in_time:.0%}")


@pytest.mark.long(but=1)
@pytest.mark.parametrize("searcher", ["exhaustive", "branch-and-bound"])
def test_a_cluster_that_is_far_behind_still_has_its_best(searcher: str) -> None:
    """A pair of devices takes many times what eight nodes do: of neither is it said that nothing fits."""
    answer = found(
        searcher=searcher, cluster="dgx-a100", devices=("dgx-a100", "pcie-v100"), nodes=(1,), global_batch=64,
        constraint=SIMPLE, precision="fp16",
    )  # fmt: skip
    near, far = answer.places
    assert (near.status, far.status) == ("ok", "ok")
    assert far.best is not None
    assert far.best.behind > REACH - 1.0
    assert far.feasible > 0
    assert answer.to_dict()["clusters"][1]["best"]["step_s"] == far.best.report.step_s


def test_a_cluster_that_a_constraint_leaves_nothing_of_is_not_legal() -> None:
    answer = found(cluster="dgx-a100:1x2", nodes=(1, 2), constraint=f"{SIMPLE},tp=4", global_batch=8)
    assert [place.status for place in answer.places] == ["not legal", "ok"]
    assert answer.places[0].reason == "no value of tp is left: this model, cluster and batch allow 1, 2"
    assert answer.places[0].best is None
    assert answer.best.request.cluster.num_nodes == 2


def test_a_cluster_whose_memory_is_too_small_says_what_is_missing() -> None:
    """States that two nodes share out do not fit on one, with the same memory."""
    limits = "tp=1,pp=1,cp=1,zero=3,offload=none,recompute=none,micro_batch=1"
    choice: dict[str, Any] = {"cluster": "dgx-a100", "nodes": (1, 2)}
    free = found(constraint=limits, **choice)
    least = [free.columns.memory[free.columns.cluster == number].min() for number in (0, 1)]
    assert least[1] < least[0]
    answer = found(constraint=f"{limits},memory<={sum(least) / 2 / 1e6:.6f}MB", **choice)
    lacks, fits = answer.places
    assert (lacks.status, fits.status) == ("does not fit", "ok")
    assert lacks.reason.startswith(
        f"the leanest of 1, dp=8,num_microbatches=2,zero=3, needs {format_bytes(least[0])} per "
    )
    assert lacks.reason.endswith(f"device of the {format_bytes(sum(least) / 2)} there are")
    assert (lacks.best, lacks.evaluated, lacks.feasible, lacks.chance) == (None, 1, 0, 0.0)
