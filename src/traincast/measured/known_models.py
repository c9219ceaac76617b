"""Dimensions of well-known language models that are not in the zoo, from their released configurations."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

_LLAMA: Final = """
llama-7b vicuna-7b alpaca-7b llama-2-7b llama2-7b : 32 4096 32 32 11008 32000
codellama-7b : 32 4096 32 32 11008 32016
llama-13b vicuna-13b llama-2-13b llama2-13b : 40 5120 40 40 13824 32000
llama-30b llama-33b vicuna-33b : 60 6656 52 52 17920 32000
llama-65b : 80 8192 64 64 22016 32000
codellama-34b : 48 8192 64 8 22016 32000
codellama-70b llama-2-70b llama2-70b : 80 8192 64 8 28672 32000
open_llama-3b : 26 3200 32 32 8640 32000
llama-3-8b llama3-8b llama-3.1-8b llama3.1-8b : 32 4096 32 8 14336 128256
llama-3-70b llama3-70b llama-3.1-70b llama3.1-70b llama-3.3-70b llama3.3-70b : 80 8192 64 8 28672 128256
llama-3.1-405b llama3.1-405b : 126 16384 128 8 53248 128256
llama-3.2-1b llama3.2-1b : 16 2048 32 8 8192 128256 tied
llama-3.2-3b llama3.2-3b : 28 3072 24 8 8192 128256 tied
tinyllama-1.1b : 22 2048 32 4 5632 32000
mistral-7b zephyr-7b openhermes-2.5-mistral-7b mathstral-7b : 32 4096 32 8 14336 32000
solar-10.7b : 48 4096 32 8 14336 32000
qwen-1.8b qwen1.5-1.8b : 24 2048 16 16 5504 151936
qwen-7b qwen1.5-7b : 32 4096 32 32 11008 151936
qwen-14b qwen1.5-14b : 40 5120 40 40 13696 152064
qwen-72b qwen1.5-72b : 80 8192 64 64 24576 152064
qwen1.5-0.5b : 24 1024 16 16 2816 151936 tied
qwen1.5-4b : 40 2560 20 20 6912 151936
qwen1.5-32b : 64 5120 40 8 27392 152064
qwen2-0.5b qwen2.5-0.5b : 24 896 14 2 4864 151936 tied
qwen2-1.5b qwen2.5-1.5b : 28 1536 12 2 8960 151936 tied
qwen2.5-3b : 36 2048 16 2 11008 151936 tied
qwen2-7b qwen2.5-7b qwen2.5-coder-7b qwen2.5-math-7b : 28 3584 28 4 18944 152064
qwen2.5-14b : 48 5120 40 8 13824 152064
qwen2.5-32b qwen2.5-coder-32b qwq-32b : 64 5120 40 8 27648 152064
qwen2-72b qwen2.5-72b : 80 8192 64 8 29568 152064
yi-6b yi-1.5-6b : 32 4096 32 4 11008 64000
yi-9b yi-1.5-9b : 48 4096 32 4 11008 64000
yi-34b yi-1.5-34b : 60 7168 56 8 20480 64000
baichuan-7b : 32 4096 32 32 11008 64000
baichuan2-7b : 32 4096 32 32 11008 125696
baichuan-13b : 40 5120 40 40 13696 64000
baichuan2-13b : 40 5120 40 40 13696 125696
chatglm2-6b chatglm3-6b : 28 4096 32 2 13696 65024
glm-4-9b : 40 4096 32 2 13696 151552
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
stablelm-3b stablelm-3b-4e1t : 32 2560 32 32 6912 50304
"""
"""Names, and layers, width, heads, heads of keys, width of the feed-forward layer, vocabulary.

