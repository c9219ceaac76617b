"""Memory of a rank against the closed forms of ZeRO and of activation recomputation."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from tests.conftest import GPT, LLAMA, graph_of, request_of
from traincast import Strategy, load_runtime
from traincast.strategy import Memory, lower
from traincast.strategy.program.recompute import RECOMPUTATIONS

LAYERS, HIDDEN, HEADS, SEQ = 4, 256, 8, 128
LAYER_PARAMETERS = 12 * HIDDEN**2 + 13 * HIDDEN


def memory_of(
    strategy: str, *, model: str = GPT, runtime: str = "pytorch", precision: str = "bf16", global_batch: int = 16
) -> tuple[Memory, ...]:
    request = request_of(strategy, model=model, runtime=runtime, precision=precision, global_batch=global_batch)
    return lower(request).memory


def states(memory: Memory) -> float:
    return memory.weights + memory.gradients + memory.optimizer


@pytest.mark.parametrize(("precision", "gradients"), [("fp16", 2), ("bf16", 4)])
@pytest.mark.parametrize("replicas", [2, 8, 64])
def test_model_states_follow_the_closed_forms_of_zero(precision: str, gradients: int, replicas: int) -> None:
    """Rajbhandari et al. 2020, figure 1: (2 + 2 + K) Ψ with K = 12 for Adam in mixed precision.

    With gradients in fp32, as Megatron keeps them, the second 2 is a 4. Sharded weights are gathered block by
    block: the one at work and the one prefetched are held whole on top, and the gradients of the one at work.
    """
    psi, n = graph_of(GPT).num_parameters, replicas
    gathered = 2 * (1 + load_runtime("pytorch").defaults.prefetch_blocks + 1) * LAYER_PARAMETERS
    expected = {
        0: (2 + gradients + 12) * psi,
        1: (2 + gradients + 12 / n) * psi,
        2: (2 + (gradients + 12) / n) * psi,
        3: (2 + gradients + 12) * psi / n + gathered,
    }
    for zero, nbytes in expected.items():
        (memory,) = memory_of(f"dp={replicas},zero={zero}", precision=precision, global_batch=64)
        assert states(memory) == pytest.approx(nbytes, rel=1e-12)


@pytest.mark.parametrize(
    ("precision", "per_parameter"), [("fp32", 16), ("tf32", 16), ("amp", 16), ("fp16", 16), ("bf16", 18), ("fp8", 18)]
)
def test_adam_needs_16_bytes_per_parameter_and_18_with_wide_gradients(precision: str, per_parameter: int) -> None:
    (memory,) = memory_of("dp=1", precision=precision)
    assert states(memory) == per_parameter * graph_of(GPT).num_parameters


def test_each_component_is_what_its_name_says() -> None:
    psi = graph_of(GPT).num_parameters
    (memory,) = memory_of("dp=8,zero=1", precision="fp16")
    assert (memory.weights, memory.gradients, memory.optimizer) == (2 * psi, 2 * psi, 12 * psi / 8)
    assert memory.total == sum(memory.to_dict().values())


@pytest.mark.parametrize("model", [GPT, LLAMA])
def test_more_sharding_never_needs_more_for_model_states(model: str) -> None:
    by_zero = [states(memory_of(f"dp=8,zero={z}", model=model)[0]) for z in range(4)]
    by_tensor = [states(memory_of(f"tp={n}", model=model)[0]) for n in (1, 2, 4)]
    by_stage = [max(map(states, memory_of(f"pp={n},num_microbatches=4", model=model))) for n in (1, 2, 4)]
    for falling in (by_zero, by_tensor, by_stage):
        assert all(after < before for before, after in pairwise(falling))


def layer_activations(
    strategy: str, *, runtime: str = "pytorch", batch: int = 1, seq: int = SEQ, family: str = "gpt"
) -> float:
    """Bytes that one more layer keeps for backward, in half precision."""
    few, many = (
        memory_of(
            strategy,
            model=f"{family}:layers={n},hidden={HIDDEN},heads={HEADS},vocab=1000,seq={seq}",
            runtime=runtime,
            precision="fp16",
            global_batch=batch,
        )[0].activations
        for n in (4, 5)
    )
    return many - few


@pytest.mark.parametrize("family", ["gpt", "llama"])
def test_activations_fall_with_tensor_sequence_and_context_ranks_and_with_recomputation(family: str) -> None:
    def kept(strategy: str) -> float:
        return layer_activations(strategy, family=family)

    assert kept("tp=1") > kept("tp=2") > kept("tp=4") > kept("tp=4,sp")
    assert kept("cp=4") * 4 == pytest.approx(kept("cp=1"), rel=1e-12)
    assert kept("tp=4,sp") * 4 == pytest.approx(kept("tp=1"), rel=1e-12)
    assert kept("recompute=full") < kept("recompute=none")


STATISTICS = 2 * (2 + 2 + HEADS)
"""Bytes per token beyond the published form: mean and deviation of two norms, and attention's log-sum-exp."""


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("seq", [128, 256])
def test_a_gpt_layer_keeps_34_sbh_and_its_statistics(batch: int, seq: int) -> None:
    """Korthikanti et al. 2022, equation 1: s·b·h (34 + 5·a·s/h) bytes for a layer.

    34 is 2·2 for the norms, 2 for qkv, 6 for q, k and v, 2 for the output projection, 2 + 8 + 8 for the MLP and
    2·1 for the masks of dropout. Autograd also keeps what the paper leaves out as small: statistics of the norms
    and of attention.
    """
    fused = layer_activations("dp=1", batch=batch, seq=seq)
    assert fused == batch * seq * (34 * HIDDEN + STATISTICS)
    unfused = layer_activations("dp=1", runtime="megatron-deepspeed", batch=batch, seq=seq)
    paper = seq * batch * HIDDEN * (34 + 5 * HEADS * seq / HIDDEN)
    assert unfused == paper + batch * seq * STATISTICS


