"""Many strategies, schedules, runtimes and precisions on two small models: each runs soundly, or is refused well."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from tests.conftest import GPT, LLAMA, check_timeline, request_of
from traincast.errors import StrategyError, UnknownNameError
from traincast.forecast import forecast
from traincast.strategy import PRECISIONS, runtime_names

DEGREES = [
    "dp=1",
    "dp=2",
    "dp=4,tp=2",
    "dp=3",
    "tp=4",
    "tp=3",
    "tp=16",
    "dp=2,tp=2,pp=2",
    "pp=2",
    "pp=4",
    "pp=8",
    "dp=2,pp=4",
    "cp=2",
    "cp=3",
    "dp=2,cp=2,tp=2",
    "cp=2,pp=2",
    "dp=16",
    "dp=32",
]
SCHEDULES = ["schedule=1f1b", "schedule=gpipe", "schedule=interleaved,vp=2", "vp=2", "schedule=gpipe,vp=2"]
MICROBATCHES = ["num_microbatches=1", "num_microbatches=4", "micro_batch=1", "num_microbatches=3"]
REST = ["", "zero=1", "zero=2", "zero=3", "sp", "sp,zero=1", "recompute=full", "recompute=selective,zero=1", "ep=2"]
ALL = [
    parts
    for parts in itertools.product(DEGREES, SCHEDULES, MICROBATCHES, REST, sorted(PRECISIONS))
    if ("pp=" in parts[0] or parts[1] == SCHEDULES[0]) and ("tp=" in parts[0] or "sp" not in parts[3])
]
PER_CASE = 48


def sample(model: str, runtime: str) -> list[tuple[str, str]]:
    """Some of all combinations, the same in every run."""
    chosen = random.Random(f"{model} {runtime}").sample(ALL, PER_CASE)
    return [(",".join(filter(None, parts[:-1])), parts[-1]) for parts in chosen]


def runs(strategy: str, *, model: str, runtime: str, precision: str) -> bool:
    """Whether ``strategy`` runs; asserts that it does so soundly, or is refused as it should be."""
    try:
        made = forecast(
            request_of(
                strategy, model=model, runtime=runtime, precision=precision, global_batch=24 if "3" in strategy else 32
            )
        )
    except (StrategyError, UnknownNameError) as error:
        message = str(error)
        assert "\n" not in message
        assert any(c.isdigit() for c in message)
        return False
    report = made.report
    assert math.isfinite(report.step_s)
    assert 0 < report.low_s <= report.step_s <= report.high_s
    assert 0 < report.mfu < 1
    check_timeline(made.timeline)
    for rank in report.ranks:
        parts = rank.breakdown
        assert min(parts.compute_s, parts.exposed_communication_s, parts.bubble_s, parts.overhead_s) >= 0
        assert parts.total_s == pytest.approx(report.step_s, rel=1e-9)
        assert min(rank.memory.as_dict().values()) >= 0
        assert math.isfinite(rank.memory.total)
    assert report.peak_memory_bytes == max(r.memory.total for r in report.ranks)
    assert sum(report.estimated_by.values()) == pytest.approx(1.0, rel=1e-9)
    assert sum(e.share for e in report.critical_path) <= 1 + 1e-9
    return True


@pytest.mark.parametrize("model", [GPT, LLAMA])
@pytest.mark.parametrize("runtime", runtime_names())
def test_a_strategy_runs_soundly_or_is_refused_with_its_numbers(model: str, runtime: str) -> None:
    outcomes = [runs(s, model=model, runtime=runtime, precision=p) for s, p in sample(model, runtime)]
    # Somewhat less than half of all combinations make sense; the sample must hold plenty of both sorts.
    assert outcomes.count(True) >= PER_CASE // 6
    assert outcomes.count(False) >= PER_CASE // 4


@pytest.mark.parametrize("precision", sorted(PRECISIONS))
@pytest.mark.parametrize("strategy", ["dp=2,zero=1", "tp=2,sp", "pp=2,num_microbatches=4", "dp=2,cp=2", "dp=2,zero=3"])
def test_every_precision_runs_with_every_way_to_spread(precision: str, strategy: str) -> None:
    assert runs(strategy, model=LLAMA, runtime="megatron", precision=precision)


def test_a_narrower_dtype_is_not_slower() -> None:
    def step(precision: str) -> float:
        model = "gpt:layers=4,hidden=2048,heads=16,vocab=1000,seq=1024"
        return forecast(request_of("dp=1", model=model, precision=precision, global_batch=4)).report.step_s

    assert step("fp32") > step("tf32") > step("bf16")
