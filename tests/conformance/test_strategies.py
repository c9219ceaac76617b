"""Ways to spread × schedules × options × runtimes × precisions: each runs soundly, or is refused in one line.

The whole product has millions of combinations. A fixed sample runs here; ``python -m benchmarks.conformance`` walks as
many of them as wanted.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pytest

from tests.conftest import CNN, GPT, LLAMA, AnalyticalCostModel, CostModel, check_timeline, request_of
from traincast import Forecast, StrategyError, Timeline, UnknownNameError
from traincast.forecast import forecast
from traincast.simulate import expand, simulate
from traincast.strategy import PRECISIONS, SCHEDULES, Category, lower, runtime_names

MOE: Final = "moe:layers=4,hidden=256,heads=8,kv_heads=4,experts=8,top_k=2,expert_ffn=512,vocab=1000,seq=128"
MODELS: Final = {"gpt": GPT, "llama": LLAMA, "moe": MOE}

DEGREES = ["dp=1", "dp=3", "dp=4", "dp=16", "tp=3", "tp=4", "cp=3", "cp=4", "dp=2,tp=2", "dp=2,cp=2,tp=2"]
PIPELINES = ["pp=2", "pp=4", "pp=8", "dp=2,pp=2", "tp=2,pp=2", "dp=2,tp=2,pp=2", "dp=2,cp=2,pp=2", "dp=4,pp=4"]
ORDERS = [f"schedule={name}" for name in SCHEDULES]
ORDERS += [f"schedule={name},vp=2" for name in ("1f1b", "interleaved", "breadth-first", "gpipe", "zb-v")]
SPREADS = [*DEGREES, *(f"{degrees},{order}" for degrees in PIPELINES for order in ORDERS)]
MICROBATCHES = ["num_microbatches=1", "num_microbatches=8", "micro_batch=1", "num_microbatches=3"]
OPTIONS = [
    "",
    "zero=1",
    "zero=2",
    "zero=3",
    "zero=1,shard=2",
    "zero=2,shard=2,sync_each",
    "zero=3,shard=2",
    "zero=3,reshard=false",
    "zero=3,prefetch=0",
    "zero=3,prefetch=2,reshard=false",
    "sp",
    "sp,zero=1",
    "sp,zero=3,recompute=full",
    "context=ring",
    "context=ring,zero=1",
    "recompute=full",
    "recompute=selective,zero=1",
    "recompute=full,recompute_every=2",
    "offload=optimizer",
    "offload=activations",
    "offload=optimizer+activations,zero=2",
    "compression=0.1",
    "compression=0.1,zero=3",
    "sync_each",
    "layers=1/3",
    "layers=1/1/1/1",
    "layers=1/2/1/0,zero=1",
    "ep=2",
    "ep=2,imbalance=1.5",
    "ep=4,imbalance=2,capacity=1.25,zero=1",
    "ep=2,zero=3",
    "ep=3",
    "ep=2,etp=2",
    "ep=2,recompute=full",
    "sp,ep=2,etp=2",
    "sp,ep=4,zero=2,shard=2",
    "sp,etp=1",
]
SETTINGS: Final = sorted({item.partition("=")[0] for option in OPTIONS for item in option.split(",") if item})
PER_RUNTIME: Final = 36


@dataclass(frozen=True, slots=True)
class Combination:
    """One way to train one of the models."""

    model: str
    strategy: str
    runtime: str
    precision: str

    @property
    def settings(self) -> dict[str, str]:
        """What the strategy says, by name."""
        parts = (item.partition("=") for item in self.strategy.split(","))
        return {name: value for name, _, value in parts}

    @property
    def schedule(self) -> str:
        """The name of the schedule; none without a pipeline."""
        return self.settings.get("schedule", "none")


def product() -> list[Sequence[str]]:
    """What the whole product is made of: models, ways to spread, microbatches, options, runtimes, precisions."""
    return [list(MODELS), SPREADS, MICROBATCHES, OPTIONS, runtime_names(), sorted(PRECISIONS)]


def sample(count: int, *, seed: int = 0) -> Iterator[Combination]:
    """Some of the whole product, each once, and the same in every run."""
    parts = product()
    sizes = [len(part) for part in parts]
    for number in random.Random(seed).sample(range(math.prod(sizes)), count):
        place = np.unravel_index(number, sizes)
        model, *strategy, runtime, precision = (part[int(at)] for part, at in zip(parts, place, strict=True))
        yield Combination(model, ",".join(filter(None, strategy)), runtime, precision)


def some(count: int, keeping: Callable[[Combination], bool]) -> Iterator[Combination]:
    """The first of a long sample that ``keeping`` accepts."""
    return itertools.islice(filter(keeping, sample(60_000)), count)


def runs(combination: Combination, *, model: CostModel | None = None, in_full: bool = False) -> bool:
    """Whether a combination runs; asserts that it does so soundly, or is refused as it should be.

    ``in_full`` also writes it out for every rank and every operator, which must give the same step.
    """
    strategy = combination.strategy
    try:
        request = request_of(
            strategy,
            model=MODELS[combination.model],
            runtime=combination.runtime,
            precision=combination.precision,
            global_batch=48 if {"dp=3", "num_microbatches=3"} & set(strategy.split(",")) else 64,
        )
        made = forecast(request, cost_model=model)
    except (StrategyError, UnknownNameError) as error:
        check_refusal(str(error))
        return False
    check_report(made)
    check_timeline(made.timeline)
    check_order(made.timeline)
    if in_full:
        check_foldings(made)
    return True


def check_refusal(message: str) -> None:
    """A refusal is one line, and says which numbers do not go together."""
    assert "\n" not in message
    assert any(c.isdigit() for c in message)
    assert len(message) > 20


def check_report(made: Forecast) -> None:
    """Times are finite and add up; so does memory; nothing is negative."""
    report = made.report
    assert math.isfinite(report.step_s)
    assert 0 < report.low_s <= report.step_s <= report.high_s
    assert 0 < report.mfu < 1
    for rank in report.ranks:
        parts = rank.breakdown
        assert min(parts.compute_s, parts.exposed_communication_s, parts.bubble_s, parts.overhead_s) >= 0
        assert parts.total_s == pytest.approx(report.step_s, rel=1e-9)
        assert min(rank.memory.to_dict().values()) >= 0
        assert math.isfinite(rank.memory.total)
    assert report.peak_memory_bytes == max(r.memory.total for r in report.ranks)
    assert sum(report.estimated_by.values()) == pytest.approx(1.0, rel=1e-9)
    assert sum(e.share for e in report.critical_path) <= 1 + 1e-9


def check_order(timeline: Timeline) -> None:
    """Every microbatch goes all the way forward before it comes back, and all of them do."""
    plan, count = timeline.plan, 1 + int(timeline.plan.microbatch.max())
    ends, starts = np.zeros(count), np.full(count, np.inf)
    forward, backward = (plan.category == c for c in (Category.FORWARD, Category.BACKWARD))
    np.maximum.at(ends, plan.microbatch[forward], timeline.end[forward])
    np.minimum.at(starts, plan.microbatch[backward], timeline.start[backward])
    assert (ends > 0).all()
    assert (ends <= starts).all()
    assert np.isfinite(starts).all()


def check_foldings(made: Forecast) -> None:
    """One row per rank gives the same step to the last digit, single operators the same but for rounding."""
    plan, fine = made.lowered.plan, lower(made.request, grain="operator").plan
    by_work = dict(zip(plan.works, made.estimates.seconds, strict=True))
    steps = []
    for folded in (plan, fine):
        seconds = np.array([by_work[work] for work in folded.works])
        one, every = simulate(folded, seconds), simulate(expand(folded), seconds)
        assert every.step_s == one.step_s
        for timeline in (one, every):
            check_timeline(timeline)
            check_order(timeline)
        steps.append(one.step_s)
    assert steps[0] == made.report.step_s
    assert steps[1] == pytest.approx(steps[0], rel=1e-9)


@pytest.mark.long(but=4)
@pytest.mark.parametrize("runtime", runtime_names())
def test_a_combination_runs_soundly_or_is_refused_in_one_line(runtime: str) -> None:
    chosen = some(PER_RUNTIME, lambda c: c.runtime == runtime)
    outcomes = [runs(c, model=AnalyticalCostModel(), in_full=n % 4 == 0) for n, c in enumerate(chosen)]
    # Somewhat less than half of all combinations make sense; the sample must hold plenty of both sorts.
    assert outcomes.count(True) >= PER_RUNTIME // 5
    assert outcomes.count(False) >= PER_RUNTIME // 5


def runs_often(keeping: Callable[[Combination], bool], *, often: int = 4) -> bool:
    """Whether so many of the combinations that ``keeping`` accepts run, written out in full, before 200 are refused."""
    outcomes = (runs(c, model=AnalyticalCostModel(), in_full=True) for c in some(200, keeping))
    return sum(itertools.islice(filter(None, outcomes), often)) == often


@pytest.mark.long(but=4)
@pytest.mark.parametrize("schedule", ["none", *SCHEDULES])
def test_every_schedule_runs_soundly(schedule: str) -> None:
    assert runs_often(lambda c: c.schedule == schedule)


@pytest.mark.long(but=6)
@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_runs_soundly(setting: str) -> None:
    assert runs_often(lambda c: setting in c.settings)


@pytest.mark.long(but=lambda precision, strategy: precision)
@pytest.mark.parametrize("precision", sorted(PRECISIONS))
@pytest.mark.parametrize("strategy", ["dp=2,zero=1", "tp=2,sp", "pp=2,num_microbatches=4", "dp=2,cp=2", "dp=2,zero=3"])
def test_every_precision_runs_with_every_way_to_spread_and_learned_times(precision: str, strategy: str) -> None:
    assert runs(Combination("llama", strategy, "megatron", precision))


@pytest.mark.long(but=lambda schedule, model: schedule)
@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
@pytest.mark.parametrize("model", MODELS)
def test_a_stage_with_nothing_but_the_embedding_runs_in_every_schedule(schedule: str, model: str) -> None:
    """Its backward has gradients of weights alone: there are none of inputs to split off."""
    layers = "layers=0/2/2/0" if schedule == "zb-v" else "layers=0/4"
    strategy = f"pp=2,num_microbatches=4,schedule={schedule},{layers}"
    assert runs(Combination(model, strategy, "pytorch", "bf16"), model=AnalyticalCostModel(), in_full=True)


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
def test_a_stage_without_weights_runs_in_every_schedule(schedule: str) -> None:
    """A network of convolutions is cut by its load, so that some stages pool and add alone."""
    made = forecast(request_of(f"pp=8,num_microbatches=16,schedule={schedule}", model=CNN))
    check_report(made)
    check_timeline(made.timeline)
    check_order(made.timeline)


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        ("dp=3,num_microbatches=1", "is not divisible by dp·num_microbatches"),
        ("tp=3", "tp=3 does not divide"),
        ("cp=3", "cp=3 does not divide the sequence of 128 tokens"),
        ("pp=8,num_microbatches=8", "8 stages, but"),
        ("pp=2,layers=1/2,num_microbatches=8", "layers=1/2 gives 3 layers to 2 stages"),
        ("pp=2,schedule=dualpipe,num_microbatches=2", "dualpipe with num_microbatches=2 over pp=2"),
        ("pp=4,schedule=interleaved,vp=2,num_microbatches=2", "num_microbatches=2 is not a multiple of pp=4"),
        ("pp=2,schedule=gpipe,vp=2", "gpipe with virtual_stages=2"),
        ("dp=4,shard=2", "shard=2 with zero=0 and dp·cp = 4"),
        ("dp=4,zero=1,shard=3", "shard=3 with zero=1 and dp·cp = 4"),
        ("dp=4,zero=2,reshard=false", "reshard=false with zero=2"),
        ("dp=4,recompute_every=2", "recompute_every=2 with recompute=none"),
        ("dp=4,compression=0", "compression=0.0: expected a number"),
        ("dp=4,imbalance=0.5", "imbalance=0.5: expected a number from 1"),
        ("dp=4,ep=3", "ep·etp = 3·1 = 3 does not divide the dp·cp·tp = 4 ranks"),
        ("dp=2,tp=2,ep=2", "ep=2 with tp=2"),
        ("dp=4,ep=4", "has no experts to divide"),
    ],
)
def test_what_does_not_go_together_is_refused_with_its_numbers(strategy: str, said: str) -> None:
    with pytest.raises(StrategyError) as caught:
        lower(request_of(strategy, global_batch=64))
    check_refusal(str(caught.value))
    assert said in str(caught.value)


def test_a_narrower_dtype_is_not_slower() -> None:
    def step(precision: str) -> float:
        model = "gpt:layers=4,hidden=2048,heads=16,vocab=1000,seq=1024"
        return forecast(request_of("dp=1", model=model, precision=precision, global_batch=4)).report.step_s

    assert step("fp32") > step("tf32") > step("bf16")