@pytest.mark.parametrize("batch", [1, 4])
def test_without_dropout_a_gpt_layer_keeps_32_sbh(batch: int) -> None:
    """Of the 34 above, two are the masks of dropout, one byte each: without it they are not there."""
    few, many = (
        memory_of(
            "dp=1",
            model=f"gpt:layers={n},hidden={HIDDEN},heads={HEADS},vocab=1000,seq={SEQ},dropout=0",
            precision="fp16",
            global_batch=batch,
        )[0].activations
        for n in (4, 5)
    )
    assert many - few == batch * SEQ * (32 * HIDDEN + STATISTICS)


@pytest.mark.parametrize("tensor", [2, 4])
def test_tensor_parallelism_leaves_10_sbh_and_sequence_parallelism_divides_all(tensor: int) -> None:
    """Korthikanti et al. 2022, equations 2 and 4: s·b·h (10 + 24/t) and s·b·h·34/t."""
    statistics = SEQ * (2 * 4 + 2 * HEADS / tensor)
    assert layer_activations(f"tp={tensor}") == SEQ * HIDDEN * (10 + 24 / tensor) + statistics
    assert layer_activations(f"tp={tensor},sp") == SEQ * (34 * HIDDEN + STATISTICS) / tensor


@pytest.mark.parametrize("batch", [1, 4])
def test_full_recomputation_keeps_2_sbh_per_layer(batch: int) -> None:
    """Korthikanti et al. 2022, section 5: only the input of each layer."""
    assert layer_activations("recompute=full", batch=batch) == 2 * SEQ * batch * HIDDEN


