"""Language models that tables name without their dimensions: published ones, and how their names are spelled.

Dimensions are those of the released configurations. A table may write ``meta-llama/Llama-3.1-70B-Instruct``,
``Llama 3.1 70B`` or ``llama3.1-70b``: publishers, tasks and punctuation do not matter.
"""

from __future__ import annotations

import re
from typing import Final

_PUBLISHED: Final = {
    "bert4b": "bert:layers=48,hidden=2560,heads=32",
    "bert20b": "bert:layers=48,hidden=6144,heads=96",
    "bert100b": "bert:layers=96,hidden=9216,heads=96",
    "qwen2572b": "llama:layers=80,hidden=8192,heads=64,kv_heads=8,ffn=29568,vocab=152064",
    "qwen2532b": "llama:layers=64,hidden=5120,heads=40,kv_heads=8,ffn=27648,vocab=152064",
    "qwen2514b": "llama:layers=48,hidden=5120,heads=40,kv_heads=8,ffn=13824,vocab=152064",
    "qwen253b": "llama:layers=36,hidden=2048,heads=16,kv_heads=2,ffn=11008,vocab=151936,tied=true",
    "qwen2515b": "llama:layers=28,hidden=1536,heads=12,kv_heads=2,ffn=8960,vocab=151936,tied=true",
    "qwen2505b": "llama:layers=24,hidden=896,heads=14,kv_heads=2,ffn=4864,vocab=151936,tied=true",
    "qwen272b": "llama:layers=80,hidden=8192,heads=64,kv_heads=8,ffn=29568,vocab=152064",
    "llama7b": "llama:layers=32,hidden=4096,heads=32,kv_heads=32,ffn=11008,vocab=32000",
    "llama13b": "llama:layers=40,hidden=5120,heads=40,kv_heads=40,ffn=13824,vocab=32000",
    "llama30b": "llama:layers=60,hidden=6656,heads=52,kv_heads=52,ffn=17920,vocab=32000",
    "llama33b": "llama:layers=60,hidden=6656,heads=52,kv_heads=52,ffn=17920,vocab=32000",
    "llama65b": "llama:layers=80,hidden=8192,heads=64,kv_heads=64,ffn=22016,vocab=32000",
    "codellama7b": "llama:layers=32,hidden=4096,heads=32,kv_heads=32,ffn=11008,vocab=32016",
    "codellama34b": "llama:layers=48,hidden=8192,heads=64,kv_heads=8,ffn=22016,vocab=32000",
    "tinyllama11b": "llama:layers=22,hidden=2048,heads=32,kv_heads=4,ffn=5632,vocab=32000",
    "yi6b": "llama:layers=32,hidden=4096,heads=32,kv_heads=4,ffn=11008,vocab=64000",
    "yi34b": "llama:layers=60,hidden=7168,heads=56,kv_heads=8,ffn=20480,vocab=64000",
    "mistralnemo12b": "llama:layers=40,hidden=5120,heads=32,kv_heads=8,head_dim=128,ffn=14336,vocab=131072",
    "mistrallarge2": "llama:layers=88,hidden=12288,heads=96,kv_heads=8,ffn=28672,vocab=32768",
    "nemotron4340b": "gpt:layers=96,hidden=18432,heads=96,kv_heads=8,ffn=73728,vocab=256000,positions=rope,"
    "activation=relu2,bias=false,tied=false",
    "nemotron415b": "gpt:layers=32,hidden=6144,heads=48,kv_heads=8,ffn=24576,vocab=256000,positions=rope,"
    "activation=relu2,bias=false,tied=false",
    "grok1": "moe:layers=64,hidden=6144,heads=48,kv_heads=8,experts=8,top_k=2,expert_ffn=32768,vocab=131072,tied=true",
    "dbrx": "moe:layers=40,hidden=6144,heads=48,kv_heads=8,experts=16,top_k=4,expert_ffn=10752,vocab=100352",
    "qwen15moea27b": "moe:layers=24,hidden=2048,heads=16,kv_heads=16,experts=60,top_k=4,expert_ffn=1408,"
    "shared_ffn=5632,vocab=151936",
    "olmoe1b7b": "moe:layers=16,hidden=2048,heads=16,kv_heads=16,experts=64,top_k=8,expert_ffn=1024,vocab=50304",
    "bloom176b": "gpt:layers=70,hidden=14336,heads=112,vocab=250880,positions=alibi",
    "bloom": "gpt:layers=70,hidden=14336,heads=112,vocab=250880,positions=alibi",
    "bloom3b": "gpt:layers=30,hidden=2560,heads=32,vocab=250880,positions=alibi",
    "bloom560m": "gpt:layers=24,hidden=1024,heads=16,vocab=250880,positions=alibi",
    "opt125m": "gpt:layers=12,hidden=768,heads=12,vocab=50272,activation=relu",
    "opt350m": "gpt:layers=24,hidden=1024,heads=16,vocab=50272,activation=relu",
    "opt27b": "gpt:layers=32,hidden=2560,heads=32,vocab=50272,activation=relu",
    "opt67b": "gpt:layers=32,hidden=4096,heads=32,vocab=50272,activation=relu",
    "opt13b": "gpt:layers=40,hidden=5120,heads=40,vocab=50272,activation=relu",
    "opt30b": "gpt:layers=48,hidden=7168,heads=56,vocab=50272,activation=relu",
    "opt66b": "gpt:layers=64,hidden=9216,heads=72,vocab=50272,activation=relu",
    "opt175b": "gpt:layers=96,hidden=12288,heads=96,vocab=50272,activation=relu",
    "gptj6b": "gpt:layers=28,hidden=4096,heads=16,vocab=50400,positions=rope,parallel=true,tied=false",
    "gptneo13b": "gpt:layers=24,hidden=2048,heads=16",
    "gptneo27b": "gpt:layers=32,hidden=2560,heads=20",
    "pythia70m": "gpt:layers=6,hidden=512,heads=8,vocab=50304,positions=rope,parallel=true,tied=false",
    "pythia160m": "gpt:layers=12,hidden=768,heads=12,vocab=50304,positions=rope,parallel=true,tied=false",
    "pythia410m": "gpt:layers=24,hidden=1024,heads=16,vocab=50304,positions=rope,parallel=true,tied=false",
    "pythia1b": "gpt:layers=16,hidden=2048,heads=8,vocab=50304,positions=rope,parallel=true,tied=false",
    "pythia14b": "gpt:layers=24,hidden=2048,heads=16,vocab=50304,positions=rope,parallel=true,tied=false",
    "pythia28b": "gpt:layers=32,hidden=2560,heads=32,vocab=50304,positions=rope,parallel=true,tied=false",
    "pythia69b": "gpt:layers=32,hidden=4096,heads=32,vocab=50432,positions=rope,parallel=true,tied=false",
    "pythia12b": "gpt:layers=36,hidden=5120,heads=40,vocab=50688,positions=rope,parallel=true,tied=false",
    "megatronturingnlg530b": "gpt:layers=105,hidden=20480,heads=128",
    "mtnlg530b": "gpt:layers=105,hidden=20480,heads=128",
}
"""Specs of published models that are not in the zoo, by name without punctuation."""
_ZOO: Final = {
    "deepseek3671b": "deepseek-v3",
    "deepseek3": "deepseek-v3",
    "deepseekv3671b": "deepseek-v3",
    "deepseekv2236b": "deepseek-v2",
    "deepseekr1": "deepseek-v3",
    "deepseekv2lite16b": "deepseek-v2-lite",
    "bert110m": "bert-base",
    "bert340m": "bert-large",
    "llama4scout17b16e": "llama4-scout",
    "llama4maverick17b128e": "llama4-maverick",
    "gptneox20b": "neox-20b",
    "gptneox": "neox-20b",
    "kimik21t": "kimi-k2",
    "qwen3235b": "qwen3-235b-a22b",
    "qwen330b": "qwen3-30b-a3b",
    "gptoss120ba5b": "gpt-oss-120b",
    "mistral7bv01": "mistral-7b",
    "mistral7bv03": "mistral-7b",
    "mixtral8x7bv01": "mixtral-8x7b",
    "mixtral8x22bv01": "mixtral-8x22b",
    "glm45air106b": "glm-4.5-air",
    "nemotron3nano30ba3b": "nemotron-3-nano",
    "nemotron3super120ba12b": "nemotron-3-super",
}
"""Other names of models of the zoo, without punctuation."""
_TASKS: Final = re.compile(r"\b(?:pre-?training|sft|fine-?tun\w+|instruct|chat|base|hf|it|q?lora|dora|peft)\b")
_SAME_SHAPE: Final = re.compile(r"^(?:meta)?llama3[13](8b|70b|405b)$")
"""Llama 3.1 and 3.3 have the dimensions of Llama 3."""
_PUBLISHERS: Final = re.compile(r"^[\w.-]+/(?=[\w.-]+$)")


def _plain(written: str) -> str:
    return re.sub(r"[^a-z0-9]", "", written)


def spellings(written: str) -> list[str]:
    """Return the names without punctuation that a table may mean, the most literal first."""
    lower = re.sub(r"\(.*?\)", "", written.lower()).strip()
    short = _PUBLISHERS.sub("", lower)
    names = [_plain(said) for said in (lower, _TASKS.sub("", lower), short, _TASKS.sub("", short))]
    found = _SAME_SHAPE.match(names[-1])
    return list(dict.fromkeys([*names, *([f"llama3{found[1]}"] if found else [])]))


def other_name(plain: str) -> str | None:
    """Return the model of the zoo that has this other name; ``None`` if there is none."""
    return _ZOO.get(plain)


def published_spec(written: str) -> str | None:
    """Return the spec of a published model that is not in the zoo; ``None`` if its name is not known."""
    return next((_PUBLISHED[name] for name in spellings(written) if name in _PUBLISHED), None)
