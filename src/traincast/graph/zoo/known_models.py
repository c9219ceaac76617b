"""Dimensions of well-known language models that have no card in the zoo, from their released configurations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Final

_LLAMA: Final = """
llama-7b vicuna-7b alpaca-7b llama-2-7b llama2-7b : 32 4096 32 32 11008 32000
codellama-7b : 32 4096 32 32 11008 32016
llama-13b vicuna-13b llama-2-13b llama2-13b : 40 5120 40 40 13824 32000
llama-30b llama-33b vicuna-33b : 60 6656 52 52 17920 32000
llama-65b : 80 8192 64 64 22016 32000
codellama-34b : 48 8192 64 8 22016 32000
llama-2-70b llama2-70b : 80 8192 64 8 28672 32000
codellama-70b : 80 8192 64 8 28672 32016
open_llama-3b : 26 3200 32 32 8640 32000
llama-3-8b llama3-8b llama-3.1-8b llama3.1-8b : 32 4096 32 8 14336 128256
llama-3-70b llama3-70b llama-3.1-70b llama3.1-70b llama-3.3-70b llama3.3-70b : 80 8192 64 8 28672 128256
llama-3.1-405b llama3.1-405b : 126 16384 128 8 53248 128256
llama-3.2-1b llama3.2-1b : 16 2048 32 8 8192 128256 tied
llama-3.2-3b llama3.2-3b : 28 3072 24 8 8192 128256 tied
tinyllama-1.1b : 22 2048 32 4 5632 32000
mistral-7b zephyr-7b : 32 4096 32 8 14336 32000
openhermes-2.5-mistral-7b : 32 4096 32 8 14336 32002
mathstral-7b : 32 4096 32 8 14336 32768
solar-10.7b : 48 4096 32 8 14336 32000
qwen-1.8b qwen1.5-1.8b : 24 2048 16 16 5504 151936 qkv_bias=true
qwen-7b qwen1.5-7b : 32 4096 32 32 11008 151936 qkv_bias=true
qwen-14b qwen1.5-14b : 40 5120 40 40 13696 152064 qkv_bias=true
qwen-72b qwen1.5-72b : 80 8192 64 64 24576 152064 qkv_bias=true
qwen1.5-0.5b : 24 1024 16 16 2816 151936 tied qkv_bias=true
qwen1.5-4b : 40 2560 20 20 6912 151936 qkv_bias=true
qwen1.5-32b : 64 5120 40 8 27392 152064 qkv_bias=true
qwen2-0.5b qwen2.5-0.5b : 24 896 14 2 4864 151936 tied qkv_bias=true
qwen2-1.5b qwen2.5-1.5b : 28 1536 12 2 8960 151936 tied qkv_bias=true
qwen2.5-3b : 36 2048 16 2 11008 151936 tied qkv_bias=true
qwen2-7b qwen2.5-7b qwen2.5-coder-7b qwen2.5-math-7b : 28 3584 28 4 18944 152064 qkv_bias=true
qwen2.5-14b : 48 5120 40 8 13824 152064 qkv_bias=true
qwen2.5-32b qwen2.5-coder-32b qwq-32b : 64 5120 40 8 27648 152064 qkv_bias=true
qwen2-72b qwen2.5-72b : 80 8192 64 8 29568 152064 qkv_bias=true
yi-6b yi-1.5-6b : 32 4096 32 4 11008 64000
yi-9b yi-1.5-9b : 48 4096 32 4 11008 64000
yi-34b yi-1.5-34b : 60 7168 56 8 20480 64000
baichuan-7b : 32 4096 32 32 11008 64000
baichuan2-7b : 32 4096 32 32 11008 125696
baichuan-13b : 40 5120 40 40 13696 64000
baichuan2-13b : 40 5120 40 40 13696 125696
chatglm2-6b chatglm3-6b : 28 4096 32 2 13696 65024 rope_fraction=0.5 qkv_bias=true
glm-4-9b : 40 4096 32 2 13696 151552 rope_fraction=0.5 qkv_bias=true
internlm2-7b internlm2.5-7b : 32 4096 32 8 14336 92544
internlm2-20b : 48 6144 48 8 16384 92544
deepseek-llm-7b deepseek-7b : 30 4096 32 32 11008 102400
deepseek-coder-6.7b : 32 4096 32 32 11008 32256
deepseek-coder-1.3b : 24 2048 16 16 5504 32256
phi-3-mini phi-3.5-mini phi-3-mini-4k phi-3-mini-128k : 32 3072 32 32 8192 32064
phi-3-medium phi-3-medium-4k : 40 5120 40 10 17920 32064
gemma-2b : 18 2048 8 1 16384 256000 tied
smollm-135m smollm2-135m : 30 576 9 3 1536 49152 tied
smollm-360m smollm2-360m : 32 960 15 5 2560 49152 tied
smollm-1.7b smollm2-1.7b : 24 2048 32 32 8192 49152 tied
stablelm-3b stablelm-3b-4e1t : 32 2560 32 32 6912 50304 rope_fraction=0.25
open_llama-7b openllama-7b : 32 4096 32 32 11008 32000
open_llama-13b openllama-13b : 40 5120 40 40 13824 32000
internlm-7b : 32 4096 32 32 11008 103168 qkv_bias=true out_bias=true
internlm-20b : 60 5120 40 40 13824 103168
aquila-7b : 32 4096 32 32 11008 100008
skywork-13b : 52 4608 36 36 12288 65519
xverse-13b : 40 5120 40 40 13824 100278
xverse-65b : 80 8192 64 64 22016 100534
olmo-1b : 16 2048 16 16 8192 50304 tied
olmo-7b : 32 4096 32 32 11008 50304
smollm3-3b : 36 2048 16 4 11008 128256 tied
phi3-mini phi3-mini-3.8b phi-3-mini-3.8b : 32 3072 32 32 8192 32064
phi3-medium phi3-medium-14b phi-3-medium-14b : 40 5120 40 10 17920 32064
mistral-small-24b mistral-small-3.1-24b mistral-small-3.2-24b : 40 5120 32 8 32768 131072 head_dim=128
mistral-small-22b codestral-22b : 56 6144 48 8 16384 32768
mistral-large mistral-large-123b : 88 12288 96 8 28672 32768
ministral-8b : 36 4096 32 8 12288 131072
granite-3-2b granite-3.0-2b granite-3.1-2b granite-3.3-2b : 40 2048 32 8 8192 49155 tied
granite-3-8b granite-3.0-8b granite-3.1-8b granite-3.3-8b : 40 4096 32 8 12800 49155 tied
granite-8b-code : 36 4096 32 8 14336 49152 tied
command-r-35b c4ai-command-r-v01 : 40 8192 64 64 22528 256000 tied
command-r-plus command-r-plus-104b c4ai-command-r-plus : 64 12288 96 8 33792 256000 tied
seed-oss-36b : 64 5120 80 8 27648 155136 head_dim=128 qkv_bias=true
exaone-3-7.8b exaone-3.0-7.8b exaone-3.5-7.8b : 32 4096 32 8 14336 102400
exaone-32b exaone-3.5-32b : 64 5120 40 8 27392 102400
exaone-4-32b exaone-4.0-32b : 64 5120 40 8 27392 102400 qk_norm=true
stablelm-2-1.6b : 24 2048 32 32 5632 100352 rope_fraction=0.25 qkv_bias=true
stablelm-2-12b : 40 5120 32 8 13824 100352 rope_fraction=0.25
falcon3-7b falcon-3-7b : 28 3072 12 4 23040 131072 head_dim=256
falcon3-10b falcon-3-10b : 40 3072 12 4 23040 131072 head_dim=256
qwen3-0.6b : 28 1024 16 8 3072 151936 tied head_dim=128 qk_norm=true
qwen3-1.7b : 28 2048 16 8 6144 151936 tied head_dim=128 qk_norm=true
qwen3-4b : 36 2560 32 8 9728 151936 tied head_dim=128 qk_norm=true
qwen3-14b : 40 5120 40 8 17408 151936 head_dim=128 qk_norm=true
deepseek-llm-67b deepseek-67b : 95 8192 64 8 22016 102400
llama-3.1-nemotron-70b : 80 8192 64 8 28672 128256
palm-8b : 32 4096 16 1 16384 256000 tied head_dim=256
palm-62b : 64 8192 32 1 32768 256000 tied head_dim=256
palm-540b : 118 18432 48 1 73728 256000 tied head_dim=256
"""
"""Names, and layers, width, heads, heads of keys, width of the feed-forward layer, vocabulary.