``tied``: one table for tokens and logits; anything else is a parameter of the family.
"""
_GPT: Final = """
gpt-j-6b gptj-6b gpt-j : 28 4096 16 16 16384 50400 positions=rope parallel=true
gpt-neo-1.3b : 24 2048 16 16 8192 50257 tied
gpt-neo-2.7b : 32 2560 20 20 10240 50257 tied
gpt-neox-20b : 44 6144 64 64 24576 50432 positions=rope parallel=true
pythia-70m : 6 512 8 8 2048 50304 positions=rope parallel=true
pythia-160m : 12 768 12 12 3072 50304 positions=rope parallel=true
pythia-410m : 24 1024 16 16 4096 50304 positions=rope parallel=true
pythia-1b : 16 2048 8 8 8192 50304 positions=rope parallel=true
pythia-1.4b : 24 2048 16 16 8192 50304 positions=rope parallel=true
pythia-2.8b dolly-v2-3b : 32 2560 32 32 10240 50304 positions=rope parallel=true
pythia-6.9b dolly-v2-7b : 32 4096 32 32 16384 50432 positions=rope parallel=true
pythia-12b dolly-v2-12b oasst-sft-4-pythia-12b : 36 5120 40 40 20480 50688 positions=rope parallel=true
opt-125m : 12 768 12 12 3072 50272 tied activation=relu
opt-350m : 24 1024 16 16 4096 50272 tied activation=relu
opt-1.3b : 24 2048 32 32 8192 50272 tied activation=relu
opt-2.7b : 32 2560 32 32 10240 50272 tied activation=relu
opt-6.7b : 32 4096 32 32 16384 50272 tied activation=relu
opt-13b : 40 5120 40 40 20480 50272 tied activation=relu
opt-30b : 48 7168 56 56 28672 50272 tied activation=relu
opt-66b : 64 9216 72 72 36864 50272 tied activation=relu
opt-175b : 96 12288 96 96 49152 50272 tied activation=relu
bloom-560m bloomz-560m : 24 1024 16 16 4096 250880 tied positions=alibi
bloom-1b1 bloomz-1b1 : 24 1536 16 16 6144 250880 tied positions=alibi
bloom-1b7 bloomz-1b7 : 24 2048 16 16 8192 250880 tied positions=alibi
bloom-3b bloomz-3b : 30 2560 32 32 10240 250880 tied positions=alibi
bloom-7b bloomz-7b bloom-7b1 bloomz-7b1 bloomz-7b1-mt : 30 4096 32 32 16384 250880 tied positions=alibi
bloom bloom-176b bloomz : 70 14336 112 112 57344 250880 tied positions=alibi
falcon-7b : 32 4544 71 1 18176 65024 tied positions=rope parallel=true
falcon-40b : 60 8192 128 8 32768 65024 tied positions=rope parallel=true
falcon-180b : 80 14848 232 8 59392 65024 tied positions=rope parallel=true
phi-1 phi-1.5 : 24 2048 32 32 8192 51200 positions=rope parallel=true
phi-2 : 32 2560 32 32 10240 51200 positions=rope parallel=true
starcoder starcoder-15b starcoderbase : 40 6144 48 1 24576 49152 tied
starcoderbase-1b : 24 2048 16 1 8192 49152 tied
starcoder2-3b : 30 3072 24 2 12288 49152 tied
starcoder2-7b : 32 4608 36 4 18432 49152 tied
starcoder2-15b : 40 6144 48 4 24576 49152
"""
_GEMMA2: Final = "tied=true,activation=geglu,norms=around,mixers=w*,window=4096,vocab=256000,seq=8192"
_NEMOTRON4: Final = "kv_heads=8,vocab=256000,positions=rope,activation=relu2,bias=false,tied=false"
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
    "bert-base-cased": "bert-base",
    "bert-large-uncased": "bert-large",
    "bert-large-cased": "bert-large",
    "flan-t5-small": "t5-small",
    "flan-t5-base": "t5-base",
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
}
"""Models that need more than six numbers, and spellings of models of the zoo that their names do not resemble."""


def known_model(written: str) -> str | None:
    """Return the spec of a well-known model, as ``Llama-3.1-8B`` or ``opt-1.3b`` is spelt; ``None`` if not known.

    A point counts: ``opt-1.3b`` and ``opt-13b`` are two models.
    """
    return _specs().get(_plain(written))


def _plain(written: str) -> str:
    joined = re.sub(r"(?<=\d)_(?=\d+b)", ".", written.lower())
    return re.sub(r"[^a-z0-9.]", "", joined)


@cache
def _specs() -> dict[str, str]:
    found = {_plain(name): spec for name, spec in _SPECS.items()}
    for family, lines in (("llama", _LLAMA), ("gpt", _GPT)):
        for line in lines.strip().splitlines():
            names, _, numbers = line.partition(" : ")
            layers, hidden, heads, kv_heads, ffn, vocab, *more = numbers.split()
            parts = f"layers={layers},hidden={hidden},heads={heads},kv_heads={kv_heads},ffn={ffn},vocab={vocab}"
            if family == "gpt" and kv_heads == heads:
                parts = parts.replace(f"kv_heads={kv_heads},", "")
            tied = "true" if "tied" in more else "false"
            spec = ",".join([f"{family}:{parts}", f"tied={tied}", *(each for each in more if each != "tied")])
            found.update(dict.fromkeys(map(_plain, names.split()), spec))
    return found
