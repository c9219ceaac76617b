"""What hosts do to a step: passes that wait for the device, and hosts that wait for one another."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import LLAMA, ChosenSeconds, check_timeline, request_of, run, seconds_of, tasks_per_work
from traincast import Operator, Runtime, load_runtime
from traincast.graph import Phase
from traincast.simulate import simulate
from traincast.strategy import lower
from traincast.work import Collective, Launch, Work

STRATEGIES = [
    "dp=1,num_microbatches=4",
    "dp=4,zero=1,num_microbatches=2",
    "dp=4,zero=3",
    "tp=4,sp",
    "pp=4,num_microbatches=8",
    "pp=2,vp=2,num_microbatches=4",
    "dp=2,tp=2,pp=2,num_microbatches=4,zero=1,recompute=full",
]
GRAINS = ["operator", "segment"]
quick = settings(deadline=None, derandomize=True, max_examples=40)


def runtimes(name: str) -> tuple[Runtime, Runtime]:
    """The runtime as hosts run ahead, and as they wait for every pass."""
    found = load_runtime(name).patched(launches={"step": 0.0})
    return found.patched(launches={"sync_passes": False}), found.patched(launches={"sync_passes": True})


def steps(strategy: str, runtime: str, grain: str, model: ChosenSeconds) -> tuple[float, float]:
    """Seconds of a step without, and with, hosts that wait for every pass."""
    timelines = [run(request_of(strategy, runtime=r), model=model, grain=grain)[1] for r in runtimes(runtime)]
    for timeline in timelines:
        check_timeline(timeline)
    return timelines[0].step_s, timelines[1].step_s


@quick
@given(
    strategy=st.sampled_from(STRATEGIES),
    runtime=st.sampled_from(["pytorch", "megatron"]),
    grain=st.sampled_from(GRAINS),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_host_that_waits_for_every_pass_is_never_faster(strategy: str, runtime: str, grain: str, seed: int) -> None:
    ahead, waiting = (request_of(strategy, runtime=r) for r in runtimes(runtime))
    plans = [
        lower(request, grain="operator" if grain == "operator" else "segment").plan for request in (ahead, waiting)
    ]
    random = np.random.default_rng(seed)
    factor = {work: random.exponential(1.0) ** 3 for work in plans[0].works}
    times = [
        simulate(plan, seconds_of(plan, request) * np.array([factor[w] for w in plan.works])).step_s
        for plan, request in zip(plans, (ahead, waiting), strict=True)
    ]
    assert times[1] >= times[0] * (1 - 1e-12)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("grain", GRAINS)
def test_a_host_without_cost_loses_nothing_by_waiting(strategy: str, grain: str) -> None:
    free = ChosenSeconds(lambda work: 0.0 if isinstance(work, Launch) else 1.0)
    ahead, waiting = steps(strategy, "pytorch", grain, free)
    assert waiting == pytest.approx(ahead, rel=1e-12)


@pytest.mark.parametrize("strategy", [s for s in STRATEGIES if "pp" not in s])
@pytest.mark.parametrize("grain", GRAINS)
def test_a_device_that_is_never_waited_for_costs_nothing(strategy: str, grain: str) -> None:
    at_once = ChosenSeconds(lambda work: work.launches if isinstance(work, Launch) else 0.0)
    ahead, waiting = steps(strategy, "pytorch", grain, at_once)
    assert ahead > 0.0
    assert waiting == pytest.approx(ahead, rel=1e-12)


@pytest.mark.parametrize("microbatches", [1, 2, 4])
def test_a_busy_device_waits_for_the_first_launch_of_every_pass(microbatches: int) -> None:
    launch, work = 1.0, 10.0

    def rule(task: Work) -> float:
        return launch if isinstance(task, Launch) else work

    ahead, waiting = (
        run(request_of(f"num_microbatches={microbatches}", runtime=r, optimizer=False), model=ChosenSeconds(rule))[1]
        for r in runtimes("pytorch")
    )
    passes = 2 * microbatches  # forward and backward; a host that runs ahead is waited for once
    assert waiting.step_s - ahead.step_s == pytest.approx((passes - 1) * launch, rel=1e-9)


def test_megatron_deepspeed_waits_around_every_pass() -> None:
    assert load_runtime("megatron-deepspeed").launches.sync_passes
    assert not load_runtime("megatron").launches.sync_passes


def host_launches(strategy: str, waits: float) -> tuple[float, int]:
    """Launches' worth of host time in a step, and collectives that compute waits for."""
    runtime = load_runtime("megatron").patched(launches={"wait": waits}, exchange={"overlap_tensor": 0.0})
    request = request_of(strategy, model=LLAMA, runtime=runtime, optimizer=False)
    found = tasks_per_work(lower(request, grain="operator").plan)
    spent = sum(w.launches * n for w, n in found if isinstance(w, Launch))
    return spent, sum(n for w, n in found if isinstance(w, Collective))


