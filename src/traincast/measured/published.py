"""How tables spell the names of language models that they give no dimensions of.

A table may write ``meta-llama/Llama-3.1-70B-Instruct``,
``Llama 3.1 70B`` or ``llama3.1-70b``: publishers, tasks and punctuation do not matter.
"""

from __future__ import annotations

import re
from typing import Final

from traincast.graph.zoo.known_models import known_model

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
_DECIMALS: Final = re.compile(r"(\d+)\.(\d+)(?=b)")
_PUBLISHERS: Final = re.compile(r"^[\w.-]+/(?=[\w.-]+$)")


def _plain(written: str) -> str:
    return re.sub(r"[^a-z0-9]", "", written)


def names(written: str) -> list[str]:
    """Return the names that a table may mean, without publisher and task, the most literal first."""
    lower = re.sub(r"\(.*?\)", "", written.lower()).strip()
    short = _PUBLISHERS.sub("", lower)
    found = [lower, _TASKS.sub("", lower), short, _TASKS.sub("", short)]
    return [*found, _TASKS.sub("", short.replace("_", "-"))]


def spellings(written: str) -> list[str]:
    """Return the names without punctuation that a table may mean, the most literal first."""
    found = [_plain(said) for said in names(written)]
    same = _SAME_SHAPE.match(found[-1])
    return list(dict.fromkeys([*found, *([f"llama3{same[1]}"] if same else [])]))


def same_size(written: str, name: str) -> bool:
    """Return whether the decimals of two names agree: ``gpt3-1.3b`` and ``GPT3 1_3B`` do, ``gpt3-13b`` does not."""
    lower = written.lower()
    there = (re.search(rf"(?<!\d){whole}[^a-z0-9]{part}b", lower) for whole, part in _DECIMALS.findall(name))
    back = (f"{whole}.{part}b" in name for whole, part in _DECIMALS.findall(lower))
    return all(there) and all(back)


def other_name(plain: str) -> str | None:
    """Return the model of the zoo that has this other name; ``None`` if there is none."""
    return _ZOO.get(plain)


def published_spec(written: str) -> str | None:
    """Return the spec of a published model that is not in the zoo; ``None`` if its name is not known."""
    return next((spec for name in names(written) if (spec := known_model(name)) is not None), None)
