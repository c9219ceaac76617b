"""Two grains and two foldings, one answer: segments or operators, one row per stage or one per rank."""

from __future__ import annotations

import pytest

from tests.conftest import CNN, GPT, LLAMA, check_timeline, request_of, run

STRATEGIES = [
    "dp=1",
    "dp=1,num_microbatches=4",
    "dp=4",
    "dp=4,zero=1,num_microbatches=2",
    "dp=4,zero=2",
    "dp=4,zero=3",
    "dp=4,zero=3,num_microbatches=2,recompute=full",
    "tp=4",
    "tp=4,sp",
    "tp=2,sp,recompute=selective",
    "dp=2,tp=2,sp,zero=1",
    "dp=2,tp=2,zero=3",
    "cp=2",
    "dp=2,cp=2,tp=2,sp,zero=1",
    "dp=2,cp=2,zero=3",
    "pp=4,num_microbatches=8",
    "pp=4,num_microbatches=8,schedule=gpipe",
    "pp=2,vp=2,num_microbatches=4,schedule=interleaved",
    "pp=2,num_microbatches=4,recompute=full",
    "dp=2,pp=2,num_microbatches=4,zero=1",
    "dp=2,tp=2,pp=2,num_microbatches=4,sp,zero=1,recompute=selective",
    "dp=2,cp=2,pp=2,vp=2,num_microbatches=4,zero=1",
]
RUNTIMES = ["pytorch", "megatron", "nanotron", "fsdp"]
CASES = [(GPT, s, RUNTIMES[i % len(RUNTIMES)]) for i, s in enumerate(STRATEGIES)]
CASES += [(LLAMA, s, RUNTIMES[(i + 1) % len(RUNTIMES)]) for i, s in enumerate(STRATEGIES)]
CASES += [(GPT, s, "gloo") for s in STRATEGIES]
CASES += [
    (CNN, s, "pytorch") for s in ("dp=4", "dp=4,zero=3", "pp=2,num_microbatches=4", "dp=2,pp=2,num_microbatches=2")
]


@pytest.mark.parametrize(("model", "strategy", "runtime"), CASES)
def test_segments_and_operators_give_the_same_step(model: str, strategy: str, runtime: str) -> None:
    request = request_of(strategy, model=model, runtime=runtime)
    _, coarse = run(request, grain="segment")
    _, fine = run(request, grain="operator")
    assert fine.plan.num_tasks > coarse.plan.num_tasks
    assert coarse.step_s == pytest.approx(fine.step_s, rel=1e-9)
    check_timeline(coarse)
    check_timeline(fine)


@pytest.mark.parametrize("grain", ["segment", "operator"])
@pytest.mark.parametrize(("model", "strategy", "runtime"), CASES[:: 2 if len(CASES) % 2 else 3])
def test_folded_and_expanded_plans_agree_to_the_last_digit(model: str, strategy: str, runtime: str, grain: str) -> None:
    request = request_of(strategy, model=model, runtime=runtime)
    lowered, folded = run(request, grain=grain)
    _, expanded = run(request, grain=grain, all_ranks=True)
    assert expanded.step_s == folded.step_s
    assert list(expanded.plan.ranks) == list(range(request.strategy.num_ranks))
    assert len(lowered.plan.ranks) == request.strategy.pp
    check_timeline(expanded)
