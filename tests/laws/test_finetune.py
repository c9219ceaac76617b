"""Fine-tuning against closed forms: bytes of adapters, frozen and quantised parts; FLOPs; what ranks exchange."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from tests.conftest import GPT, LLAMA, collective_bytes, graph_of, request_of
from traincast import OperatorGraph, Request, TensorSpec
from traincast.forecast import forecast
from traincast.graph import OpKind, Phase
from traincast.graph.tuning.storage import STORAGES
from traincast.graph.tuning.tune import fine_tuned, parse_fine_tuning
from traincast.strategy import Memory, lower
from traincast.strategy.memory.peak import reported

HIDDEN, LAYERS, RANK = 256, 4, 8
MATRICES = {
    "qkv": (3 * HIDDEN, HIDDEN),
    "out": (HIDDEN, HIDDEN),
    "up": (4 * HIDDEN, HIDDEN),
    "down": (HIDDEN, 4 * HIDDEN),
}
"""Weights of the linear layers of one layer of GPT: outputs, inputs."""
ADAPTERS = LAYERS * RANK * 18 * HIDDEN
"""Parameters of adapters of all linear layers of GPT."""


def tuned(
    strategy: str = "dp=1",
    lora: str | None = f"rank={RANK},targets=all",
    *freeze: str,
    quantize: int | str | None = None,
    model: str = GPT,
    runtime: str = "pytorch",
    precision: str = "bf16",
    global_batch: int = 16,
) -> Request:
    request = request_of(strategy, model=model, runtime=runtime, precision=precision, global_batch=global_batch)
    return replace(request, graph=fine_tuned(request.graph, parse_fine_tuning(lora, freeze, quantize)))


def memory(request: Request) -> Memory:
    (found,) = lower(request).memory
    return found


def products(graph: OperatorGraph) -> float:
    return sum(op.flops * n for op, n in graph if op.kind is OpKind.GEMM)


def test_adapters_in_fp32_take_16_bytes_and_frozen_weights_two() -> None:
    found = memory(tuned())
    assert found.parts["weights"] == 4 * ADAPTERS
    assert found.parts["frozen weights"] == 2 * graph_of(GPT).num_parameters
    assert found.parts["gradients"] == 4 * ADAPTERS
    assert found.optimizer == 8 * ADAPTERS
    assert "master weights" not in found.parts


def test_adapters_in_the_precision_of_the_model_have_master_weights() -> None:
    found = memory(tuned("dp=1", f"rank={RANK},targets=all,dtype=model"))
    assert found.parts["weights"] == 2 * ADAPTERS
    assert found.optimizer == 12 * ADAPTERS


@pytest.mark.parametrize("name", list(STORAGES))
def test_quantised_weights_take_the_bytes_of_their_format(name: str) -> None:
    found = memory(tuned(quantize=name))
    packed = LAYERS * sum(STORAGES[name].nbytes(TensorSpec(shape)) for shape in MATRICES.values())
    quantised = LAYERS * sum(a * b for a, b in MATRICES.values())
    assert found.parts["frozen weights"] == packed + 2 * (graph_of(GPT).num_parameters - quantised)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_zero_shards_adapters_and_only_its_third_stage_shards_frozen_weights(zero: int) -> None:
    found = memory(tuned(f"dp=4,zero={zero}", quantize=4))
    whole = memory(tuned(quantize=4))
    shares = [4 if zero >= stage else 1 for stage in range(4)]
    assert found.parts["frozen weights"] == whole.parts["frozen weights"] / shares[3]
    assert found.parts["optimizer states"] == 8 * ADAPTERS / shares[1]
    assert found.parts["gradients"] == 4 * ADAPTERS / shares[2]


def test_only_gradients_of_adapters_are_exchanged() -> None:
    plan = lower(tuned("dp=4"), grain="operator").plan
    assert collective_bytes(plan, "all_reduce") == 4 * ADAPTERS
    full = lower(request_of("dp=4"), grain="operator").plan
    assert collective_bytes(full, "all_reduce") == 4 * graph_of(GPT).num_parameters


def test_sharded_frozen_weights_are_gathered_as_they_are_stored() -> None:
    """ZeRO-3 gathers every block forward and backward; blocks without backward are gathered once."""
    request = tuned("dp=4,zero=3", quantize=4)
    plan = lower(request, grain="operator").plan
    lean, wide = (
        sum(
            n * b.count * ((t.stored or 2 * t.spec.numel) if packed else 2 * t.spec.numel)
            for b in request.graph.blocks
            for t in b.fixed
            for n in [2 if b.backward else 1]
        )
        for packed in (True, False)
    )
    assert collective_bytes(plan, "all_gather") == pytest.approx(lean + 2 * 2 * ADAPTERS, rel=1e-12)
    assert lean < wide / 2


@pytest.mark.parametrize("model", [GPT, LLAMA])
def test_layers_with_adapters_need_two_of_three_products(model: str) -> None:
    """Forward and the gradient of inputs: 4 of 6 FLOPs, in every layer but the first."""
    graph = tuned(model=model).graph
    block = next(b for b in graph.blocks if b.count == LAYERS - 1)
    source = next(b for b in graph_of(model).blocks if b.count == LAYERS)

    def flops(whole: OperatorGraph, indices: tuple[int, ...]) -> float:
        ops = [whole.operators[i] for i in indices]
        return sum(op.flops for op in ops if op.kind is OpKind.GEMM and "adapts" not in op.attributes)

    assert flops(graph, (*block.forward, *block.backward)) == pytest.approx(
        flops(graph_of(model), (*source.forward, *source.backward)) * 4 / 6, rel=1e-12
    )


def test_products_of_adapters_grow_with_the_rank_and_end_at_the_frozen_model() -> None:
    one, two, four = (products(tuned("dp=1", f"rank={n},targets=all").graph) for n in (1, 2, 4))
    assert four - two == pytest.approx(2 * (two - one), rel=1e-12)
    frozen = tuned("dp=1", "rank=1,targets=all").graph
    base = sum(op.flops * n for op, n in frozen if op.kind is OpKind.GEMM and "adapts" not in op.attributes)
    assert 2 * one - two == pytest.approx(base, rel=1e-12)


def test_freezing_nothing_is_full_training_to_the_last_digit() -> None:
    request = request_of("dp=2,tp=2", runtime="megatron")
    full, same = forecast(request).report, forecast(tuned("dp=2,tp=2", None, runtime="megatron")).report
    assert (full.step_s, full.memory) == (same.step_s, same.memory)


def test_freezing_more_never_costs_more() -> None:
    patterns = [(), ("embedding",), ("embedding", "layers.0"), ("embedding", "layers.[01]"), ("embedding", "layers.*")]
    reports = [forecast(tuned("dp=2", None, *some)).report for some in patterns]
    assert all(a.step_s > b.step_s for a, b in pairwise(reports))
    assert all(a.memory.total > b.memory.total for a, b in pairwise(reports))


def test_activations_that_only_frozen_weights_need_are_not_kept() -> None:
    """Without gradients of weights, a layer of GPT keeps neither the inputs of qkv, up nor down."""
    full, frozen = memory(request_of("dp=1")), memory(tuned("dp=1", None, "layers.*.attention.qkv", "layers.*.mlp"))
    tokens = 16 * 128
    dropped = 2 * tokens * (HIDDEN + HIDDEN + 4 * HIDDEN)
    assert full.parts["kept for backward"] - frozen.parts["kept for backward"] == LAYERS * dropped


@pytest.mark.parametrize("tp", [2, 4])
def test_tensor_parallelism_cuts_the_side_of_an_adapter_that_its_layer_cuts(tp: int) -> None:
    """A column layer (qkv, up) cuts B by outputs and keeps A whole; a row layer (out, down) cuts A by inputs."""
    found = memory(tuned(f"tp={tp}", quantize=4))
    whole = RANK * (3 * HIDDEN + HIDDEN) + RANK * (HIDDEN + HIDDEN)  # A of q, k, v, up; B of out, down
    cut = RANK * (3 * HIDDEN + 4 * HIDDEN) + RANK * (HIDDEN + 4 * HIDDEN)
    assert found.optimizer == 8 * LAYERS * (whole + cut / tp)
    packed = LAYERS * sum(STORAGES["nf4"].nbytes(TensorSpec(shape)) for shape in MATRICES.values())
    layers = 2 * LAYERS * 13 * HIDDEN  # norms, and biases, which stay whole
    vocabulary = 2 * 1000 * HIDDEN / tp
    rest = 2 * (128 * HIDDEN + 2 * HIDDEN)  # positions and the last norm
    assert found.parts["frozen weights"] == pytest.approx(packed / tp + layers + vocabulary + rest, rel=1e-12)


def test_stages_of_a_pipeline_hold_their_own_adapters() -> None:
    memories = lower(tuned("pp=4,num_microbatches=8")).memory
    assert [m.optimizer for m in memories] == [8 * ADAPTERS / 4] * 4
    without = lower(tuned("pp=4,num_microbatches=8", None, "embedding", "layers.[01]")).memory
    assert [m.optimizer > 0 for m in without] == [False, False, True, True]


def test_the_dequantised_weight_exists_while_its_product_runs() -> None:
    """Forward peaks at the product with the widest result, whose weight has 4 · hidden² elements of two bytes.

    The residual, of hidden elements per token, waits for the end of the branch.
    """
    plain, packed = (lower(tuned("dp=1", quantize=q, global_batch=1)).prepared for q in (None, 4))
    layer = next(n for n, p in enumerate(plain.programs) if p.scope == "layers.1")
    before, after = (prepared.programs[layer].footprint for prepared in (plain, packed))
    assert after.forward == 2 * 4 * HIDDEN**2 + 2 * 128 * 4 * HIDDEN + 2 * 128 * HIDDEN
    assert before.backward < after.backward <= before.backward + 2 * 4 * HIDDEN**2
    assert after.kept == before.kept


@pytest.mark.parametrize(
    ("name", "each"), [("adamw", 4.0), ("adamw8bit", 1 + 4 / 256), ("paged-adamw8bit", 1 + 4 / 256)]
)
def test_optimizers_of_8_bits_keep_a_byte_per_state_and_a_constant_per_block(name: str, each: float) -> None:
    request = request_of("dp=1")
    found = memory(replace(request, graph=request.graph.with_optimizer(name)))
    psi = graph_of(GPT).num_parameters
    assert found.optimizer == (4 + 2 * each) * psi
    counted = reported([found], request.runtime)
    assert counted == found.tensors - (2 * each * psi if name.startswith("paged") else 0.0)


def test_pure_half_precision_takes_eight_bytes_per_parameter() -> None:
    assert memory(request_of("dp=1", precision="pure-bf16")).states == 8 * graph_of(GPT).num_parameters


def test_products_of_adapters_in_fp32_keep_their_own_inputs() -> None:
    """Each of q and v converts and keeps its input, instead of sharing the one in half precision."""
    half, wide = (memory(tuned("dp=1", f"rank=8,targets=q+v,{how}")) for how in ("dtype=model", "compute=fp32"))
    tokens = 16 * 128
    more = LAYERS * tokens * (2 * 4 * HIDDEN - 2 * HIDDEN + 2 * RANK * (4 - 2))
    assert wide.parts["kept for backward"] - half.parts["kept for backward"] == more


def test_dropout_of_adapters_keeps_a_mask_and_the_dropped_input() -> None:
    none, some = (memory(tuned("dp=1", f"rank=8,dtype=model,targets=q+v{p}")) for p in ("", ",dropout=0.1"))
    elements = 16 * 128 * HIDDEN
    more = LAYERS * elements * (2 * (2 + 1) - 2) - 2 * elements  # no gradient passes the dropouts of the first layer
    assert some.parts["kept for backward"] - none.parts["kept for backward"] == more


def test_every_update_is_that_of_an_adapter() -> None:
    graph = tuned().graph
    updates = [op for op in graph.operators if op.phase is Phase.OPTIMIZER]
    assert {op.scope.rpartition(".")[2] for op in updates} == {"lora_A", "lora_B"}


@pytest.mark.parametrize("chunks", [2, 8])
def test_a_loss_in_pieces_keeps_no_logits(chunks: int) -> None:
    """The log-probabilities in fp32 are not kept, and only a piece of the logits exists at a time."""
    request = request_of("dp=1")
    whole, pieces = (
        lower(replace(request, runtime=request.runtime.patched(memory={"loss_chunks": n}))) for n in (0, chunks)
    )
    logits = 4 * 16 * 128 * 1000
    assert pieces.memory[0].activations < whole.memory[0].activations - logits
    whole_loss, loss = (found.prepared.programs[-2].footprint for found in (whole, pieces))
    assert (whole_loss.saved, loss.saved) == (logits, 0.0)
    assert loss.forward == whole_loss.forward / chunks


def test_trained_modules_beside_adapters_keep_their_frozen_originals() -> None:
    """PEFT's modules_to_save: a trained copy of 16 bytes per parameter in fp32 beside the original of two."""
    alone, beside = memory(tuned()), memory(tuned("dp=1", f"rank={RANK},targets=all,train=embedding"))
    graph = graph_of(GPT)
    copied = sum(
        op.parameters[0].numel for op, _ in graph if op.phase is Phase.OPTIMIZER and op.scope.startswith("embedding")
    )
    assert beside.states - alone.states == 16 * copied
    assert beside.parts["frozen weights"] == alone.parts["frozen weights"]


def test_a_step_in_fp32_runs_no_conversions_of_adapters() -> None:
    wide, narrow = (
        list(lower(tuned("dp=1", f"rank=8,targets=q+v,dtype={dtype}", precision="fp32")).plan.works)
        for dtype in ("fp32", "model")
    )
    assert set(wide) == set(narrow)