``tied``: one table for tokens and logits; anything else is a parameter of the family.
"""
_GPT: Final = """
gpt-j-6b gptj-6b gpt-j : 28 4096 16 16 16384 50400 positions=rope parallel=true rope_fraction=0.25
gpt-neo-1.3b : 24 2048 16 16 8192 50257 tied max_positions=2048
gpt-neo-2.7b : 32 2560 20 20 10240 50257 tied max_positions=2048
gpt-neox-20b : 44 6144 64 64 24576 50432 positions=rope parallel=true rope_fraction=0.25
pythia-70m : 6 512 8 8 2048 50304 positions=rope parallel=true rope_fraction=0.25
pythia-160m : 12 768 12 12 3072 50304 positions=rope parallel=true rope_fraction=0.25
pythia-410m : 24 1024 16 16 4096 50304 positions=rope parallel=true rope_fraction=0.25
pythia-1b : 16 2048 8 8 8192 50304 positions=rope parallel=true rope_fraction=0.25
pythia-1.4b : 24 2048 16 16 8192 50304 positions=rope parallel=true rope_fraction=0.25
pythia-2.8b dolly-v2-3b : 32 2560 32 32 10240 50304 positions=rope parallel=true rope_fraction=0.25
pythia-6.9b dolly-v2-7b : 32 4096 32 32 16384 50432 positions=rope parallel=true rope_fraction=0.25
pythia-12b dolly-v2-12b : 36 5120 40 40 20480 50688 positions=rope parallel=true rope_fraction=0.25
oasst-sft-4-pythia-12b : 36 5120 40 40 20480 50288 positions=rope parallel=true rope_fraction=0.25
opt-125m : 12 768 12 12 3072 50272 tied activation=relu max_positions=2050
opt-350m : 24 1024 16 16 4096 50272 tied activation=relu max_positions=2050
opt-1.3b : 24 2048 32 32 8192 50272 tied activation=relu max_positions=2050
opt-2.7b : 32 2560 32 32 10240 50272 tied activation=relu max_positions=2050
opt-6.7b : 32 4096 32 32 16384 50272 tied activation=relu max_positions=2050
opt-13b : 40 5120 40 40 20480 50272 tied activation=relu max_positions=2050
opt-30b : 48 7168 56 56 28672 50272 tied activation=relu max_positions=2050
opt-66b : 64 9216 72 72 36864 50272 tied activation=relu max_positions=2050
opt-175b : 96 12288 96 96 49152 50272 tied activation=relu max_positions=2050
bloom-560m bloomz-560m : 24 1024 16 16 4096 250880 tied positions=alibi
bloom-1b1 bloomz-1b1 : 24 1536 16 16 6144 250880 tied positions=alibi
bloom-1b7 bloomz-1b7 : 24 2048 16 16 8192 250880 tied positions=alibi
bloom-3b bloomz-3b : 30 2560 32 32 10240 250880 tied positions=alibi
bloom-7b bloomz-7b bloom-7b1 bloomz-7b1 bloomz-7b1-mt : 30 4096 32 32 16384 250880 tied positions=alibi
bloom bloom-176b bloomz : 70 14336 112 112 57344 250880 tied positions=alibi
falcon-7b : 32 4544 71 1 18176 65024 tied positions=rope parallel=true bias=false
falcon-40b : 60 8192 128 8 32768 65024 tied positions=rope parallel=true bias=false
falcon-180b : 80 14848 232 8 59392 65024 tied positions=rope parallel=true bias=false
phi-1 phi-1.5 : 24 2048 32 32 8192 51200 positions=rope parallel=true rope_fraction=0.5
phi-2 : 32 2560 32 32 10240 51200 positions=rope parallel=true rope_fraction=0.4
starcoder starcoder-15b starcoderbase : 40 6144 48 1 24576 49152 tied max_positions=8192
starcoderbase-1b : 24 2048 16 1 8192 49152 tied max_positions=8192
starcoder2-3b : 30 3072 24 2 12288 49152 tied positions=rope
starcoder2-7b : 32 4608 36 4 18432 49152 tied positions=rope
starcoder2-15b : 40 6144 48 4 24576 49152 positions=rope
starcoder-15.5b : 40 6144 48 1 24576 49152 tied max_positions=8192
granite-20b-code : 52 6144 48 1 24576 49152 tied max_positions=8192
granite-34b-code : 88 6144 48 1 24576 49152 tied max_positions=8192
cerebras-gpt-1.3b : 24 2048 16 16 8192 50257 tied max_positions=2048
cerebras-gpt-2.7b : 32 2560 32 32 10240 50257 tied max_positions=2048
cerebras-gpt-6.7b : 32 4096 32 32 16384 50257 tied max_positions=2048
cerebras-gpt-13b : 40 5120 40 40 20480 50257 tied max_positions=2048
galactica-6.7b : 32 4096 32 32 16384 50000 tied max_positions=2050 bias=false
galactica-30b : 48 7168 56 56 28672 50000 tied max_positions=2050 bias=false
galactica-120b : 96 10240 80 80 40960 50000 tied max_positions=2050 bias=false
gpt3-5b gpt-3-5b : 24 4096 32 32 16384 51200 tied max_positions=2048
gpt3-20b gpt-3-20b : 44 6144 48 48 24576 51200 tied max_positions=2048
gpt3-40b gpt-3-40b : 48 8192 64 64 32768 51200 tied max_positions=2048
"""
_GEMMA2: Final = "tied=true,activation=geglu,norms=around,mixers=w*,window=4096,vocab=256000,seq=8192"
_NEMOTRON4: Final = "kv_heads=8,vocab=256000,positions=rope,activation=relu2,bias=false,tied=false"


def _hybrid(layers: str) -> str:
    """A pattern of NVIDIA's hybrids as the zoo writes it: M a scan, * attention without positions, - a feed-forward."""
    feeds = "".join("d" if kind == "-" else "-" for kind in layers)
    return (
        f"decoder:layers={len(layers)},mixers={layers.replace('*', 'n')},feeds={feeds},kv_heads=8,head_dim=128,"
        "vocab=131072,activation=relu2,state_groups=8,chunk=128"
    )


