"""Multi-token prediction: what a depth adds to parameters and products, how it is asked for, where it is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from traincast import OperatorGraph, RequestError, capture
from traincast.graph import OpKind, Phase
from traincast.strategy.stages import cut_stages

HIDDEN, VOCAB, FFN = 64, 512, 96
SMALL = (
    f"deepseek:layers=4,hidden={HIDDEN},heads=4,experts=8,top_k=2,expert_ffn={FFN},ffn=128,first_dense=1,q_lora=32,"
    f"kv_lora=32,rope_dim=8,nope_dim=16,v_dim=16,vocab={VOCAB},seq=128"
)
HYBRID = (
    f"decoder:layers=6,hidden={HIDDEN},heads=4,mixers=M-M-n-,feeds=-e-e-e,experts=8,top_k=2,expert_ffn={FFN},state=16,"
    f"state_heads=4,state_inner=128,chunk=32,vocab={VOCAB},seq=128"
)


def _products(graph: OperatorGraph, n: int) -> float:
    """The number of forward products with ``n`` columns."""
    return sum(
        count
        for op, count in graph
        if op.kind is OpKind.GEMM and op.phase is Phase.FORWARD and op.inputs[1].shape[-1] == n
    )


@pytest.mark.long(but=1)
@pytest.mark.parametrize("spec", [SMALL, HYBRID])
def test_each_further_token_adds_a_projection_to_the_vocabulary_and_a_loss(spec: str) -> None:
    for depths in (0, 1, 2):
        graph = capture(f"{spec}+mtp={depths}" if depths else spec)
        assert _products(graph, VOCAB) == 1 + depths
        assert sum(count for op, count in graph if op.kind is OpKind.LOSS and op.phase is Phase.FORWARD) == 1 + depths


@pytest.mark.long(guard="test_each_further_token_adds_a_projection_to_the_vocabulary_and_a_loss")
def test_a_depth_has_a_layer_three_norms_and_a_product_of_its_own() -> None:
    layers = [capture(SMALL.replace("layers=4", f"layers={n}")).num_parameters for n in (4, 5)]
    more = capture(f"{SMALL}+mtp").num_parameters - layers[0]
    assert more == layers[1] - layers[0] + 2 * HIDDEN * HIDDEN + 3 * HIDDEN


@pytest.mark.long(guard="test_each_further_token_adds_a_projection_to_the_vocabulary_and_a_loss")
def test_a_hybrid_predicts_further_tokens_by_attention_and_experts() -> None:
    plain, more = capture(HYBRID), capture(f"{HYBRID}+mtp")
    counts = [
        {kind: sum(c for op, c in graph if op.kind is kind and op.phase is Phase.FORWARD) for kind in OpKind}
        for graph in (plain, more)
    ]
    added = {kind: counts[1][kind] - counts[0][kind] for kind in (OpKind.ATTENTION, OpKind.SCAN, OpKind.GROUPED_GEMM)}
    each = counts[0][OpKind.GROUPED_GEMM] / 3
    assert added == {OpKind.ATTENTION: 1, OpKind.SCAN: 0, OpKind.GROUPED_GEMM: each}


@pytest.mark.long(guard="test_each_further_token_adds_a_projection_to_the_vocabulary_and_a_loss")
def test_a_configuration_states_how_many_further_tokens_there_are(tmp_path: Path) -> None:
    config = {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 4,
        "hidden_size": HIDDEN,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "moe_intermediate_size": FFN,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "q_lora_rank": 32,
        "kv_lora_rank": 32,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "vocab_size": VOCAB,
        "max_position_embeddings": 128,
        "num_nextn_predict_layers": 2,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert [_products(capture(f"{path}{end}"), VOCAB) for end in ("", "+mtp", "+mtp=1")] == [1, 3, 2]


@pytest.mark.parametrize(
    ("spec", "reason"),
    [("gpt2+mtp", "only models of the families deepseek"), (f"{SMALL}+mtp=3", "from 0 to 2")],
)
def test_models_that_cannot_predict_further_tokens_are_refused(spec: str, reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        capture(spec)


def test_the_last_stage_of_a_pipeline_has_three_layers_fewer_for_each_further_token() -> None:
    spec = SMALL.replace("layers=4", "layers=13")
    graph = capture(f"{spec}+mtp")
    even = [1.0] * len(graph.blocks)
    repeated = {i for i, block in enumerate(graph.blocks) if block.repeated}
    stages = cut_stages(graph, 4, costs=even, sends=even)
    assert [sum(block in repeated for block in stage.blocks) for stage in stages] == [
        3,
        4,
        4,
        1,
    ]  # the first stage has the dense layer as well
