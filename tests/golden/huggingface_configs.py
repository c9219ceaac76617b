"""Dimensions of well-known Hugging Face models, and the number of parameters that each was published with.

Numbers are those of the released checkpoints, a tied embedding counted once, without modules that only speed up
decoding (multi-token prediction). Routers' balancing offsets are no trained parameters and are left out. Those of
DeepSeek V3.2 and V4, Nemotron 3 Super and Longformer are what ``transformers`` 5.22 builds; they agree with the
published 685 billion (with prediction of further tokens), 284, 120 billion and 149 million."""

from __future__ import annotations

from typing import Any, Final

# fmt: off
SIGLIP: Final = {
    "hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "model_type": "siglip_vision_model",
    "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14, "vision_use_head": False,
}
LLAMA4_EYE: Final = {
    "model_type": "llama4_vision_model", "hidden_size": 1408, "image_size": 336, "intermediate_size": 5632,
    "num_attention_heads": 16, "num_hidden_layers": 34, "patch_size": 14, "projector_input_dim": 4096,
    "projector_output_dim": 4096, "vision_output_dim": 4096, "pixel_shuffle_ratio": 0.5,
}

PUBLISHED: Final[dict[str, tuple[int, dict[str, Any]]]] = {
    "llama-3.1-8b": (8_030_261_248, {
        "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    }),
    "llama-3.2-1b": (1_235_814_400, {
        "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 8192, "vocab_size": 128256,
        "tie_word_embeddings": True,
    }),
    "mistral-7b": (7_241_732_096, {
        "model_type": "mistral", "vocab_size": 32000, "sliding_window": 4096, "hidden_size": 4096, "num_hidden_layers":
        32, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    }),
    "mixtral-8x7b": (46_702_792_704, {
        "model_type": "mixtral", "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2, "hidden_size":
        4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    }),
    "qwen2.5-7b": (7_615_616_512, {
        "model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
        "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064,
    }),
    "gemma-2-9b": (9_241_705_984, {
        "model_type": "gemma2", "hidden_size": 3584, "num_hidden_layers": 42, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 256, "intermediate_size": 14336, "vocab_size": 256000, "sliding_window":
        4096,
    }),
    "gemma-2-2b": (2_614_341_888, {
        "model_type": "gemma2", "hidden_size": 2304, "num_hidden_layers": 26, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 256, "intermediate_size": 9216, "vocab_size": 256000, "sliding_window":
        4096,
    }),
    "gemma-3-1b": (999_885_952, {
        "model_type": "gemma3_text", "hidden_size": 1152, "num_hidden_layers": 26, "num_attention_heads": 4,
        "num_key_value_heads": 1, "head_dim": 256, "intermediate_size": 6912, "vocab_size": 262144, "sliding_window":
        512, "sliding_window_pattern": 6,
    }),
    "gemma-3-4b": (4_300_079_472, {
        "model_type": "gemma3", "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type":
        "gemma3_text", "num_hidden_layers": 34, "sliding_window": 1024}, "vision_config": SIGLIP,
    }),
    "gemma-3-27b": (27_432_406_640, {
        "model_type": "gemma3", "text_config": {"head_dim": 128, "hidden_size": 5376, "intermediate_size": 21504,
        "model_type": "gemma3_text", "num_attention_heads": 32, "num_hidden_layers": 62, "num_key_value_heads": 16,
        "sliding_window": 1024, "vocab_size": 262208}, "vision_config": SIGLIP,
    }),
    "llama-4-scout": (108_641_793_536, {
        "model_type": "llama4", "text_config": {"model_type": "llama4_text", "hidden_size": 5120, "intermediate_size":
        8192, "intermediate_size_mlp": 16384, "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads":
        8, "head_dim": 128, "num_local_experts": 16, "num_experts_per_tok": 1, "interleave_moe_layer_step": 1,
        "use_qk_norm": True, "vocab_size": 202048, "attention_chunk_size": 8192}, "vision_config": LLAMA4_EYE,
    }),
    "llama-4-maverick": (401_583_781_376, {
        "model_type": "llama4", "text_config": {"model_type": "llama4_text", "hidden_size": 5120, "intermediate_size":
        8192, "intermediate_size_mlp": 16384, "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads":
        8, "head_dim": 128, "num_local_experts": 128, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2,
        "use_qk_norm": False, "vocab_size": 202048, "attention_chunk_size": 8192}, "vision_config": LLAMA4_EYE,
    }),
    "mamba2-2.7b": (2_702_599_680, {
        "model_type": "mamba2", "hidden_size": 2560, "num_hidden_layers": 64, "num_heads": 80, "head_dim": 64,
        "state_size": 128, "n_groups": 1, "expand": 2, "conv_kernel": 4, "chunk_size": 256, "vocab_size": 50288,
        "tie_word_embeddings": True,
    }),
    "mamba-codestral-7b": (7_285_403_648, {
        "model_type": "mamba2", "hidden_size": 4096, "num_hidden_layers": 64, "num_heads": 128, "head_dim": 64,
        "state_size": 128, "n_groups": 8, "expand": 2, "conv_kernel": 4, "chunk_size": 256, "vocab_size": 32768,
        "tie_word_embeddings": False,
    }),
    "mamba-2.8b": (2_768_345_600, {
        "model_type": "mamba", "hidden_size": 2560, "num_hidden_layers": 64, "state_size": 16, "expand": 2,
        "intermediate_size": 5120, "conv_kernel": 4, "time_step_rank": 160, "vocab_size": 50280,
    }),
    "nemotron-4-minitron-8b": (8_271_699_968, {
        "model_type": "nemotron", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 48,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 16384, "vocab_size": 256000, "hidden_act":
        "relu2", "partial_rotary_factor": 0.5,
    }),
    "nemotron-h-8b": (8_100_852_736, {
        "model_type": "nemotron_h", "hidden_size": 4096,
        "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size":
        21504, "vocab_size": 131072, "mamba_num_heads": 128, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8,
        "conv_kernel": 4, "chunk_size": 128,
    }),
    "nemotron-3-nano": (31_577_937_344, {
        "model_type": "nemotron_h", "hidden_size": 2688, "hybrid_override_pattern":
        "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", "num_attention_heads": 32, "num_key_value_heads": 2,
        "head_dim": 128, "intermediate_size": 1856, "vocab_size": 131072, "mamba_num_heads": 64, "mamba_head_dim": 64,
        "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4, "chunk_size": 128, "n_routed_experts": 128,
        "num_experts_per_tok": 6, "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712,
        "n_shared_experts": 1,
    }),
    "nemotron-3-super": (120_668_687_360, {
        "model_type": "nemotron_h", "hidden_size": 4096, "hybrid_override_pattern":
        "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME",
        "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "intermediate_size": 2688,
        "vocab_size": 131072, "mamba_num_heads": 128, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8,
        "conv_kernel": 4, "chunk_size": 128, "n_routed_experts": 512, "num_experts_per_tok": 22,
        "moe_intermediate_size": 2688, "moe_shared_expert_intermediate_size": 5376, "moe_latent_size": 1024,
        "n_shared_experts": 1,
    }),
    "olmo-2-7b": (7_298_617_344, {
        "model_type": "olmo2", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 32, "intermediate_size": 11008, "vocab_size": 100352,
    }),
    "olmo-1b": (1_176_764_416, {
        "model_type": "olmo", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 16,
        "num_key_value_heads": 16, "intermediate_size": 8192, "vocab_size": 50304, "tie_word_embeddings": True,
    }),
    "olmo-3-7b": (7_298_011_136, {
        "model_type": "olmo3", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 32, "intermediate_size": 11008, "vocab_size": 100278, "sliding_window": 4096,
    }),
    "olmoe-1b-7b": (6_919_161_856, {
        "model_type": "olmoe", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 16,
        "num_key_value_heads": 16, "intermediate_size": 1024, "num_experts": 64, "num_experts_per_tok": 8, "vocab_size":
        50304,
    }),
    "glm-4-9b": (9_399_951_360, {
        "model_type": "glm", "hidden_size": 4096, "num_hidden_layers": 40, "num_attention_heads": 32,
        "num_key_value_heads": 2, "head_dim": 128, "intermediate_size": 13696, "vocab_size": 151552, "attention_bias":
        True, "partial_rotary_factor": 0.5,
    }),
    "glm-4-9b-0414": (9_400_279_040, {
        "model_type": "glm4", "hidden_size": 4096, "num_hidden_layers": 40, "num_attention_heads": 32,
        "num_key_value_heads": 2, "head_dim": 128, "intermediate_size": 13696, "vocab_size": 151552, "attention_bias":
        True, "partial_rotary_factor": 0.5,
    }),
    "glm-4.5-air": (106_852_245_504, {
        "model_type": "glm4_moe", "hidden_size": 4096, "num_hidden_layers": 46, "num_attention_heads": 96,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 10944, "moe_intermediate_size": 1408,
        "n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 1,
        "vocab_size": 151552, "attention_bias": True, "use_qk_norm": False, "partial_rotary_factor": 0.5,
    }),
    "granite-3.1-8b": (8_170_848_256, {
        "model_type": "granite", "hidden_size": 4096, "num_hidden_layers": 40, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 12800, "vocab_size": 49155, "tie_word_embeddings": True,
    }),
    "granite-3-1b-a400m": (1_334_628_352, {
        "model_type": "granitemoe", "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
        "num_key_value_heads": 8, "intermediate_size": 512, "num_local_experts": 32, "num_experts_per_tok": 8,
        "vocab_size": 49155, "tie_word_embeddings": True,
    }),
    "granite-4-tiny": (6_939_037_248, {
        "model_type": "granitemoehybrid", "hidden_size": 1536, "num_hidden_layers": 40, "num_attention_heads": 12,
        "num_key_value_heads": 4, "intermediate_size": 512, "shared_intermediate_size": 1024, "num_local_experts": 64,
        "num_experts_per_tok": 6, "vocab_size": 100352, "tie_word_embeddings": True, "mamba_n_heads": 48,
        "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_expand": 2, "layer_types": [*["mamba"] *
        5, "attention", *["mamba"] * 4] * 4, "position_embedding_type": "nope",
    }),
    "deepseek-v3": (671_026_404_352, {
        "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128,
        "num_key_value_heads": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256,
        "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "q_lora_rank": 1536,
        "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "vocab_size": 129280,
    }),
    "kimi-k2": (1_026_408_209_408, {
        "model_type": "kimi_k2", "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 64,
        "num_key_value_heads": 64, "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 384,
        "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 1, "q_lora_rank": 1536,
        "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "vocab_size": 163840,
    }),
    "deepseek-v3.2": (671_877_929_216, {
        "model_type": "deepseek_v32", "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128,
        "num_key_value_heads": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256,
        "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "q_lora_rank": 1536,
        "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "vocab_size": 129280,
        "index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048,
    }),
    "deepseek-v4-flash": (284_332_230_231, {
        "model_type": "deepseek_v4", "hidden_size": 4096, "num_hidden_layers": 43, "num_attention_heads": 64,
        "num_key_value_heads": 1, "head_dim": 512, "qk_rope_head_dim": 64, "q_lora_rank": 1024, "o_groups": 8,
        "o_lora_rank": 1024, "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
        "num_experts_per_tok": 6, "sliding_window": 128, "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0],
        "index_n_heads": 64, "index_head_dim": 128, "index_topk": 512, "hc_mult": 4, "vocab_size": 129280,
    }),
    "longformer-base": (148_711_257, {
        "model_type": "longformer", "vocab_size": 50265, "hidden_size": 768, "num_hidden_layers": 12,
        "num_attention_heads": 12, "intermediate_size": 3072, "max_position_embeddings": 4098, "type_vocab_size": 1,
        "attention_window": [512] * 12,
    }),
    "qwen3-next-80b": (79_674_391_296, {
        "model_type": "qwen3_next", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 16,
        "num_key_value_heads": 2, "head_dim": 256, "intermediate_size": 5120, "vocab_size": 151936,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim":
        128, "linear_conv_kernel_dim": 4, "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "full_attention_interval": 4, "partial_rotary_factor": 0.25,
        "decoder_sparse_step": 1, "mlp_only_layers": [],
    }),
    "qwen1.5-moe": (14_315_784_192, {
        "model_type": "qwen2_moe", "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 16,
        "num_key_value_heads": 16, "intermediate_size": 5632, "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632, "num_experts": 60, "num_experts_per_tok": 4, "vocab_size": 151936,
    }),
    "falcon-7b": (6_921_720_704, {
        "model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71, "vocab_size":
        65024, "multi_query": True, "parallel_attn": True, "bias": False, "alibi": False, "new_decoder_architecture":
        False,
    }),
    "falcon-40b": (41_303_293_952, {
        "model_type": "falcon", "hidden_size": 8192, "num_hidden_layers": 60, "num_attention_heads": 128,
        "num_kv_heads": 8, "vocab_size": 65024, "multi_query": True, "parallel_attn": True, "bias": False, "alibi":
        False, "new_decoder_architecture": True,
    }),
    "phi-2": (2_779_683_840, {
        "model_type": "phi", "hidden_size": 2560, "num_hidden_layers": 32, "num_attention_heads": 32,
        "intermediate_size": 10240, "vocab_size": 51200, "partial_rotary_factor": 0.4, "hidden_act": "gelu_new",
    }),
    "phi-3-mini": (3_821_079_552, {
        "model_type": "phi3", "hidden_size": 3072, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 32, "intermediate_size": 8192, "vocab_size": 32064, "sliding_window": 2047,
        "pad_token_id": 32000,
    }),
    "phi-4": (14_659_507_200, {
        "model_type": "phi3", "hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 40,
        "num_key_value_heads": 10, "intermediate_size": 17920, "vocab_size": 100352, "pad_token_id": 100349,
    }),
    "phi-3.5-moe": (41_873_153_344, {
        "model_type": "phimoe", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 6400, "vocab_size": 32064, "num_local_experts": 16,
        "num_experts_per_tok": 2, "attention_bias": True, "lm_head_bias": True, "sliding_window": 131072,
    }),
    "command-r": (34_980_831_232, {
        "model_type": "cohere", "hidden_size": 8192, "num_hidden_layers": 40, "num_attention_heads": 64,
        "num_key_value_heads": 64, "intermediate_size": 22528, "vocab_size": 256000,
    }),
    "command-r7b": (8_028_033_024, {
        "model_type": "cohere2", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 256000, "sliding_window": 4096,
        "sliding_window_pattern": 4,
    }),
    "starcoder2-7b": (7_173_923_840, {
        "model_type": "starcoder2", "hidden_size": 4608, "num_hidden_layers": 32, "num_attention_heads": 36,
        "num_key_value_heads": 4, "intermediate_size": 18432, "vocab_size": 49152, "sliding_window": 4096, "use_bias":
        True,
    }),
    "gpt-oss-20b": (20_914_757_184, {
        "model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 24, "num_attention_heads": 64,
        "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 2880, "num_local_experts": 32,
        "num_experts_per_tok": 4, "vocab_size": 201088, "sliding_window": 128,
    }),
    "bloom-7b1": (7_069_016_064, {
        "model_type": "bloom", "hidden_size": 4096, "n_layer": 30, "n_head": 32, "vocab_size": 250880,
    }),
    "gpt-j-6b": (6_050_882_784, {
        "model_type": "gptj", "n_embd": 4096, "n_layer": 28, "n_head": 16, "vocab_size": 50400, "rotary_dim": 64,
        "tie_word_embeddings": False,
    }),
    "stablelm-3b": (2_795_443_200, {
        "model_type": "stablelm", "hidden_size": 2560, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 32, "intermediate_size": 6912, "vocab_size": 50304, "partial_rotary_factor": 0.25,
        "tie_word_embeddings": False,
    }),
    "smollm3-3b": (3_075_098_624, {
        "model_type": "smollm3", "hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16,
        "num_key_value_heads": 4, "intermediate_size": 11008, "vocab_size": 128256,
    }),
    "falcon-mamba-7b": (7_272_665_088, {
        "model_type": "falcon_mamba", "hidden_size": 4096, "num_hidden_layers": 64, "state_size": 16,
        "intermediate_size": 8192, "conv_kernel": 4, "time_step_rank": 256, "vocab_size": 65024, "tie_word_embeddings":
        False,
    }),
}
# fmt: on
"""Name to parameters and configuration."""