_GLM45: Final = (
    "decoder:layers=92,hidden=5120,heads=96,kv_heads=8,ffn=12288,vocab=151552,head_dim=128,qkv_bias=true,qk=head,"
    f"rope_fraction=0.5,feeds=ddd{'e' * 89},experts=160,top_k=8,expert_ffn=1536,shared_ffn=1536,router=sigmoid"
)
_OLMO2: Final = "vocab=100352,norms=after,qk=width"
_MAMBA2: Final = "heads=1,ffn=1,mixers=M,feeds=-,vocab=50288,tied=true,state=128,state_groups=1,chunk=256"
_MAMBA: Final = "mixers=M,feeds=-,state=16,rope_fraction=0.0,vocab=50280,tied=true"
_JAMBA: Final = "mixers=MMMMnMMM,feeds=de,kv_heads=8,experts=16,top_k=2,state=16,vocab=65536"
_APERTUS: Final = "kv_heads=8,qk=head,vocab=131072,activation=relu2"
"""Its activation xIELU is counted as a squared ReLU: both are one pass over the same elements."""
_UL2: Final = "t5:layers=32,hidden=4096,heads=16,head_dim=256,ffn=16384,vocab=32128,activation=geglu,tied=false"
_T5_V11: Final = "head_dim=64,vocab=32128,activation=geglu,tied=false"
_MT5: Final = "vocab=250112,activation=geglu,tied=false"
_SPECS: Final = {
    "bert-4b": "bert:layers=48,hidden=2560,heads=32",
    "bert-20b": "bert:layers=48,hidden=6144,heads=96",
    "bert-100b": "bert:layers=96,hidden=9216,heads=96",
    "mistral-nemo-12b": "llama:layers=40,hidden=5120,heads=32,kv_heads=8,head_dim=128,ffn=14336,vocab=131072",
    "mistral-large-2": "llama:layers=88,hidden=12288,heads=96,kv_heads=8,ffn=28672,vocab=32768",
    "nemotron-4-340b": f"gpt:layers=96,hidden=18432,heads=96,ffn=73728,{_NEMOTRON4}",
    "nemotron-4-15b": f"gpt:layers=32,hidden=6144,heads=48,ffn=24576,{_NEMOTRON4}",
    "megatron-turing-nlg-530b": "gpt:layers=105,hidden=20480,heads=128",
    "mt-nlg-530b": "gpt:layers=105,hidden=20480,heads=128",
    "grok-1": "moe:layers=64,hidden=6144,heads=48,kv_heads=8,experts=8,top_k=2,expert_ffn=32768,vocab=131072,tied=true",
    "dbrx": "moe:layers=40,hidden=6144,heads=48,kv_heads=8,experts=16,top_k=4,expert_ffn=10752,vocab=100352",
    "qwen1.5-moe-a2.7b": "moe:layers=24,hidden=2048,heads=16,kv_heads=16,experts=60,top_k=4,expert_ffn=1408,"
    "shared_ffn=5632,vocab=151936",
    "olmoe-1b-7b": "moe:layers=16,hidden=2048,heads=16,kv_heads=16,experts=64,top_k=8,expert_ffn=1024,vocab=50304",
    "gemma-2-2b": f"decoder:layers=26,hidden=2304,heads=8,kv_heads=4,ffn=9216,head_dim=256,{_GEMMA2}",
    "gemma-2-27b": f"decoder:layers=46,hidden=4608,heads=32,kv_heads=16,ffn=36864,head_dim=128,{_GEMMA2}",
    "gemma-7b": "decoder:layers=28,hidden=3072,heads=16,kv_heads=16,ffn=24576,head_dim=256,activation=geglu,tied=true,"
    "vocab=256000",
    "bert-base": "bert-base",
    "bert-base-uncased": "bert-base",
    "bert-base-cased": "bert:layers=12,hidden=768,heads=12,vocab=28996,seq=128",
    "bert-large-uncased": "bert-large",
    "bert-large-cased": "bert:layers=24,hidden=1024,heads=16,vocab=28996,seq=512",
    "flan-t5-small": f"t5:layers=8,hidden=512,heads=6,ffn=1024,{_T5_V11}",
    "flan-t5-base": f"t5:layers=12,hidden=768,heads=12,ffn=2048,{_T5_V11}",
    "flan-t5-large": "t5-v1.1-large",
    "flan-t5-xl": "t5-v1.1-xl",
    "flan-t5-xxl": "t5-v1.1-xxl",
    "gemma-2-9b": "gemma2-9b",
    "gemma-3-4b": "gemma3-4b",
    "gemma-3-12b": "gemma3-12b",
    "gemma-3-27b": "gemma3-27b",
    "qwen3-8b": "qwen3-8b",
    "qwen3-32b": "qwen3-32b",
    "phi-4": "phi-4",
    "minimax-m2": "moe:layers=62,hidden=3072,heads=48,kv_heads=8,head_dim=128,experts=256,top_k=8,expert_ffn=1536,"
    "vocab=200064,qk_norm=true",
    "qwen2-57b-a14b": "moe:layers=28,hidden=3584,heads=28,kv_heads=4,experts=64,top_k=8,expert_ffn=2560,"
    "shared_ffn=20480,vocab=151936",
    "qwen3-coder-480b-a35b": "moe:layers=62,hidden=6144,heads=96,kv_heads=8,head_dim=128,experts=160,top_k=8,"
    "expert_ffn=2560,vocab=151936,qk_norm=true",
    "phi-3.5-moe": "moe:layers=32,hidden=4096,heads=32,kv_heads=8,experts=16,top_k=2,expert_ffn=6400,vocab=32064",
    "hunyuan-a13b": "moe:layers=32,hidden=4096,heads=32,kv_heads=8,head_dim=128,experts=64,top_k=8,expert_ffn=3072,"
    "shared_ffn=3072,vocab=128167,qk_norm=true,tied=true",
    "deepseek-moe-16b": "decoder:layers=28,hidden=2048,heads=16,kv_heads=16,ffn=10944,vocab=102400,"
    f"feeds=d{'e' * 27},experts=64,top_k=6,expert_ffn=1408,shared_ffn=2816",
    "ernie-4.5-21b-a3b": "decoder:layers=28,hidden=2560,heads=20,kv_heads=4,head_dim=128,ffn=12288,vocab=103424,"
    f"tied=true,feeds=d{'e' * 27},experts=64,top_k=6,expert_ffn=1536,shared_ffn=3072",
    "moonlight-16b-a3b": "deepseek:layers=27,hidden=2048,heads=16,experts=64,top_k=6,expert_ffn=1408,ffn=11264,"
    "shared_experts=2,first_dense=1,q_lora=0,kv_lora=512,rope_dim=64,nope_dim=128,v_dim=128,router=sigmoid,vocab=163840",
    "glm-4.5": _GLM45,
    "glm-4.5-355b-a32b": _GLM45,
    "glm-4.6": _GLM45,
    "olmo-2-1b": f"decoder:layers=16,hidden=2048,heads=16,kv_heads=16,ffn=8192,{_OLMO2}",
    "olmo-2-13b": f"decoder:layers=40,hidden=5120,heads=40,kv_heads=40,ffn=13824,{_OLMO2}",
    "olmo-2-32b": f"decoder:layers=64,hidden=5120,heads=40,kv_heads=8,ffn=27648,{_OLMO2}",
    "gemma-3-1b": "decoder:layers=26,hidden=1152,heads=4,kv_heads=1,ffn=6912,vocab=262144,seq=8192,head_dim=256,"
    "activation=geglu,tied=true,norms=around,mixers=wwwww*,window=512,qk=head",
    "mamba2-130m": f"decoder:layers=24,hidden=768,state_inner=1536,state_heads=24,{_MAMBA2}",
    "mamba2-370m": f"decoder:layers=48,hidden=1024,state_inner=2048,state_heads=32,{_MAMBA2}",
    "mamba2-780m": f"decoder:layers=48,hidden=1536,state_inner=3072,state_heads=48,{_MAMBA2}",
    "mamba2-1.3b": f"decoder:layers=48,hidden=2048,state_inner=4096,state_heads=64,{_MAMBA2}",
    "mamba2-2.7b": f"decoder:layers=64,hidden=2560,state_inner=5120,state_heads=80,{_MAMBA2}",
    "nemotron-h-56b": _hybrid("M-M-M-M*" + "-M-M-M-M-M*" * 9 + "-M-M-M-M-M-")
    + ",hidden=8192,heads=64,ffn=32768,state=256,state_inner=16384,state_heads=256",
    "nemotron-nano-9b-v2": _hybrid("M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-")
    + ",hidden=4480,heads=40,ffn=15680,state=128,state_inner=10240,state_heads=128",
    "nemotron-nano-12b-v2": _hybrid("M-M-M-M*" + "-M-M-M-M*" * 5 + "-M-M-M-M-")
    + ",hidden=5120,heads=40,ffn=20480,state=128,state_inner=10240,state_heads=128",
    "mamba-130m": f"decoder:layers=24,hidden=768,{_MAMBA}",
    "mamba-370m": f"decoder:layers=48,hidden=1024,{_MAMBA}",
    "mamba-790m": f"decoder:layers=48,hidden=1536,{_MAMBA}",
    "mamba-1.4b": f"decoder:layers=48,hidden=2048,{_MAMBA}",
    "mamba-2.8b": f"decoder:layers=64,hidden=2560,{_MAMBA}",
    "falcon-mamba-7b": "decoder:layers=64,hidden=4096,mixers=M,feeds=-,state=16,rope_fraction=0.0,vocab=65024",
    "jamba-v0.1": f"decoder:layers=32,hidden=4096,heads=32,ffn=14336,expert_ffn=14336,{_JAMBA}",
    "jamba-1.5-mini": f"decoder:layers=32,hidden=4096,heads=32,ffn=14336,expert_ffn=14336,{_JAMBA}",
    "jamba-1.5-large": f"decoder:layers=72,hidden=8192,heads=64,ffn=24576,expert_ffn=24576,{_JAMBA}",
    "snowflake-arctic": "moe:layers=35,hidden=7168,heads=56,kv_heads=8,experts=128,top_k=2,expert_ffn=4864,"
    "shared_ffn=7168,vocab=32000",
    "ling-lite": "moe:layers=28,hidden=2048,heads=16,kv_heads=4,experts=64,top_k=6,expert_ffn=1408,shared_ffn=2816,"
    "vocab=126464",
    "hunyuan-large": "moe:layers=64,hidden=6400,heads=80,kv_heads=8,experts=16,top_k=1,expert_ffn=18304,"
    "shared_ffn=18304,vocab=128512,qk_norm=true,tied=true",
    "apertus-8b": f"decoder:layers=32,hidden=4096,heads=32,ffn=21504,{_APERTUS}",
    "apertus-70b": f"decoder:layers=80,hidden=8192,heads=64,ffn=43008,{_APERTUS}",
    "phi-mini-moe": "moe:layers=32,hidden=4096,heads=32,kv_heads=8,experts=16,top_k=2,expert_ffn=960,vocab=32064",
    "phi-tiny-moe": "moe:layers=32,hidden=4096,heads=16,kv_heads=4,head_dim=128,experts=16,top_k=2,expert_ffn=448,"
    "vocab=32064",
    "ul2": _UL2,
    "ul2-20b": _UL2,
    "flan-ul2": _UL2,
    "mt5-large": f"t5:layers=24,hidden=1024,heads=16,head_dim=64,ffn=2816,{_MT5}",
    "mt5-xl": f"t5:layers=24,hidden=2048,heads=32,head_dim=64,ffn=5120,{_MT5}",
    "mt5-xxl": f"t5:layers=24,hidden=4096,heads=64,head_dim=64,ffn=10240,{_MT5}",
    "mt5-13b": f"t5:layers=24,hidden=4096,heads=64,head_dim=64,ffn=10240,{_MT5}",
    "qwen3-next-80b": "qwen3-next-80b-a3b",
    "deepseek-v3.1": "deepseek-v3",
}
"""Models that need more than six numbers, and spellings of models of the zoo that their names do not resemble."""


