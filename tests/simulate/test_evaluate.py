"""The evaluator says what the simulation says, for any seconds."""

from __future__ import annotations

import numpy as np
import pytest

from tests.conftest import GPT, LLAMA, request_of, seconds_of
from traincast.simulate import Evaluator, simulate
from traincast.strategy import lower

STRATEGIES = [
    "dp=4",
    "dp=2,tp=2,sp,zero=1",
    "pp=4,num_microbatches=8",
    "dp=2,pp=2,num_microbatches=4,schedule=zb-h1",
    "pp=2,vp=2,num_microbatches=4,schedule=interleaved,zero=0",
    "dp=4,zero=3,num_microbatches=2",
    "dp=2,cp=2,context=ring",
    "dp=4,compression=0.1,offload=optimizer+activations",
]


@pytest.mark.long(but=6)
@pytest.mark.parametrize("runtime", ["pytorch", "megatron-bridge"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_it_equals_the_simulation(strategy: str, runtime: str) -> None:
    request = request_of(strategy, model=LLAMA, runtime=runtime)
    plan = lower(request).plan
    seconds = seconds_of(plan, request)
    evaluate = Evaluator(plan)
    random = np.random.default_rng(0)
    for _ in range(5):
        changed = seconds * random.lognormal(0.0, 0.5, len(seconds))
        assert evaluate(changed) == pytest.approx(simulate(plan, changed).step_s, rel=1e-12)


def test_an_operator_grain_plan_works_as_well() -> None:
    request = request_of("dp=2,pp=2,num_microbatches=2", model=GPT)
    plan = lower(request, grain="operator").plan
    seconds = seconds_of(plan, request)
    assert Evaluator(plan)(seconds) == pytest.approx(simulate(plan, seconds).step_s, rel=1e-12)
