"""How much of the interval of a step each unknown causes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from traincast import predict
from traincast.estimate import Estimates
from traincast.forecast import Forecast
from traincast.report.critical_path import critical_tasks
from traincast.report.doubt import BETWEEN, PARTS, SCALE, caused, doubt_of, part_of
from traincast.report.figures import uses_of
from traincast.simulate import simulate
from traincast.work import Collective, HostCopy, Launch, Transfer

GPT = "gpt:layers=4,hidden=1024,heads=16"


def shares_of(made: Forecast, estimates: Estimates, *, between: float) -> dict[str, float]:
    plan = made.lowered.plan
    return doubt_of(plan, estimates, uses_of(plan, critical_tasks(made.timeline)), others={BETWEEN: between})


@pytest.fixture(scope="module")
def made() -> Forecast:
    return predict(GPT, cluster="dgx-h100:2", strategy="dp=8,tp=2,zero=1", global_batch=32)


def test_shares_add_up_to_one_and_the_largest_comes_first(made: Forecast) -> None:
    shares = made.report.doubt
    assert sum(shares.values()) == pytest.approx(1.0, abs=1e-12)
    assert list(shares.values()) == sorted(shares.values(), reverse=True)
    assert set(shares) <= {*PARTS, BETWEEN, SCALE}
    assert shares[SCALE] == 0.0
    assert min(shares.values()) >= 0.0


def test_a_part_without_doubt_has_no_share(made: Forecast) -> None:
    estimates = made.estimates
    sure = np.array([part_of(work) == "products" for work in made.lowered.plan.works])
    known = replace(
        estimates,
        low=np.where(sure, estimates.seconds, estimates.low),
        high=np.where(sure, estimates.seconds, estimates.high),
    )
    shares = shares_of(made, known, between=0.5)
    assert shares["products"] == 0.0
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares[BETWEEN] == 0.5


def test_without_doubt_in_works_all_of_it_lies_between_sources(made: Forecast) -> None:
    known = replace(made.estimates, low=made.estimates.seconds, high=made.estimates.seconds)
    shares = shares_of(made, known, between=0.3)
    assert shares[BETWEEN] == 1.0
    assert sum(shares.values()) == 1.0


@pytest.mark.parametrize("strategy", ["dp=8,tp=2,zero=1", "dp=16,zero=3", "dp=2,tp=2,pp=4,num_microbatches=8", "tp=16"])
def test_the_path_is_the_step_and_no_step_with_other_times_is_shorter_than_it(strategy: str) -> None:
    made = predict(GPT, cluster="dgx-h100:2", strategy=strategy, global_batch=32)
    plan, estimates = made.lowered.plan, made.estimates
    on_path = uses_of(plan, critical_tasks(made.timeline))
    assert on_path @ plan.costs(estimates.seconds) == pytest.approx(made.timeline.step_s)
    for name in caused(plan, estimates, on_path):
        own = np.array([part_of(work) == name for work in plan.works])
        for end in (estimates.low, estimates.high):
            seconds = np.where(own, end, estimates.seconds)
            assert on_path @ plan.costs(seconds) <= simulate(plan, seconds).step_s * (1 + 1e-9)


def test_on_one_device_parts_cause_exactly_what_a_simulation_says() -> None:
    made = predict(GPT, cluster="dgx-h100:1x1", strategy="dp=1", global_batch=8)
    plan, estimates = made.lowered.plan, made.estimates
    alone = caused(plan, estimates, uses_of(plan, critical_tasks(made.timeline)))
    own = np.array([part_of(work) == "products" for work in plan.works])
    longer = simulate(plan, np.where(own, estimates.high, estimates.seconds)).step_s
    assert alone["products"] == pytest.approx(longer - made.timeline.step_s)


@pytest.mark.parametrize(
    ("work", "part"),
    [
        (Collective(kind="all_reduce", nbytes=1.0, num_ranks=8), "within_nodes"),
        (Collective(kind="all_reduce", nbytes=1.0, num_ranks=8, num_nodes=2), "between_nodes"),
        (Transfer(nbytes=1.0), "within_nodes"),
        (Transfer(nbytes=1.0, crosses_nodes=True), "between_nodes"),
        (Launch(kernels=1.0), "host"),
        (HostCopy(nbytes=1.0), "host"),
    ],
)
def test_works_belong_to_parts(work: Collective | Transfer | Launch | HostCopy, part: str) -> None:
    assert part_of(work) == part


def test_operators_are_products_attention_or_memory_bound(made: Forecast) -> None:
    found = {part_of(work) for work in made.lowered.plan.works}
    assert {"products", "attention", "memory_bound"} <= found


def test_more_devices_than_usual_have_a_share() -> None:
    few, many = (
        predict(GPT, cluster=f"dgx-h100:{nodes}", strategy=f"dp={8 * nodes}", global_batch=8 * nodes).report.doubt
        for nodes in (8, 64)
    )
    assert few[SCALE] == 0.0 < many[SCALE] < 1.0
    assert sum(many.values()) == pytest.approx(1.0)


def test_a_calibrated_step_doubts_its_cluster() -> None:
    report = predict(GPT, cluster="h100-sxm5-80gb-nanotron-ultrascale:2", strategy="dp=16", global_batch=32).report
    assert set(report.doubt) == {"repeats", "unfamiliar", "stalls"}
    assert sum(report.doubt.values()) == pytest.approx(1.0)