def known_model(written: str) -> str | None:
    """Return the spec of a well-known model, as ``Llama-3.1-8B`` or ``opt-1.3b`` is spelt; ``None`` if not known.

    A point counts: ``opt-1.3b`` and ``opt-13b`` are two models.
    """
    return _specs().get(_plain(written))


def spelled(written: str) -> str:
    """Return the name of a well-known model as its publisher spells it."""
    return next(name for name in known_names() if _plain(name) == _plain(written))


def known_names() -> list[str]:
    """Return the names of all well-known models, as their publishers spell them."""
    return [*_SPECS, *(name for line in _lines() for name in line[1])]


def _lines() -> Iterator[tuple[str, list[str], list[str]]]:
    """The family, the names and the numbers of every line of the tables."""
    for family, lines in (("llama", _LLAMA), ("gpt", _GPT)):
        for line in lines.strip().splitlines():
            names, _, numbers = line.partition(" : ")
            yield family, names.split(), numbers.split()


def _plain(written: str) -> str:
    joined = re.sub(r"(?<=\d)_(?=\d+b)", ".", written.lower())
    return re.sub(r"[^a-z0-9.]", "", joined)


@cache
def _specs() -> dict[str, str]:
    found = {_plain(name): spec for name, spec in _SPECS.items()}
    for family, names, (layers, hidden, heads, kv_heads, ffn, vocab, *more) in _lines():
        parts = f"layers={layers},hidden={hidden},heads={heads},kv_heads={kv_heads},ffn={ffn},vocab={vocab}"
        if family == "gpt" and kv_heads == heads:
            parts = parts.replace(f"kv_heads={kv_heads},", "")
        tied = "true" if "tied" in more else "false"
        spec = ",".join([f"{family}:{parts}", f"tied={tied}", *(each for each in more if each != "tied")])
        found.update(dict.fromkeys(map(_plain, names), spec))
    return found
