"""Configurations that an installed ``transformers`` builds, and the message where it is not installed."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.golden.huggingface_configs import PUBLISHED
from traincast import MissingDependencyError, OperatorGraph, RequestError, capture
from traincast.graph import OpKind, Phase
from traincast.graph.traced import trace_transformers
from traincast.graph.work_amount import model_flops

NEEDED = pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
RWKV = {"model_type": "rwkv", "hidden_size": 64, "vocab_size": 128, "num_hidden_layers": 2}
HELIUM = {
    "model_type": "helium",
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 256,
    "vocab_size": 512,
}


def written(folder: Path, config: dict[str, Any]) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def test_without_transformers_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingDependencyError) as caught:
        capture(written(tmp_path, RWKV))
    assert str(caught.value) == (
        "model_type 'rwkv' is none that Traincast reads itself; building it needs transformers, which is not "
        "installed: pip install 'traincast[transformers]'"
    )


@NEEDED
def test_a_type_of_transformers_is_traced_with_fused_operators(tmp_path: Path) -> None:
    graph = capture(written(tmp_path, HELIUM), seq=256)
    assert graph.tokens_per_sample == 256
    assert [block.count for block in graph.blocks if block.repeated] == [4]
    kinds = [op.kind for op, _ in graph]
    assert OpKind.ATTENTION in kinds and OpKind.LAYER_NORM in kinds
    assert not any(op.attributes.get("unknown") for op, _ in graph)


@NEEDED
def test_a_type_that_transformers_does_not_know_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="model_type 'nonesuch' is unknown to transformers"):
        capture(written(tmp_path, {"model_type": "nonesuch"}))


def products(graph: OperatorGraph) -> float:
    return sum(model_flops(op) * count for op, count in graph)


@pytest.mark.long(but=2)
@NEEDED
@pytest.mark.parametrize(
    "name",
    ["llama-3.2-1b", "gemma-3-1b", "mamba2-2.7b", "olmoe-1b-7b", "qwen3-next-80b", "nemotron-h-8b", "mamba-2.8b"],
)
def test_both_ways_give_the_same_parameters_and_products(name: str, tmp_path: Path) -> None:
    published, config = PUBLISHED[name]
    own = capture(written(tmp_path, config), seq=1024)
    built = trace_transformers(config, name=name, seq=1024)
    assert own.num_parameters == built.num_parameters == published
    assert products(built) == pytest.approx(products(own), rel=1e-6)


@pytest.mark.long(guard="test_both_ways_give_the_same_parameters_and_products")
@NEEDED
def test_layers_that_are_dropped_at_random_all_run() -> None:
    sizes = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 64, "encoder_attention_heads": 4, "vocab_size": 100}
    sizes |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128}
    graph = trace_transformers({"model_type": "bart", "encoder_layerdrop": 0.5, **sizes}, name="bart", seq=16)
    layers = [op for op, n in graph if op.kind is OpKind.ATTENTION and op.phase is Phase.FORWARD for _ in range(n)]
    assert len(layers) == 2 + 2 * 2


@pytest.mark.long(guard="test_both_ways_give_the_same_parameters_and_products")
@NEEDED
def test_a_model_of_sound_hears_its_frames_and_writes_text_of_the_given_length() -> None:
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 64, "encoder_attention_heads": 4, "vocab_size": 100}
    sizes |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128}
    sizes |= {"pad_token_id": 0, "max_source_positions": 50, "num_mel_bins": 20}
    graph = trace_transformers({"model_type": "whisper", **sizes}, name="whisper", seq=12)
    lengths = {op.inputs[1].shape[-2] for op in graph.operators if op.kind is OpKind.ATTENTION}
    assert {12, 50} <= lengths


@NEEDED
def test_a_model_that_needs_a_mask_is_traced_with_attention_written_out_and_says_so() -> None:
    sizes = {"d_model": 64, "n_heads": 4, "n_layers": 3, "vocab_size": 100, "expansion_ratio": 2}
    graph = trace_transformers({"model_type": "mpt", **sizes}, name="mpt", seq=16)
    assert "attention is forecast as it is written out" in str(graph.attributes["note"])


DBRX = {
    "model_type": "dbrx",
    "d_model": 64,
    "n_heads": 4,
    "n_layers": 2,
    "max_seq_len": 128,
    "vocab_size": 256,
    "attn_config": {"clip_qkv": 8, "kv_n_heads": 2, "rope_theta": 500_000},
    "ffn_config": {"ffn_act_fn": {"name": "silu"}, "ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2},
}
LONGCAT = {
    "model_type": "longcat_flash",
    "hidden_size": 64,
    "num_layers": 1,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "ffn_hidden_size": 128,
    "expert_ffn_hidden_size": 48,
    "n_routed_experts": 8,
    "zero_expert_num": 4,
    "moe_topk": 3,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "vocab_size": 256,
}
SWITCH = {
    "model_type": "switch_transformers",
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 128,
    "num_layers": 2,
    "num_sparse_encoder_layers": 1,
    "num_decoder_layers": 1,
    "num_sparse_decoder_layers": 0,
    "num_heads": 4,
    "num_experts": 4,
    "vocab_size": 256,
}


def rows_of(graph: OperatorGraph) -> int:
    return sum(op.inputs[0].shape[0] * n for op, n in graph if op.name == "grouped_mm" and op.phase is Phase.FORWARD)


@NEEDED
def test_experts_that_run_in_a_loop_are_grouped_products(tmp_path: Path) -> None:
    graph = capture(written(tmp_path, DBRX), seq=32)
    assert rows_of(graph) == 2 * 3 * 32 * 2  # layers, products, tokens, experts per token


@NEEDED
def test_experts_that_compute_nothing_take_their_share_of_the_tokens(tmp_path: Path) -> None:
    graph = capture(written(tmp_path, LONGCAT), seq=32)
    assert rows_of(graph) == 2 * 32 * 3 * 8 // 12


@pytest.mark.long(guard="test_experts_that_run_in_a_loop_are_grouped_products")
@NEEDED
def test_experts_that_are_modules_of_their_own_share_the_tokens(tmp_path: Path) -> None:
    graph = capture(written(tmp_path, SWITCH), seq=32)
    wide = [op for op, n in graph for _ in range(n) if op.scope.endswith(".wi") and op.phase is Phase.FORWARD]
    experts = [op for op in wide if ".encoder." in op.scope and "expert_" in op.scope]
    assert [op.inputs[0].shape for op in experts] == [(32 // 4, 64)] * 4


FSMT = {
    "model_type": "fsmt",
    "langs": ["en", "de"],
    "src_vocab_size": 100,
    "tgt_vocab_size": 100,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
}


@NEEDED
def test_a_model_that_decides_by_its_data_is_traced_and_says_where(tmp_path: Path) -> None:
    note = str(capture(written(tmp_path, FSMT), seq=16).attributes["note"])
    assert note.startswith(f"{tmp_path.name} decides by its data at modeling_fsmt.py:")
    assert note.endswith("forecast as if the answer were no (no padding, nothing special)")


@NEEDED
def test_assertions_about_data_hold(tmp_path: Path) -> None:
    config = {"model_type": "xlm", "emb_dim": 32, "n_layers": 1, "n_heads": 2, "vocab_size": 100}
    graph = capture(written(tmp_path, config), seq=16)
    assert graph.tokens_per_sample == 16 and "note" not in graph.attributes


@pytest.mark.long(guard="test_both_ways_give_the_same_parameters_and_products")
@NEEDED
def test_masks_that_set_elements_do_not_change_shapes(tmp_path: Path) -> None:
    config = {
        "model_type": "wav2vec2",
        "architectures": ["Wav2Vec2ForCTC"],
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "conv_dim": [16, 16],
        "conv_stride": [5, 64],
        "conv_kernel": [10, 64],
        "num_conv_pos_embeddings": 16,
        "num_conv_pos_embedding_groups": 2,
        "vocab_size": 30,
    }
    graph = capture(written(tmp_path, config))
    assert [op.kind for op, _ in graph if op.phase is Phase.FORWARD].count(OpKind.CONV) == 3
    assert not any(op.attributes.get("unknown") for op, _ in graph)
