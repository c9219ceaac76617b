from __future__ import annotations

import pytest

from tests.conftest import LLAMA, request_of
from traincast.strategy import lower
from traincast.strategy.memory.timeline import Holder, Moment, holders, memory_timeline
from traincast.strategy.prepare import prepare

MODEL = LLAMA.replace("layers=4", "layers=8")


def of(strategy: str, stage: int = 0) -> tuple[list[Moment], list[Holder], float]:
    request = request_of(strategy, model=MODEL)
    found, memory = prepare(request), lower(request).memory[stage]
    chunks, slots = found.held(stage), found.slots.order[stage]
    moments = memory_timeline(chunks, slots, memory=memory, strategy=request.strategy)
    return moments, holders(chunks, slots, strategy=request.strategy, most=10**6), memory.total


@pytest.mark.parametrize(
    "strategy", ["dp=1,num_microbatches=2", "pp=4,num_microbatches=8", "pp=2,vp=2,num_microbatches=8"]
)
def test_the_fullest_moment_is_the_peak(strategy: str) -> None:
    moments, _, peak = of(strategy)
    assert max(m.total for m in moments) == pytest.approx(peak, rel=1e-12)
    assert all(m.total <= peak for m in moments)


def test_moments_say_what_runs() -> None:
    moments, _, _ = of("pp=2,num_microbatches=2", stage=1)
    assert [m.label for m in moments] == [
        "forward of microbatch 0",
        "backward of microbatch 0",
        "forward of microbatch 1",
        "backward of microbatch 1",
    ]
    assert "chunk 1" in of("pp=2,vp=2,num_microbatches=2")[0][1].label + of("pp=2,vp=2,num_microbatches=2")[0][2].label


def test_only_activations_change_along_a_schedule() -> None:
    moments, _, _ = of("pp=4,num_microbatches=8")
    for name in ("weights", "gradients", "optimizer", "other"):
        assert len({m.components[name] for m in moments}) == 1
    assert len({m.components["activations"] for m in moments}) > 2


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1", "interleaved"])
def test_holders_make_up_the_activations_at_the_peak(schedule: str) -> None:
    strategy = f"pp=2,num_microbatches=8,schedule={schedule}" + (",vp=2" if schedule == "interleaved" else "")
    request = request_of(strategy, model=MODEL)
    _, found, _ = of(strategy)
    memory = lower(request).memory[0]
    assert sum(h.nbytes for h in found) == pytest.approx(memory.activations - memory.parts["workspace"], rel=1e-9)


def test_holders_are_sorted_and_count_microbatches_in_flight() -> None:
    _, found, _ = of("pp=4,num_microbatches=8")
    assert [h.nbytes for h in found] == sorted((h.nbytes for h in found), reverse=True)
    largest = next(h for h in found if h.label == "layers.*.mlp:silu")
    assert largest.in_flight == 4
    request = request_of("pp=4,num_microbatches=8", model=MODEL)
    prepared = prepare(request)
    assert len(holders(prepared.held(0), prepared.slots.order[0], strategy=request.strategy, most=5)) == 5
