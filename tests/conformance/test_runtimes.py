"""Every bundled runtime: its file is sound, and a step under its habits is too."""

from __future__ import annotations

import pytest

from tests.conftest import CNN, GPT, LLAMA, check_timeline, request_of, run
from traincast import Strategy, load_runtime
from traincast.forecast import forecast
from traincast.strategy import lower, runtime_names

pytestmark = pytest.mark.parametrize("name", runtime_names())


def test_it_says_what_it_is_and_whom_it_stands_for(name: str) -> None:
    runtime = load_runtime(name)
    assert runtime.name == name
    assert len(runtime.description) > 20
    assert "\n" not in runtime.description
    assert runtime.frameworks
    assert len(set(runtime.frameworks)) == len(runtime.frameworks)


def test_no_framework_is_claimed_twice(name: str) -> None:
    mine = {f.lower() for f in load_runtime(name).frameworks}
    for other in runtime_names():
        if other != name:
            assert mine.isdisjoint(f.lower() for f in load_runtime(other).frameworks)


def test_launches_and_buffers_are_of_a_sane_size(name: str) -> None:
    runtime = load_runtime(name)
    apart = name != "gloo"  # on the CPU the host is the device
    assert apart == (runtime.launches.operator > 0) == (runtime.launches.backward > 0)
    assert runtime.launches.operator <= 50
    assert runtime.launches.backward <= runtime.launches.operator
    assert runtime.launches.operator <= runtime.launches.collective <= 100
    assert runtime.exchange.bucket_bytes >= 1e6  # one may hold all gradients
    assert 0 <= runtime.launches.wait <= 100
    assert 0 <= runtime.memory.allocator_overhead < 0.5
    assert runtime.memory.context_bytes < 4e9


@pytest.mark.long(but=lambda name, model: name)
@pytest.mark.parametrize("model", [GPT, LLAMA, CNN])
def test_a_step_with_its_own_habits_runs(name: str, model: str) -> None:
    runtime = load_runtime(name)
    strategy = Strategy(
        dp=2,
        tp=1 if model == CNN else 2,
        num_microbatches=2,
        zero=runtime.defaults.zero,
        recompute=runtime.defaults.recompute,
        sequence_parallel=runtime.defaults.sequence_parallel and model != CNN,
    )
    made = forecast(request_of(strategy, model=model, runtime=runtime))
    check_timeline(made.timeline)
    assert made.report.step_s > 0
    assert made.report.runtime == name


def test_more_expensive_launches_never_shorten_a_step(name: str) -> None:
    runtime = load_runtime(name)
    slow = runtime.patched(
        launches={
            "operator": 2 * runtime.launches.operator,
            "backward": 2 * runtime.launches.backward,
            "collective": 2 * runtime.launches.collective,
        }
    )
    before, after = (run(request_of("dp=2,tp=2", runtime=r))[1].step_s for r in (runtime, slow))
    assert after > before or (after == before and not runtime.launches.operator)


def test_it_holds_context_and_fragmentation_on_top_of_its_tensors(name: str) -> None:
    runtime = load_runtime(name)
    (memory,) = lower(request_of("dp=1", runtime=runtime)).memory
    assert memory.other >= runtime.memory.context_bytes


def test_unfused_attention_keeps_the_score_matrices(name: str) -> None:
    runtime = load_runtime(name)
    fused, unfused = (
        lower(request_of("dp=1", runtime=runtime.patched(kernels={"attention": a}), precision="bf16"))
        .memory[0]
        .activations
        for a in ("flash", "unfused")
    )
    layers, batch, heads, seq = 4, 16, 8, 128
    assert unfused - fused == layers * 5 * batch * heads * seq * seq
