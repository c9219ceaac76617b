"""Types of ``transformers`` that data decide about, that have codebooks, or that cannot be trained by themselves."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from traincast import CaptureError, OperatorGraph, RequestError
from traincast.graph import OpKind, Phase
from traincast.graph.traced import trace_transformers

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 128,
}
JETMOE = {
    "model_type": "jetmoe",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "kv_channels": 16,
    "intermediate_size": 96,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "vocab_size": 128,
}
XMOD = {"model_type": "xmod", **SIZES, "languages": ["a", "b", "c"], "architectures": ["XmodForMaskedLM"]}
MUSIC = {"hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 50}
NLLB = {
    "model_type": "nllb-moe",
    "architectures": ["NllbMoeForConditionalGeneration"],
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_sparse_step": 1,
    "decoder_sparse_step": 0,
    "num_experts": 4,
    "vocab_size": 128,
}
QWEN4 = {
    "model_type": "qwen4_exp_text",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "hc_lowrank": 8,
    "vocab_size": 128,
}
INDEXER = {
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 16,
    "indexer_compress_ratio": 4,
}


def traced(config: dict[str, Any], seq: int | None = 32) -> OperatorGraph:
    return trace_transformers(config, name="it", seq=seq)


def built(config: dict[str, Any], kind: str) -> int:
    """Parameters of the model that ``transformers`` itself builds."""
    import torch
    import transformers

    with torch.device("meta"):
        model = getattr(transformers, kind)._from_config(transformers.AutoConfig.for_model(**config))
    return sum(parameter.numel() for parameter in model.parameters())


def forward(graph: OperatorGraph, kind: OpKind, scope: str = "") -> list[tuple[int, ...]]:
    """Shapes of the first inputs of the forward operators of that kind, one by one."""
    return [
        op.inputs[0].shape
        for op, n in graph
        for _ in range(n)
        if op.kind is kind and op.phase is Phase.FORWARD and scope in op.scope
    ]


def test_experts_whose_rows_are_counted_in_a_list_are_grouped_products() -> None:
    graph = traced(JETMOE)
    assert graph.num_parameters == built(JETMOE, "JetMoeForCausalLM")
    # two layers, each with queries, outputs, and two products of the experts, on two rows per token
    assert sorted(forward(graph, OpKind.GROUPED_GEMM)) == [(64, 32)] * 2 + [(64, 64)] * 4 + [(64, 96)] * 2


def test_all_samples_of_a_model_with_adapters_by_language_use_one_of_them() -> None:
    graph = traced(XMOD)
    assert graph.num_parameters == built(XMOD, "XmodForMaskedLM")
    rows = [shape[0] for shape in forward(graph, OpKind.GEMM, scope="adapter_modules")]
    assert sum(rows) == 2 * 2 * 32  # two layers, two products


@pytest.mark.long(guard="test_all_samples_of_a_model_with_adapters_by_language_use_one_of_them")
def test_bytes_are_joined_to_patches_of_the_stated_size() -> None:
    part = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 96}
    config = {
        "model_type": "blt",
        "vocab_size": 64,
        "patch_size": 4,
        "encoder_hash_byte_group_vocab": 50,
        "encoder_hash_byte_group_size": [3],
        **{
            f"{name}_config": {**part, "vocab_size": 64, "hidden_size_global": 128}
            for name in ("patcher", "encoder", "decoder")
        },
        "global_config": {**part, "hidden_size": 128},
    }
    graph = traced(config)
    assert graph.num_parameters == built(config, "BltForCausalLM")
    assert {shape[0] for shape in forward(graph, OpKind.GEMM, scope="global_transformer.layers")} == {32 // 4}
    assert "patches, which entropies decide, are taken to be 4 bytes long" in str(graph.attributes["note"])


@pytest.mark.long(guard="test_all_samples_of_a_model_with_adapters_by_language_use_one_of_them")
def test_a_decoder_inside_a_configuration_is_trained_on_all_its_codebooks() -> None:
    import torch
    import transformers

    config = {"model_type": "musicgen", "decoder": {"model_type": "musicgen_decoder", **MUSIC, "num_codebooks": 4}}
    graph = traced(config)
    with torch.device("meta"):
        inner = transformers.AutoConfig.for_model(**config).decoder
        model = transformers.MusicgenForCausalLM._from_config(inner)
    assert graph.num_parameters == sum(parameter.numel() for parameter in model.parameters())
    assert graph.tokens_per_sample == 32
    assert forward(graph, OpKind.GEMM, scope="lm_heads") == [(32, 32)] * 4


def test_a_row_goes_to_two_of_the_experts_that_have_a_weight_for_each_row() -> None:
    graph = traced(NLLB)
    assert graph.num_parameters == built(NLLB, "NllbMoeForConditionalGeneration")
    rows = [shape[0] for shape in forward(graph, OpKind.GEMM, scope=".fc1") if shape[1] == 32]
    assert sorted(rows) == [2 * 32 // 4] * 4 + [32]


@pytest.mark.long(guard="graph/test_zoo_sparse.py::test_an_indexer_runs_forward_only_and_its_parameters_are_held")
def test_an_indexer_scores_all_queries_with_all_blocks_of_keys_at_once() -> None:
    config = {**QWEN4, **INDEXER}
    graph = traced(config)
    assert graph.num_parameters == built(config, "Qwen4ExpForCausalLM")
    scores = [op for op in graph.operators if op.scope.endswith("indexer") and op.kind is OpKind.BATCHED_GEMM]
    assert [op.outputs[0].shape for op in scores] == [(1, 32 * 2, 32 // 4)]


def test_rotary_positions_by_type_of_layer_may_be_left_out() -> None:
    config = {"model_type": "cohere_compass_text", **SIZES, "architectures": ["CohereCompassTextForCausalLM"]}
    with_base = {**config, "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10_000.0}}}
    assert (
        traced(config).num_parameters
        == traced(with_base).num_parameters
        == 128 * 64 + 2 * (4 * 64**2 + 3 * 64 * 96 + 64) + 64
    )


def test_fields_that_a_configuration_leaves_open_are_named() -> None:
    with pytest.raises(
        RequestError, match=r"'qwen4_exp_text': .*; fields without a value: indexer_budget, indexer_comp"
    ):
        traced(QWEN4)


def test_a_field_that_a_configuration_lacks_is_named() -> None:
    with pytest.raises(
        RequestError, match=r"'moonshine_streaming': its configuration states no num_key_value_heads: add"
    ):
        traced({"model_type": "moonshine_streaming"})


@pytest.mark.skipif(importlib.util.find_spec("PIL") is not None, reason="PIL is installed")
def test_a_model_that_needs_a_package_for_images_names_it_and_its_language_model() -> None:
    with pytest.raises(RequestError) as caught:
        traced({"model_type": "gemma3n"})
    assert str(caught.value) == (
        "transformers cannot build model_type 'gemma3n': it needs the package PIL: pip install pillow; "
        "or give its text_config alone (model_type 'gemma3n_text')"
    )


def test_an_assistant_that_needs_the_states_of_another_model_is_refused() -> None:
    sizes = {**SIZES, "num_key_value_heads": 2, "head_dim": 16, "hidden_size_per_layer_input": 0}
    config = {"model_type": "gemma4_unified_assistant", "text_config": sizes, "backbone_hidden_size": 64}
    with pytest.raises(CaptureError) as caught:
        traced(config)
    message = str(caught.value)
    assert message.startswith("model_type 'gemma4_unified_assistant' cannot be traced from its configuration alone: ")
    assert "inputs_embeds and shared_kv_states cannot be None" in message and "\n" not in message
    assert message.endswith("give it with the inputs that it needs as a module of your own (package.module:factory)")
