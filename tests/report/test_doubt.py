"""How much of the interval of a step each unknown causes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from traincast import predict
from traincast.forecast import Forecast
from traincast.report.doubt import BETWEEN, PARTS, caused, doubt_of, part_of
from traincast.simulate import interval
from traincast.work import Collective, HostCopy, Launch, Transfer

GPT = "gpt:layers=4,hidden=1024,heads=16"


@pytest.fixture(scope="module")
def made() -> Forecast:
    return predict(GPT, cluster="dgx-h100:2", strategy="dp=8,tp=2,zero=1", global_batch=32)


def test_shares_add_up_to_one_and_the_largest_comes_first(made: Forecast) -> None:
    shares = made.report.doubt
    assert sum(shares.values()) == pytest.approx(1.0, abs=1e-12)
    assert list(shares.values()) == sorted(shares.values(), reverse=True)
    assert set(shares) <= {*PARTS, BETWEEN}
    assert min(shares.values()) >= 0.0


def test_a_part_without_doubt_has_no_share(made: Forecast) -> None:
    estimates = made.estimates
    sure = np.array([part_of(work) == "products" for work in made.lowered.plan.works])
    known = replace(
        estimates,
        low=np.where(sure, estimates.seconds, estimates.low),
        high=np.where(sure, estimates.seconds, estimates.high),
    )
    shares = doubt_of(made.lowered.plan, known, between=0.5)
    assert shares["products"] == 0.0
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares[BETWEEN] == 0.5


def test_without_doubt_in_works_all_of_it_lies_between_sources(made: Forecast) -> None:
    known = replace(made.estimates, low=made.estimates.seconds, high=made.estimates.seconds)
    shares = doubt_of(made.lowered.plan, known, between=0.3)
    assert shares[BETWEEN] == 1.0
    assert sum(shares.values()) == 1.0


def test_no_part_alone_causes_more_than_all_together(made: Forecast) -> None:
    low, high = interval(made.lowered.plan, made.estimates)
    alone = caused(made.lowered.plan, made.estimates)
    assert 0.0 <= max(alone.values()) <= math.log(high / low) + 1e-9


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


def test_a_calibrated_step_doubts_its_cluster() -> None:
    report = predict(GPT, cluster="h100-sxm5-80gb-nanotron-ultrascale:2", strategy="dp=16", global_batch=32).report
    assert set(report.doubt) == {"repeats", "unfamiliar", "stalls"}
    assert sum(report.doubt.values()) == pytest.approx(1.0)