def test_selective_recomputation_drops_the_score_matrices() -> None:
    """Korthikanti et al. 2022, table 2: 34·s·b·h remain of s·b·h (34 + 5·a·s/h)."""
    kept = layer_activations("recompute=selective", runtime="megatron-deepspeed")
    assert kept == SEQ * (34 * HIDDEN + STATISTICS)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_a_stage_holds_activations_of_every_microbatch_in_flight(schedule: str) -> None:
    """And, while one backward runs, most at the second layer of the MLP: the gradient that goes past the branch, that
    of the dropout, 2·s·b·h each, and that of the layer's input, 2·4·s·b·h; its weights' gradient, 2·4·h². The mask of
    the dropout, s·b·h, is no longer needed then.
    """
    stages, microbatches = 4, 8
    memory = memory_of(f"pp={stages},num_microbatches={microbatches},schedule={schedule}", precision="fp16")
    tokens = 16 // microbatches * SEQ
    for stage in (1, 2):  # the middle stages have a layer each and nothing else
        in_flight = stages - stage if schedule == "1f1b" else microbatches
        parts = memory[stage].parts
        assert parts["kept for backward"] == in_flight * tokens * (34 * HIDDEN + STATISTICS)
        assert parts["working"] == (2 + 2 + 8 - 1) * tokens * HIDDEN + 8 * HIDDEN**2


def test_interleaving_holds_more_than_plain_1f1b_on_the_first_stage() -> None:
    """Korthikanti et al. 2022, section 4.2.3: 1 + (p−1)/(p·v) times as much."""
    stages, virtual = 2, 2
    model = "gpt:layers=16,hidden=256,heads=8,vocab=1000,seq=128,dropout=0"
    once, cut = (
        memory_of(f"pp={stages},{rest}", model=model, precision="fp16", global_batch=batch)[0].parts[
            "kept for backward"
        ]
        for rest, batch in (("num_microbatches=1", 2), ("num_microbatches=8,vp=2", 16))
    )
    assert cut / (stages * once) == pytest.approx(1 + (stages - 1) / (stages * virtual), rel=1e-3)


@pytest.mark.parametrize(("schedule", "times"), [("zb-h1", 1), ("zb-h2", 2 - 1 / 4), ("zb-v", 1)])
def test_zero_bubble_schedules_hold_as_much_as_published(schedule: str, times: float) -> None:
    """Qi et al. 2023 (arXiv:2401.10241), table 2, and 2024 (arXiv:2405.15362).

    ZB-H1 and ZB-V hold on every stage as much as the first stage of 1F1B, ZB-H2 (2p − 1)/p of it.
    """
    model = "gpt:layers=8,hidden=256,heads=8,vocab=1000,seq=128"
    first = memory_of("pp=4,num_microbatches=16", model=model)[0].parts["kept for backward"]
    middle = memory_of(f"pp=4,num_microbatches=16,schedule={schedule}", model=model)[1:3]
    for memory in middle:
        assert memory.parts["kept for backward"] / first == pytest.approx(times, rel=0.1)


def test_nothing_is_free_of_context_and_fragmentation() -> None:
    runtime = load_runtime("pytorch")
    (memory,) = memory_of("dp=1")
    tensors = memory.weights + memory.gradients + memory.optimizer + memory.activations
    assert memory.other == pytest.approx(
        runtime.memory.context_bytes + runtime.memory.allocator_overhead * tensors, rel=1e-12
    )


def test_the_activations_of_every_recomputation_are_ordered() -> None:
    request = request_of("dp=1", runtime="megatron-deepspeed")
    kept = [
        lower(replace(request, strategy=Strategy(recompute=choice))).memory[0].activations for choice in RECOMPUTATIONS
    ]
    assert len(kept) > 2 and all(before > after for before, after in pairwise(kept))


def test_the_last_stage_holds_a_copy_of_a_tied_vocabulary() -> None:
    """Megatron-LM keeps the word embedding on the first and the last stage, and reduces its gradient between them."""
    first, last = memory_of("pp=2,num_microbatches=4", model="gpt:layers=4,hidden=256,heads=8,vocab=32000,seq=128")
    table = 32000 * 256
    assert last.weights >= 2 * table
    assert first.weights >= 2 * table
