from __future__ import annotations

from dataclasses import replace

import pytest

from tests.conftest import request_of
from traincast.strategy.memory import footprint
from traincast.strategy.memory.footprint import Footprint
from traincast.strategy.prepare import prepare
from traincast.strategy.program.block import BlockProgram

HIDDEN, FFN, HEADS, SEQ, VOCAB = 256, 768, 8, 128, 4096
LLAMA = f"llama:layers=4,hidden={HIDDEN},heads={HEADS},ffn={FFN},vocab={VOCAB},seq={SEQ}"
STATISTICS = 2 * (1 + 1 + HEADS)
"""Bytes per token of the norms' deviations and attention's log-sum-exp; the angles of rotary positions are a buffer."""


def programs(strategy: str = "dp=1", *, runtime: str = "pytorch", model: str = LLAMA) -> list[BlockProgram]:
    request = request_of(strategy, model=model, runtime=runtime, precision="bf16", global_batch=1)
    return list(prepare(request).programs)


def layer(strategy: str = "dp=1", *, runtime: str = "pytorch") -> Footprint:
    return max((p.footprint for p in programs(strategy, runtime=runtime)), key=lambda f: f.products)


def test_a_llama_layer_keeps_a_view_of_qkv_and_unfused_gates() -> None:
    """Per token: norms 2·2h, inputs of linear layers 2·2h, q and k rotated 4h, the packed qkv that v is a view of 6h,
    attention's result 2h; gate and up 4f, the gate's activation 2f, their product 2f.
    """
    assert layer().saved == SEQ * (20 * HIDDEN + 8 * FFN + STATISTICS)


def test_fused_kernels_keep_what_they_read() -> None:
    """Copies of q, k and v instead of the packed tensor, and no activation of the gate: 16h + 6f."""
    assert layer(runtime="megatron").saved == SEQ * (16 * HIDDEN + 6 * FFN + STATISTICS)


def test_every_tensor_kept_has_a_name_and_some_bytes() -> None:
    kept = layer().kept
    assert all(k.nbytes > 0 for k in kept)
    assert {k.label for k in kept} >= {"layers.*.norm1:rms_norm", "layers.*.mlp.up:mm"}


@pytest.mark.parametrize(("runtime", "per_logit"), [("megatron", 2 + 4), ("nanotron", 2 + 4 + 4), ("pytorch", 10)])
@pytest.mark.parametrize("tensor", [1, 4])
def test_logits_are_held_as_often_as_the_loss_needs_them(runtime: str, per_logit: int, tensor: int) -> None:
    """Once as they came, once as probabilities in fp32 for backward, and again in fp32 by all but Megatron's loss."""
    strategy = "dp=1" if tensor == 1 else f"tp={tensor},sp"
    loss = max((p.footprint for p in programs(strategy, runtime=runtime)), key=lambda f: f.saved - f.products)
    assert loss.saved + loss.forward == per_logit * SEQ * VOCAB / tensor
    assert loss.saved + loss.backward == per_logit * SEQ * VOCAB / tensor


@pytest.mark.parametrize("tensor", [1, 4])
def test_gradients_of_weights_need_inputs_and_gradients_of_outputs(tensor: int) -> None:
    """Inputs h, h, h and f of the four linear layers, gradients of 3h, h, 2f and h outputs, two bytes each.

    A tensor group splits all but the summed outputs of its row layers, and by tokens what it would gather.
    """
    strategy = "dp=1" if tensor == 1 else f"tp={tensor},sp"
    split = 2 * SEQ * (3 * HIDDEN + FFN + 3 * HIDDEN + 2 * FFN) / tensor
    assert layer(strategy).deferred == split + 2 * SEQ * 2 * HIDDEN


def test_one_gradient_of_each_shape_of_weights() -> None:
    weights = 3 * HIDDEN * HIDDEN + HIDDEN * HIDDEN + 3 * HIDDEN * FFN
    assert layer().products == 2 * weights
    assert layer("tp=4").products == 2 * weights / 4


def test_full_recomputation_holds_all_of_one_layer_while_it_runs_backward() -> None:
    plain, recomputed = layer(), layer("recompute=full")
    assert recomputed.saved == 2 * SEQ * HIDDEN
    assert recomputed.backward == plain.backward + plain.saved - recomputed.saved  # its input is there already


def test_whole_tensors_around_tensor_parallel_collectives_count(monkeypatch: pytest.MonkeyPatch) -> None:
    request = request_of("tp=4,sp", model=LLAMA, global_batch=1)

    def most(name: str) -> float:  # a name of its own: programs of equal requests are made once
        named = replace(request, runtime=replace(request.runtime, name=name))
        return max(p.footprint.backward for p in prepare(named).programs if p.footprint.products)

    with_them = most("with")
    monkeypatch.setattr(footprint, "_TENSOR_BUFFERS", 0.0)
    assert with_them - most("without") == 4 * 2 * SEQ * HIDDEN


def test_experts_are_kept_by_the_ranks_that_run_them() -> None:
    model = "moe:layers=4,hidden=128,heads=4,experts=8,top_k=2,expert_ffn=64,vocab=512,seq=64"
    alone, spread = (
        sum(
            k.nbytes
            for p in prepare(request_of(strategy, model=model, global_batch=8)).programs
            for k in p.footprint.kept
            if "grouped_mm" in k.label
        )
        for strategy in ("dp=4,num_microbatches=2", "dp=4,ep=4,num_microbatches=2")
    )
    assert spread == pytest.approx(
        alone, rel=2e-3
    )  # an even share of the rows of four ranks is as many as those of one