@pytest.mark.parametrize("strategy", ["tp=8", "dp=2,tp=8", "dp=4,tp=4,sp", "tp=4,pp=2,num_microbatches=2", "tp=2,pp=4"])
def test_hosts_do_not_wait_for_one_another_where_no_pipeline_crosses_nodes(strategy: str) -> None:
    assert host_launches(strategy, 100.0) == host_launches(strategy, 0.0)


@pytest.mark.parametrize(("strategy", "tp"), [("tp=8,pp=2", 8), ("tp=4,pp=4,num_microbatches=2", 4)])
def test_beside_a_pipeline_across_nodes_a_collective_waits_for_the_host_of_each_of_its_ranks(
    strategy: str, tp: int
) -> None:
    (before, collectives), (after, same) = host_launches(strategy, 0.0), host_launches(strategy, 100.0)
    assert collectives == same > 0
    assert after - before == pytest.approx(collectives * tp * 100.0, rel=1e-12)


def test_gradients_that_compute_does_not_wait_for_wait_for_no_host() -> None:
    assert host_launches("dp=4,pp=4", 100.0) == host_launches("dp=4,pp=4", 0.0)


def test_hosts_that_wait_never_make_a_step_shorter() -> None:
    base = load_runtime("nanotron")
    times = [
        run(request_of("tp=8,pp=2,num_microbatches=4", runtime=base.patched(launches={"wait": waits})))[1].step_s
        for waits in (0.0, 1.0, 10.0, 100.0)
    ]
    assert times == sorted(times)
    assert times[0] < times[-1]


def test_launches_add_up_by_kind() -> None:
    one = Launch(kernels=1.0, blocks=2.0, collectives=3.0, sends=4.0, waits=5.0, prepared=6.0)
    two = Launch(kernels=10.0, waits=50.0, crowded=True)
    both = one + two
    assert both == Launch(kernels=11.0, blocks=2.0, collectives=3.0, sends=4.0, waits=55.0, crowded=True, prepared=6.0)
    assert (one.launches, two.launches, both.launches) == (16.0, 60.0, 81.0)
    assert one + Launch() == one


def test_what_the_host_does_is_told_apart_by_what_it_does_it_for() -> None:
    base = load_runtime("pytorch")
    habits = {"operator": "kernels", "block": "blocks", "microbatch": "blocks"}
    habits |= {"collective": "collectives", "send": "sends"}

    def counts(runtime: Runtime) -> dict[str, float]:
        request = request_of("dp=2,tp=2,pp=2,num_microbatches=2", runtime=runtime, optimizer=False)
        found = tasks_per_work(lower(request, grain="operator").plan)
        kinds = ("kernels", "blocks", "collectives", "sends", "waits")
        return {kind: sum(getattr(w, kind) * n for w, n in found if isinstance(w, Launch)) for kind in kinds}

    before = counts(base)
    for habit, kind in habits.items():
        after = counts(base.patched(launches={habit: getattr(base.launches, habit) + 1.0}))
        assert {k for k in after if after[k] != pytest.approx(before[k], rel=1e-12)} == {kind}, habit


def test_backward_operators_are_kernels_of_the_host() -> None:
    plan = lower(
        request_of(runtime=load_runtime("pytorch").patched(launches={"backward": 0.25})), grain="operator"
    ).plan
    found = tasks_per_work(plan)
    backward = sum(n for w, n in found if isinstance(w, Operator) and w.phase is Phase.BACKWARD)
    assert backward > 0
    assert sum(n for w, n in found if isinstance(w, Launch) and w.kernels == 0.25) == backward
