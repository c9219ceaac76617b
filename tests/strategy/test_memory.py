from __future__ import annotations

import numpy as np
import pytest

from tests.conftest import GPT, LLAMA, graph_of, request_of
from traincast.strategy import Memory, lower
from traincast.strategy.memory.peak import COMPONENTS, memory_of, runs_ahead, walk
from traincast.strategy.prepare import prepare
from traincast.strategy.schedules import Pass


def memory(strategy: str, *, runtime: str = "pytorch", model: str = GPT, precision: str = "bf16") -> tuple[Memory, ...]:
    return lower(request_of(strategy, model=model, runtime=runtime, precision=precision)).memory


@pytest.mark.parametrize("runtime", ["pytorch", "megatron", "nanotron", "fsdp"])
@pytest.mark.parametrize("strategy", ["dp=4,zero=3", "tp=2,pp=2,num_microbatches=4", "dp=2,zero=1,recompute=full"])
def test_parts_add_up_to_components_and_these_to_the_total(runtime: str, strategy: str) -> None:
    for stage in memory(strategy, runtime=runtime):
        assert sum(stage.parts.values()) == pytest.approx(stage.total, rel=1e-12)
        assert tuple(stage.to_dict()) == COMPONENTS
        assert sum(stage.to_dict().values()) == pytest.approx(stage.total, rel=1e-12)


def test_states_are_sharded_over_the_group_that_the_strategy_names() -> None:
    whole, part = (memory(f"dp=8,zero=1{shard}")[0] for shard in ("", ",shard=2"))
    assert part.optimizer == 4 * whole.optimizer
    assert (part.weights, part.gradients) == (whole.weights, whole.gradients)


def test_parameters_that_stay_gathered_are_all_there() -> None:
    psi = graph_of(GPT).num_parameters
    (kept,) = memory("dp=8,zero=3,reshard=false")
    assert kept.parts["gathered parameters"] == 2 * psi
    assert kept.parts["weights"] == 2 * psi / 8
    assert memory("dp=8,zero=3")[0].weights < kept.weights


def test_prefetching_holds_more_blocks() -> None:
    held = [memory(f"dp=8,zero=3,prefetch={n}")[0].parts["gathered parameters"] for n in (0, 1, 2)]
    assert held[1] == 2 * held[0]
    assert held[2] == 3 * held[0]


def test_an_offloaded_optimizer_and_a_served_one_are_not_on_the_device() -> None:
    assert memory("dp=2,zero=1,offload=optimizer")[0].optimizer == 0
    assert memory("dp=2,servers=1")[0].optimizer == 0
    assert lower(request_of("dp=1", optimizer=False)).memory[0].optimizer == 0


def test_offloaded_activations_stay_for_the_blocks_at_work_alone() -> None:
    here, away = memory("dp=1"), memory("dp=1,offload=activations")
    assert "kept for backward" not in away[0].parts
    assert away[0].activations < here[0].activations


def test_compressed_gradients_remember_what_was_not_sent() -> None:
    psi = graph_of(GPT).num_parameters
    (squeezed,) = memory("dp=4,compression=0.1")
    assert squeezed.parts["gradients not sent yet"] == 4 * psi


def test_gradients_in_half_stand_beside_the_sum_in_fp32_as_the_runtime_says() -> None:
    psi = graph_of(LLAMA).num_parameters
    assert memory("dp=1", runtime="nanotron", model=LLAMA)[0].parts["gradients before their sum"] == 2 * psi
    assert "gradients before their sum" not in memory("dp=1", model=LLAMA)[0].parts
    shapes = memory("dp=1", runtime="megatron", model=LLAMA)[0].parts["gradients before their sum"]
    assert 0 < shapes < psi


def test_the_host_of_the_stage_with_most_layers_sets_the_pace() -> None:
    def ahead(layers: str, *, inside_node: bool = True) -> list[bool]:
        model = "gpt:layers=8,hidden=256,heads=8,vocab=1000,seq=128"
        found = prepare(request_of(f"pp=2,num_microbatches=4,layers={layers}", model=model))
        return runs_ahead([found.held(stage) for stage in range(2)], inside_node=inside_node)

    assert ahead("5/3") == [False, True]
    assert ahead("4/4") == [True, True]
    assert ahead("4/4", inside_node=False) == [False, False]
    assert runs_ahead([[]], inside_node=False) == [True]


def test_a_host_that_runs_ahead_holds_what_collectives_have_not_run_on_yet() -> None:
    request = request_of("tp=2,sp", runtime="nanotron", model=LLAMA)
    found = prepare(request)
    behind, ahead = (
        memory_of(
            found.held(0),
            found.slots.codes[0],
            strategy=request.strategy,
            runtime=request.runtime,
            precision=found.precision,
            ahead=flag,
        )
        for flag in (False, True)
    )
    whole = 16 * 128 * 256 * 2
    assert ahead.activations - behind.activations == request.runtime.memory.held_collectives * whole


def test_a_walk_ends_with_nothing_kept() -> None:
    request = request_of("pp=2,num_microbatches=4,schedule=zb-h1", model=LLAMA)
    found = prepare(request)
    for stage, slots in enumerate(found.slots.order):
        steps = list(walk(found.held(stage), slots, strategy=request.strategy))
        assert [s.index for s in steps] == list(range(len(slots)))
        assert steps[-1].slot.what is Pass.WEIGHT
        assert steps[-1].kept == pytest.approx(sum(p.footprint.deferred for p in found.held(stage)[0]))
        assert steps[-1].in_flight == (0,)
        assert steps[-1].waiting == (1,)


@pytest.mark.parametrize(
    "strategy",
    ["pp=2,num_microbatches=4", "pp=2,virtual_stages=2,schedule=interleaved,num_microbatches=4",
     "pp=2,num_microbatches=8,schedule=zb-h1", "pp=2,num_microbatches=4,offload=activations"],
)  # fmt: skip
def test_the_fullest_slot_is_the_one_that_a_walk_finds(strategy: str) -> None:
    request = request_of(strategy)
    found = prepare(request)
    for stage, (slots, memory) in enumerate(zip(found.slots.order, lower(request).memory, strict=True)):
        most = max(walk(found.held(stage), slots, strategy=request.strategy), key=lambda step: step.peak)
        assert memory.parts.get("kept for backward", 0.0) == pytest.approx(most.kept, rel=1e-12)
        assert memory.parts["working"] == pytest.approx(most.working, rel=1e-12)


def test_a_stage_without_blocks_holds_no_activations() -> None:
    request = request_of("dp=1")
    codes = np.array([Pass.FORWARD, Pass.BACKWARD], dtype=np.int64)
    empty = memory_of([[]], codes, strategy=request.strategy, runtime=request.runtime, precision=request.precision)
    assert empty.activations == request.runtime.memory.workspace_bytes
    assert empty.weights == 0
